package connector

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/azure/aci"
)

func podFrom(t *testing.T, text string) *corev1.Pod {
	t.Helper()
	var p corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	return &p
}

// TestRefusals: each part that container groups do not have is named; what they have is not.
func TestRefusals(t *testing.T) {
	for spec, want := range map[string]string{
		"hostNetwork: true":                                                                            "hostNetwork:",
		"hostPID: true":                                                                                "hostPID:",
		"hostIPC: true":                                                                                "hostIPC:",
		"shareProcessNamespace: true":                                                                  "shareProcessNamespace:",
		"activeDeadlineSeconds: 5":                                                                     "activeDeadlineSeconds:",
		"hostAliases: [{ip: 1.2.3.4, hostnames: [a]}]":                                                 "hostAliases:",
		"initContainers: [{name: i, image: busybox}]":                                                  "init container i:",
		"volumes: [{name: v, hostPath: {path: /}}]":                                                    "volume v: a container group has no volumes of type hostPath",
		"volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]":                                  "type persistentVolumeClaim",
		"volumes: [{name: v, emptyDir: {medium: Memory}}]":                                             "type emptyDir with medium Memory",
		"containers: [{name: c, ports: [{containerPort: 80, hostPort: 80}]}]":                          "container c: hostPort 80:",
		"containers: [{name: c, volumeMounts: [{name: v, mountPath: /v, subPath: x}]}]":                "container c: subPath of volume v:",
		"containers: [{name: c, lifecycle: {preStop: {sleep: {seconds: 1}}}}]":                         "container c: lifecycle:",
		"containers: [{name: c, startupProbe: {httpGet: {port: 80}}}]":                                 "container c: startupProbe:",
		"containers: [{name: c, readinessProbe: {tcpSocket: {port: 80}}}]":                             "container c: readinessProbe:",
		"containers: [{name: c, securityContext: {privileged: true}}]":                                 "container c: securityContext.privileged:",
		"containers: [{name: c, securityContext: {capabilities: {add: [SYS_ADMIN]}}}]":                 "container c: securityContext.capabilities.add:",
		"volumes: [{name: v, downwardAPI: {items: [{path: p, fieldRef: {fieldPath: status.podIP}}]}}]": "volume v: a container group does not know status.podIP",
		"volumes: [{name: v, projected: {sources: [{downwardAPI: {items: [{path: p, resourceFieldRef: {resource: limits.cpu}}]}}]}}]": "resourceFieldRef",
		"volumes: [{name: v, downwardAPI: {items: [{path: p, fieldRef: {fieldPath: metadata.labels}}]}}]":                             "",
		"volumes: [{name: v, downwardAPI: {items: [{path: p, fieldRef: {fieldPath: \"metadata.labels['app']\"}}]}}]":                  "",
		"volumes: [{name: v, emptyDir: {}}, {name: w, configMap: {name: c}}, {name: x, secret: {secretName: s}}]":                     "",
		"containers: [{name: c, livenessProbe: {exec: {command: [a]}}, readinessProbe: {httpGet: {port: 80}}}]":                       "",
	} {
		got := refusals(podFrom(t, "spec: {"+spec+"}"))
		if want == "" && len(got) == 0 {
			continue
		}
		if len(got) != 1 || want == "" || !strings.Contains(got[0], want) {
			t.Errorf("%s: %q, want %q", spec, got, want)
		}
	}
	daemon := podFrom(t, "metadata: {ownerReferences: [{kind: DaemonSet, name: d, apiVersion: apps/v1, uid: u}]}")
	if got := refusals(daemon); len(got) != 1 || !strings.HasPrefix(got[0], "DaemonSet d:") {
		t.Errorf("a DaemonSet's pod: %q", got)
	}
}

func testConfig() *config {
	return &config{
		NodeName: "vn", Location: "westeurope", SubnetID: "/subnet", KubeDNS: netip.MustParseAddr("10.0.0.10"), ClusterDomain: "cluster.local",
		Address: netip.MustParseAddr("10.13.76.5"), Port: 10250, Version: "v1",
	}
}

