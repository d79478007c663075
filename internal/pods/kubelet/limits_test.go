package kubelet

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/pods/cgroup"
)

func TestLimits(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		l := corev1.ResourceList{}
		if cpu != "" {
			l[corev1.ResourceCPU] = quantity(cpu)
		}
		if memory != "" {
			l[corev1.ResourceMemory] = quantity(memory)
		}
		return l
	}
	for _, tt := range []struct {
		requests, limits corev1.ResourceList
		want             cgroup.Limits
	}{
		{nil, nil, cgroup.Limits{Weight: 2}},
		{list("500m", "1Mi"), nil, cgroup.Limits{Weight: 512}},
		{nil, list("2", "64Mi"), cgroup.Limits{Memory: 64 << 20, CPU: 2000, Weight: 2048}},
		{list("100m", ""), list("250m", "1Gi"), cgroup.Limits{Memory: 1 << 30, CPU: 250, Weight: 102}},
		{list("0", ""), list("", "1Gi"), cgroup.Limits{Memory: 1 << 30, Weight: 2}},
	} {
		got := limits(&corev1.ResourceRequirements{Requests: tt.requests, Limits: tt.limits})
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%v %v: -want +got:\n%s", tt.requests, tt.limits, diff)
		}
	}
}

func TestSysctls(t *testing.T) {
	pod := func(names ...string) *corev1.Pod {
		return testPod("web", func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{}
			for _, n := range names {
				p.Spec.SecurityContext.Sysctls = append(p.Spec.SecurityContext.Sysctls, corev1.Sysctl{Name: n, Value: "1"})
			}
		})
	}
	network, ipc, err := sysctls(pod("net.ipv4.ip_forward", "kernel.shm_rmid_forced", "kernel.sem", "fs/mqueue/msg_max"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]map[string]string{{"net/ipv4/ip_forward": "1"},
		{"kernel/shm_rmid_forced": "1", "kernel/sem": "1", "fs/mqueue/msg_max": "1"}}, []map[string]string{network, ipc}); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"kernel.panic", "vm.swappiness", "net/../kernel/panic", "net/../../../etc/passwd", "/kernel/sem", "kernel.semx"} {
		if _, _, err := sysctls(pod(bad)); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

// TestMemorySize: a volume in memory is not larger than its limit, the pod's, and the node's memory.
func TestMemorySize(t *testing.T) {
	node := corev1.ResourceList{corev1.ResourceMemory: quantity("1Gi")}
	pod := func(limits ...string) *corev1.Pod {
		return testPod("web", func(p *corev1.Pod) {
			p.Spec.Containers = nil
			for _, l := range limits {
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Resources: corev1.ResourceRequirements{
					Limits: corev1.ResourceList{corev1.ResourceMemory: quantity(l)}}})
			}
		})
	}
	for _, tt := range []struct {
		pod   *corev1.Pod
		limit string
		want  int64
	}{
		{pod("0"), "", 1 << 30}, {pod("64Mi", "64Mi"), "", 128 << 20}, {pod("64Mi", "0"), "", 1 << 30}, {pod("2Gi"), "", 1 << 30},
		{pod("64Mi"), "1Mi", 1 << 20}, {pod("64Mi"), "1Gi", 64 << 20},
	} {
		e := corev1.EmptyDirVolumeSource{}
		if tt.limit != "" {
			e.SizeLimit = new(quantity(tt.limit))
		}
		if got := memorySize(&e, podFacts{pod: tt.pod, allocatable: node}); got != tt.want {
			t.Errorf("limit %s: %d, want %d", tt.limit, got, tt.want)
		}
	}
}

// TestProbeGrace: a probe's own time to end in peace goes before the pod's.
func TestProbeGrace(t *testing.T) {
	p := testPod("web", func(p *corev1.Pod) {
		p.Spec.Containers[0].LivenessProbe = &corev1.Probe{TerminationGracePeriodSeconds: new(int64(3))}
		p.Spec.Containers[0].StartupProbe = &corev1.Probe{}
		p.Spec.TerminationGracePeriodSeconds = new(int64(60))
	})
	m := newMachine(p, time.Now())
	for kind, want := range map[probeKind]time.Duration{livenessProbe: 3 * time.Second, startupProbe: time.Minute} {
		m.containers[0].Phase, m.containers[0].stopping = phaseRunning, false
		if acts := m.probed(m.containers[0], kind, false); len(acts) != 1 || acts[0].grace != want {
			t.Errorf("%s: %v, want %v", kind, acts, want)
		}
	}
}
