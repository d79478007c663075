package podspec

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// PortMapping is an entry of the CNI capability portMappings (containernetworking/cni, CONVENTIONS.md).
type PortMapping struct {
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"` // in lower case
	HostIP        string `json:"hostIP,omitempty"`
}

// PortMappings returns the ports that a pod asks its node for.
func PortMappings(o *corev1.Pod) (list []PortMapping) {
	for _, c := range o.Spec.Containers {
		for _, p := range c.Ports {
			if p.HostPort != 0 {
				list = append(list, PortMapping{p.HostPort, p.ContainerPort, strings.ToLower(string(p.Protocol)), p.HostIP})
			}
		}
	}
	return list
}
