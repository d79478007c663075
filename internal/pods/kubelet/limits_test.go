package kubelet

import (
	"testing"

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
		got := limits(&corev1.Container{Resources: corev1.ResourceRequirements{Requests: tt.requests, Limits: tt.limits}})
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%v %v: -want +got:\n%s", tt.requests, tt.limits, diff)
		}
	}
}
