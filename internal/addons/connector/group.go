package connector

import (
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/pods/podspec"
)

// The tags that the connector gives a group, and finds its pod by (virtual-kubelet/azure-aci, provider/aci.go).
const (
	tagPod       = "PodName"
	tagNamespace = "Namespace"
	tagUID       = aci.TagUID
	tagNode      = "NodeName"
	tagCreated   = "CreationTimestamp"
)

// groupName returns the name of a pod's group.
func groupName(namespace, pod string) string { return namespace + "-" + pod }

// What a container gets that asks for nothing: the connector's defaults.
const (
	defaultCores     = 1.0
	defaultGigabytes = 1.5
	leastCores       = 0.01
	leastGigabytes   = 0.1
)

// newGroup returns the container group of a pod, whose volumes are made already.
func (cfg *config) newGroup(pod *corev1.Pod, volumes []aci.Volume) aci.ContainerGroup {
	g := aci.ContainerGroup{
		Name: groupName(pod.Namespace, pod.Name), Location: cfg.Location,
		Tags: map[string]string{
			tagPod: pod.Name, tagNamespace: pod.Namespace, tagUID: string(pod.UID), tagNode: cfg.NodeName,
			tagCreated: pod.CreationTimestamp.String(),
		},
		Properties: aci.GroupProperties{
			OSType: "Linux", RestartPolicy: aci.RestartPolicy(pod.Spec.RestartPolicy), Volumes: volumes, DNSConfig: cfg.dns(pod),
			SubnetIDs: []aci.SubnetID{{ID: cfg.SubnetID}}, IPAddress: &aci.IPAddress{Type: aci.Private, Ports: []aci.Port{}},
		},
	}
	if cfg.Extension != nil {
		g.Properties.Extensions = []aci.Extension{*cfg.Extension}
	}
	for i := range pod.Spec.Containers {
		c := newContainer(&pod.Spec.Containers[i])
		g.Properties.Containers = append(g.Properties.Containers, c)
		g.Properties.IPAddress.Ports = append(g.Properties.IPAddress.Ports, c.Properties.Ports...)
	}
	return g
}

// dns returns what the group's containers have in /etc/resolv.conf; nil is Azure's.
func (cfg *config) dns(pod *corev1.Pod) *aci.DNSConfig {
	servers, search, options := podspec.Resolver{Cluster: cfg.KubeDNS, Domain: cfg.ClusterDomain}.DNS(pod)
	if len(servers) == 0 {
		return nil
	}
	return &aci.DNSConfig{NameServers: servers, SearchDomains: strings.Join(search, " "), Options: strings.Join(options, " ")}
}

func newContainer(c *corev1.Container) aci.Container {
	vars := map[string]string{}
	p := aci.ContainerProperties{Image: c.Image, Ports: []aci.Port{}, Environment: []aci.Variable{}}
	for _, e := range c.Env {
		vars[e.Name] = e.Value
		v := aci.Variable{Name: e.Name, Value: e.Value}
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			v = aci.Variable{Name: e.Name, SecureValue: e.Value}
		}
		p.Environment = append(p.Environment, v)
	}
	p.Command = command(c, vars)
	for _, port := range c.Ports {
		p.Ports = append(p.Ports, aci.Port{Port: uint16(port.ContainerPort), Protocol: string(port.Protocol)})
	}
	for _, m := range c.VolumeMounts {
		p.VolumeMounts = append(p.VolumeMounts, aci.VolumeMount{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly})
	}
	p.Resources.Requests = amounts(c.Resources.Requests, aci.ResourceAmounts{CPU: defaultCores, MemoryInGB: defaultGigabytes})
	if len(c.Resources.Limits) > 0 {
		limits := amounts(c.Resources.Limits, p.Resources.Requests)
		p.Resources.Limits = &limits
	}
	p.LivenessProbe, p.ReadinessProbe = probe(c, c.LivenessProbe), probe(c, c.ReadinessProbe)
	return aci.Container{Name: c.Name, Properties: p}
}

// command returns the one list that Azure takes in place of the image's entry point and arguments, also where a pod has arguments alone
// (virtual-kubelet/azure-aci, pkg/provider, getCommand); none when the image's own are meant.
func command(c *corev1.Container, vars map[string]string) []string {
	list := slices.Concat(c.Command, c.Args)
	for i, s := range list {
		list[i] = podspec.Expand(s, vars)
	}
	return list
}

// amounts returns cores and gigabytes, in hundredths and tenths, as Azure has them.
func amounts(list corev1.ResourceList, or aci.ResourceAmounts) aci.ResourceAmounts {
	if q, ok := list[corev1.ResourceCPU]; ok {
		or.CPU = max(math.Trunc(float64(q.MilliValue())/10)/100, leastCores)
	}
	if q, ok := list[corev1.ResourceMemory]; ok {
		or.MemoryInGB = max(gigabytes(q), leastGigabytes)
	}
	return or
}

// gigabytes returns decimal gigabytes, in tenths.
func gigabytes(q resource.Quantity) float64 { return math.Trunc(float64(q.Value())/1e8) / 10 }

// probe returns a probe as Azure has it; nil for none, and for one that refusals has refused.
func probe(c *corev1.Container, p *corev1.Probe) *aci.Probe {
	if p == nil {
		return nil
	}
	a := &aci.Probe{
		InitialDelaySeconds: int(p.InitialDelaySeconds), PeriodSeconds: int(p.PeriodSeconds), FailureThreshold: int(p.FailureThreshold),
		SuccessThreshold: int(p.SuccessThreshold), TimeoutSeconds: int(p.TimeoutSeconds),
	}
	switch {
	case p.Exec != nil:
		a.Exec = &aci.ExecProbe{Command: p.Exec.Command}
	case p.HTTPGet != nil:
		port := p.HTTPGet.Port.IntValue()
		for _, named := range c.Ports {
			if named.Name != "" && named.Name == p.HTTPGet.Port.StrVal {
				port = int(named.ContainerPort)
			}
		}
		a.HTTPGet = &aci.HTTPProbe{Path: p.HTTPGet.Path, Port: uint16(port), Scheme: strings.ToLower(string(p.HTTPGet.Scheme))}
	default:
		return nil
	}
	return a
}

// proxyExtension returns the kube-proxy extension with which a group reaches the cluster's Services.
func proxyExtension(node, clusterCIDR, rules, version, kubeconfig string) *aci.Extension {
	return &aci.Extension{Name: "kube-proxy", Properties: aci.ExtensionProperties{
		Type: aci.ExtensionKubeProxy, Version: "1.0",
		Settings: map[string]string{
			aci.SettingClusterCIDR: clusterCIDR, aci.SettingKubeVersion: version, aci.SettingProxyRules: rules, aci.SettingNodeName: node,
		},
		ProtectedSettings: map[string]string{aci.SettingKubeConfig: kubeconfig},
	}}
}
