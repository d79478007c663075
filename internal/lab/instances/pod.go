package instances

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/pods/realnode"
	"packetwalk.dev/internal/pods/safepath"
)

// Azure's virtual IP address for DNS, which groups without a configuration of their own ask.
const azureDNS = "168.63.129.16"

// The grace of a group's containers, seconds. How long they have at the group's end is for who deletes it to say: the machine ends then.
// One that is not well has livenessGrace.
const (
	podGrace      = 24 * 60 * 60
	livenessGrace = 10
)

// pod returns the group as the pod that the machine's kubelet runs.
func (g *group) pod() *corev1.Pod {
	p := &g.spec.Properties
	grace, no := int64(podGrace), false
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: g.name, Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{
			Hostname: g.hostname(), RestartPolicy: corev1.RestartPolicy(p.RestartPolicy), TerminationGracePeriodSeconds: &grace,
			DNSPolicy: corev1.DNSNone, DNSConfig: dnsConfig(p.DNSConfig),
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
		},
	}
	for i := range p.Volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, g.podVolume(&p.Volumes[i]))
	}
	for i := range p.Containers {
		pod.Spec.Containers = append(pod.Spec.Containers, g.container(&p.Containers[i]))
	}
	return pod
}

// hostname returns the containers' host name. Azure's begins with SandboxHost-; a pod's must be in lower case.
func (g *group) hostname() string {
	sum := sha256.Sum256([]byte(cmp.Or(g.spec.Tags[aci.TagUID], g.name)))
	return fmt.Sprintf("sandboxhost-%018d", binary.BigEndian.Uint64(sum[:])%1e18)
}

// dnsConfig returns the containers' /etc/resolv.conf: as the group asks for, or Azure's name server.
func dnsConfig(d *aci.DNSConfig) *corev1.PodDNSConfig {
	if d == nil || len(d.NameServers) == 0 {
		return &corev1.PodDNSConfig{Nameservers: []string{azureDNS}}
	}
	c := &corev1.PodDNSConfig{Nameservers: d.NameServers, Searches: strings.Fields(d.SearchDomains)}
	for o := range strings.FieldsSeq(d.Options) {
		option := corev1.PodDNSConfigOption{}
		if name, value, ok := strings.Cut(o, ":"); ok {
			option.Name, option.Value = name, &value
		} else {
			option.Name = o
		}
		c.Options = append(c.Options, option)
	}
	return c
}

func (g *group) podVolume(v *aci.Volume) corev1.Volume {
	volume := corev1.Volume{Name: v.Name}
	if v.EmptyDir != nil {
		volume.EmptyDir = &corev1.EmptyDirVolumeSource{}
		return volume
	}
	directory := corev1.HostPathDirectory
	volume.HostPath = &corev1.HostPathVolumeSource{Path: filepath.Join(realnode.VolumesDir, v.Name), Type: &directory}
	return volume
}

func (g *group) container(c *aci.Container) corev1.Container {
	p := &c.Properties
	k := corev1.Container{
		Name: c.Name, Image: p.Image, ImagePullPolicy: corev1.PullIfNotPresent, Command: p.Command,
		LivenessProbe: podProbe(p.LivenessProbe), ReadinessProbe: podProbe(p.ReadinessProbe),
	}
	if k.LivenessProbe != nil {
		grace := int64(livenessGrace)
		k.LivenessProbe.TerminationGracePeriodSeconds = &grace
	}
	for _, v := range p.Environment {
		k.Env = append(k.Env, corev1.EnvVar{Name: v.Name, Value: escape(v.Value + v.SecureValue)})
	}
	for _, m := range p.VolumeMounts {
		files := slices.ContainsFunc(g.spec.Properties.Volumes, func(v aci.Volume) bool { return v.Name == m.Name && v.EmptyDir == nil })
		k.VolumeMounts = append(k.VolumeMounts, corev1.VolumeMount{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly || files})
	}
	k.Command = escapeAll(k.Command)
	if l := p.Resources.Limits; l != nil {
		k.Resources.Limits = limits(*l)
		k.Resources.Requests = corev1.ResourceList{} // or they are the limits, which the machine may not have
		for name := range k.Resources.Limits {
			k.Resources.Requests[name] = resource.Quantity{}
		}
	}
	return k
}