func TestNewGroup(t *testing.T) {
	pod := podFrom(t, `
metadata: {namespace: ns, name: p, uid: u}
spec:
  restartPolicy: OnFailure
  dnsPolicy: ClusterFirst
  dnsConfig: {searches: [more], options: [{name: timeout, value: "1"}, {name: rotate}]}
  containers:
  - name: c
    image: nginx:1
    args: [-g, "daemon $(HOW);"]
    env: [{name: HOW, value: "off"}]
    ports: [{name: web, containerPort: 80, protocol: TCP}]
    resources: {requests: {cpu: 250m, memory: 1.5Gi}, limits: {cpu: "1"}}
    readinessProbe: {httpGet: {port: web, path: /ready, scheme: HTTPS}, periodSeconds: 3}
    volumeMounts: [{name: v, mountPath: /v, readOnly: true}]
  - {name: d, image: gcr.io/kuar-demo/kuard-amd64, command: [/kuard, --address=:9090], args: [--debug]}
`)
	g := testConfig().newGroup(pod, []aci.Volume{{Name: "v", EmptyDir: &struct{}{}}})
	tags := map[string]string{"PodName": "p", "Namespace": "ns", "UID": "u", "NodeName": "vn",
		"CreationTimestamp": pod.CreationTimestamp.String()}
	if d := cmp.Diff(tags, g.Tags); d != "" || g.Name != "ns-p" {
		t.Errorf("%s\n%s", g.Name, d)
	}
	dns := &aci.DNSConfig{NameServers: []string{"10.0.0.10"}, SearchDomains: "ns.svc.cluster.local svc.cluster.local cluster.local more",
		Options: "ndots:5 timeout:1 rotate"}
	if d := cmp.Diff(dns, g.Properties.DNSConfig); d != "" {
		t.Error(d)
	}
	web := []aci.Port{{Port: 80, Protocol: "TCP"}}
	want := []aci.Container{
		{Name: "c", Properties: aci.ContainerProperties{
			Image: "nginx:1", Command: []string{"-g", "daemon off;"}, Ports: web, Environment: []aci.Variable{{Name: "HOW", Value: "off"}},
			Resources: aci.Resources{Requests: aci.ResourceAmounts{CPU: 0.25, MemoryInGB: 1.6},
				Limits: &aci.ResourceAmounts{CPU: 1, MemoryInGB: 1.6}},
			ReadinessProbe: &aci.Probe{HTTPGet: &aci.HTTPProbe{Path: "/ready", Port: 80, Scheme: "https"}, PeriodSeconds: 3},
			VolumeMounts:   []aci.VolumeMount{{Name: "v", MountPath: "/v", ReadOnly: true}},
		}},
		{Name: "d", Properties: aci.ContainerProperties{
			Image: "gcr.io/kuar-demo/kuard-amd64", Command: []string{"/kuard", "--address=:9090", "--debug"}, Ports: []aci.Port{},
			Environment: []aci.Variable{},
			Resources:   aci.Resources{Requests: aci.ResourceAmounts{CPU: 1, MemoryInGB: 1.5}},
		}},
	}
	if d := cmp.Diff(want, g.Properties.Containers); d != "" {
		t.Error(d)
	}
	if !slices.Equal(g.Properties.IPAddress.Ports, web) || g.Properties.RestartPolicy != aci.RestartOnFailure {
		t.Errorf("%+v", g.Properties)
	}
}

func TestPodStatus(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	then, now := metav1.NewTime(at), metav1.NewTime(at.Add(time.Hour))
	code := 7
	group := func(state string, views ...*aci.ContainerView) *aci.ContainerGroup {
		g := &aci.ContainerGroup{Name: "g", Properties: aci.GroupProperties{
			ProvisioningState: aci.ProvisioningSucceeded, InstanceView: &aci.GroupView{State: state},
			IPAddress: &aci.IPAddress{Type: aci.Private, IP: netip.MustParseAddr("10.13.100.4")},
		}}
		for _, v := range views {
			g.Properties.Containers = append(g.Properties.Containers,
				aci.Container{Name: "c", Properties: aci.ContainerProperties{Image: "i", InstanceView: v}})
		}
		return g
	}
	running := &aci.ContainerView{CurrentState: aci.ContainerState{State: aci.StateRunning, StartTime: at}, Ready: true}
	ended := &aci.ContainerView{RestartCount: 2, CurrentState: aci.ContainerState{State: aci.StateTerminated, StartTime: at, FinishTime: at,
		ExitCode: &code, DetailStatus: "Error"}}
	pod := &corev1.Pod{}
	base := corev1.PodStatus{Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: then},
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: then},
	}}
	for _, test := range []struct {
		group *aci.ContainerGroup
		phase corev1.PodPhase
		ready bool
	}{
		{group(aci.GroupPending, &aci.ContainerView{CurrentState: aci.ContainerState{State: aci.StateWaiting}}), corev1.PodPending, false},
		{group(aci.GroupRunning, running), corev1.PodRunning, true},
		{group(aci.GroupRunning, running, ended), corev1.PodRunning, false},
		{group(aci.GroupFailed, ended), corev1.PodFailed, false},
	} {
		s := podStatus(base, pod, test.group, "10.13.76.5", now)
		i := slices.IndexFunc(s.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
		ready := s.Conditions[i]
		changed := now
		if test.ready {
			changed = then // it was so before
		}
		if s.Phase != test.phase || (ready.Status == corev1.ConditionTrue) != test.ready || !ready.LastTransitionTime.Equal(&changed) ||
			s.PodIP != "10.13.100.4" || s.HostIP != "10.13.76.5" {
			t.Errorf("%s: %+v", test.group.Properties.InstanceView.State, s)
		}
		if s.Conditions[0].Type != corev1.PodScheduled {
			t.Errorf("others' conditions are gone: %+v", s.Conditions)
		}
		// The same again changes nothing.
		if again := podStatus(s, pod, test.group, "10.13.76.5", metav1.NewTime(at.Add(2*time.Hour))); cmp.Diff(s, again) != "" {
			t.Errorf("not settled:\n%s", cmp.Diff(s, again))
		}
	}
	s := podStatus(base, pod, group(aci.GroupFailed, ended), "10.13.76.5", now)
	if c := s.ContainerStatuses[0]; c.RestartCount != 2 || c.State.Terminated == nil || c.State.Terminated.ExitCode != 7 ||
		c.State.Terminated.Reason != "Error" {
		t.Errorf("%+v", c)
	}
}

func TestNode(t *testing.T) {
	n := nodeObject(*testConfig(), metav1.Now())
	if len(n.Spec.Taints) != 1 || n.Spec.Taints[0].ToString() != "virtual-kubelet.io/provider=azure:NoSchedule" ||
		n.Labels["type"] != "virtual-kubelet" {
		t.Errorf("%+v %v", n.Spec.Taints, n.Labels)
	}
	if _, ok := n.Labels[corev1.LabelNodeExcludeBalancers]; !ok {
		t.Error("the load balancer would send to it")
	}
}
