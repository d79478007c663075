package kubelet

import (
	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/pods/cgroup"
)

// limits are what resources ask of a container's control group. Its weight is that of its request, as upstream's kubelet sets it
// (pkg/kubelet/cm, MilliCPUToShares).
func limits(r *corev1.ResourceRequirements) cgroup.Limits {
	l := cgroup.Limits{Memory: r.Limits.Memory().Value(), CPU: r.Limits.Cpu().MilliValue()}
	request, ok := r.Requests[corev1.ResourceCPU]
	if !ok {
		request = *r.Limits.Cpu()
	}
	l.Weight = max(request.MilliValue()*1024/1000, 2)
	return l
}
