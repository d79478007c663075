package kubelet

import (
	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/pods/cgroup"
)

// limits are what a container's resources ask of its control group. Its weight is that of its request, as upstream's kubelet sets it
// (pkg/kubelet/cm, MilliCPUToShares).
func limits(c *corev1.Container) cgroup.Limits {
	l := cgroup.Limits{Memory: c.Resources.Limits.Memory().Value(), CPU: c.Resources.Limits.Cpu().MilliValue()}
	request, ok := c.Resources.Requests[corev1.ResourceCPU]
	if !ok {
		request = *c.Resources.Limits.Cpu()
	}
	l.Weight = max(request.MilliValue()*1024/1000, 2)
	return l
}