// escape has Kubernetes take a text as it is: $(NAME) is a reference to a variable there (core/v1, EnvVar).
func escape(text string) string { return strings.ReplaceAll(text, "$", "$$") }

func escapeAll(texts []string) (all []string) {
	for _, text := range texts {
		all = append(all, escape(text))
	}
	return all
}

func limits(a aci.ResourceAmounts) corev1.ResourceList {
	list := corev1.ResourceList{}
	if a.CPU > 0 {
		list[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(a.CPU*1000), resource.DecimalSI)
	}
	if a.MemoryInGB > 0 {
		list[corev1.ResourceMemory] = *resource.NewQuantity(int64(a.MemoryInGB*1e9), resource.DecimalSI)
	}
	return list
}

func podProbe(p *aci.Probe) *corev1.Probe {
	if p == nil {
		return nil
	}
	k := &corev1.Probe{
		InitialDelaySeconds: int32(p.InitialDelaySeconds), PeriodSeconds: int32(p.PeriodSeconds), TimeoutSeconds: int32(p.TimeoutSeconds),
		SuccessThreshold: int32(p.SuccessThreshold), FailureThreshold: int32(p.FailureThreshold),
	}
	if p.Exec != nil {
		k.Exec = &corev1.ExecAction{Command: escapeAll(p.Exec.Command)}
	} else {
		k.HTTPGet = &corev1.HTTPGetAction{Path: p.HTTPGet.Path, Port: intstr.FromInt32(int32(p.HTTPGet.Port)),
			Scheme: corev1.URIScheme(strings.ToUpper(cmp.Or(p.HTTPGet.Scheme, "http")))}
	}
	return k
}

// writePod writes the pod for the kubelet. One that is there stays: another text would be another pod.
func (g *group) writePod() error {
	text, err := json.Marshal(g.pod())
	if err != nil {
		return err
	}
	if err := os.MkdirAll(g.podsDir(), 0o700); err != nil {
		return err
	}
	if _, err := os.Lstat(g.podFile()); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return atomicfile.Write(g.podFile(), text, 0o600)
}

// podsDir returns where the machine finds the group's pod.
func (g *group) podsDir() string { return filepath.Join(g.disk, realnode.Pods) }

func (g *group) podFile() string { return filepath.Join(g.podsDir(), "pod.json") }

func (g *group) volumeDir(name string) string {
	return filepath.Join(g.disk, realnode.Volumes, name)
}

// makeVolumes makes the directories of volumes with files, which are read-only in the containers.
func (g *group) makeVolumes() error {
	for i := range g.spec.Properties.Volumes {
		v := &g.spec.Properties.Volumes[i]
		if v.EmptyDir != nil {
			continue
		}
		if err := g.makeVolume(v); err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	return nil
}

func (g *group) makeVolume(v *aci.Volume) error {
	dir := g.volumeDir(v.Name)
	var files []safepath.File
	for name, content := range v.Secret {
		data, err := base64.StdEncoding.DecodeString(content)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		files = append(files, safepath.File{Name: name, Data: data, Mode: 0o644})
	}
	if err := safepath.WriteFiles(dir, files, nil); err != nil {
		return err
	}
	for _, c := range g.spec.Properties.Containers {
		for _, m := range c.Properties.VolumeMounts {
			if m.Name != v.Name {
				continue
			}
			for _, other := range c.Properties.VolumeMounts {
				if err := safepath.MakeMountPoint(dir, m.MountPath, other.MountPath); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
