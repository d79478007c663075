package connector

import (
	"runtime"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The taint that keeps pods off the virtual node that do not tolerate it.
const (
	taintKey   = "virtual-kubelet.io/provider"
	taintValue = "azure"
)

// nodeObject returns the Node as AKS's connector registers it. It has no machine, so no kernel, no runtime and no image of a system.
func nodeObject(cfg config, now metav1.Time) *corev1.Node {
	capacity := corev1.ResourceList{ // the connector's own defaults, a quota and no measure (virtual-kubelet/azure-aci, provider/aci.go)
		corev1.ResourceCPU: resource.MustParse("10000"), corev1.ResourceMemory: resource.MustParse("4Ti"),
		corev1.ResourcePods: resource.MustParse("5000"),
	}
	condition := func(t corev1.NodeConditionType, s corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: t, Status: s, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: cfg.NodeName, Labels: map[string]string{
			"type":                          "virtual-kubelet",
			"kubernetes.io/role":            "agent",
			"kubernetes.azure.com/role":     "agent",
			"kubernetes.azure.com/managed":  "false",
			"node-role.kubernetes.io/agent": "",
			corev1.LabelHostname:            cfg.NodeName,
			corev1.LabelOSStable:            "linux",
			"beta.kubernetes.io/os":         "linux",
			corev1.LabelArchStable:          runtime.GOARCH,
			// The load balancer sends nothing to it: it has no machine that would forward.
			corev1.LabelNodeExcludeBalancers:                          "true",
			"alpha.service-controller.kubernetes.io/exclude-balancer": "true",
		}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: taintKey, Value: taintValue, Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity.DeepCopy(),
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: cfg.Address.String()}},
			Conditions: []corev1.NodeCondition{
				condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is ready."),
				condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
				condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
				condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
				condition(corev1.NodeNetworkUnavailable, corev1.ConditionFalse, "RouteCreated", "the subnet's host routes to container groups"),
			},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(cfg.Port)}},
			NodeInfo:        corev1.NodeSystemInfo{OperatingSystem: "Linux", KubeletVersion: cfg.Version, Architecture: runtime.GOARCH},
		},
	}
}
