package cloud

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestIgnoredAnnotations: those of cloud-provider-azure that the lab does not read, of Services that get a load balancer.
func TestIgnoredAnnotations(t *testing.T) {
	const azure = "service.beta.kubernetes.io/azure-"
	s := &v1.Service{Spec: v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer}}
	s.Annotations = map[string]string{
		azure + "load-balancer-ipv4": "203.0.113.20", azure + "pip-name": "web", azure + "load-balancer-health-probe-request-path": "/",
		azure + "disable-load-balancer-floating-ip": "true", azure + "pls-create": "true",
		"service.beta.kubernetes.io/port_80_health-probe_interval": "10",
		azure + "load-balancer-tcp-idle-timeout":                   "10", azure + "allowed-ip-ranges": "198.51.100.0/24",
		azure + "load-balancer-internal": "false", "service.beta.kubernetes.io/aws-load-balancer-type": "nlb", "example.com/x": "y",
	}
	want := []string{azure + "disable-load-balancer-floating-ip", azure + "load-balancer-health-probe-request-path", azure + "load-balancer-ipv4",
		azure + "pip-name", azure + "pls-create", "service.beta.kubernetes.io/port_80_health-probe_interval"}
	if got := IgnoredAnnotations(s); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	s.Spec.Type = v1.ServiceTypeClusterIP
	if got := IgnoredAnnotations(s); got != nil {
		t.Errorf("of a Service without a load balancer: %q", got)
	}
}
