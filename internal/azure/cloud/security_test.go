package cloud_test

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/azure/cloud"
	"packetwalk.dev/internal/azure/vnet"
)

const group = "aks-agentpool-31351229-nsg"

// rules returns the group's rules, one a line: priority name access source → destination ports.
func (w *network) rules() string {
	var b strings.Builder
	for _, r := range w.n.SecurityGroups[0].Rules {
		fmt.Fprintf(&b, "%d %s %s %s %s %s → %s %v\n", r.Priority, strings.TrimPrefix(r.Name, name), r.Direction, r.Access, r.Protocol,
			strings.Join(r.Sources, ","), strings.Join(r.Destinations, ","), r.DestinationPorts)
	}
	return b.String()
}

// TestSecurityRules: a Service's rules in the nodes' group come, change with the Service, and go with it; others stay, with their
// priorities.
func TestSecurityRules(t *testing.T) {
	n := newNetwork(t, vnet.SKUBasic)
	n.n.SecurityGroups = []vnet.SecurityGroup{{Name: group, Rules: []vnet.SecurityRule{
		{Name: "own", Priority: 501, Direction: vnet.DirectionOutbound, Access: vnet.AccessDeny, Protocol: vnet.Any},
	}}}
	lb, _ := cloud.New(n, nil, group, nil).LoadBalancer()
	const own = "501 own Outbound Deny *  →  []\n"
	ranges := func(edit func(*v1.Service)) func(*v1.Service) {
		return func(s *v1.Service) {
			s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.80/32", "198.51.100.0/28"}
			edit(s)
		}
	}
	annotate := func(key, value string) func(*v1.Service) {
		return func(s *v1.Service) {
			if s.Annotations == nil {
				s.Annotations = map[string]string{}
			}
			s.Annotations[key] = value
		}
	}
	for _, step := range []struct {
		name string
		edit func(*v1.Service)
		want string
	}{
		{"everyone", nil, own + "500 -TCP-80-Internet Inbound Allow Tcp Internet → 203.0.113.10 [80]\n"},
		{"once more", nil, own + "500 -TCP-80-Internet Inbound Allow Tcp Internet → 203.0.113.10 [80]\n"},
		{"two ports", func(s *v1.Service) {
			s.Spec.Ports = append([]v1.ServicePort{{Name: "dns", Protocol: v1.ProtocolUDP, Port: 53, NodePort: 30053}}, s.Spec.Ports...)
		}, own + "500 -TCP-80-Internet Inbound Allow Tcp Internet → 203.0.113.10 [80]\n502 -UDP-53-Internet Inbound Allow Udp Internet → 203.0.113.10 [53]\n"},
		{"ranges", ranges(func(*v1.Service) {}), own + "500 -TCP-80-198.51.100.0_28 Inbound Allow Tcp 198.51.100.0/28 → 203.0.113.10 [80]\n" +
			"502 -TCP-80-198.51.100.80_32 Inbound Allow Tcp 198.51.100.80/32 → 203.0.113.10 [80]\n"},
		{"only these ranges", ranges(annotate("service.beta.kubernetes.io/azure-deny-all-except-load-balancer-source-ranges", "true")),
			own + "500 -TCP-80-198.51.100.0_28 Inbound Allow Tcp 198.51.100.0/28 → 203.0.113.10 [80]\n" +
				"502 -TCP-80-198.51.100.80_32 Inbound Allow Tcp 198.51.100.80/32 → 203.0.113.10 [80]\n503 -TCP-80-deny_all Inbound Deny Tcp * → 203.0.113.10 [80]\n"},
		{"annotation", annotate("service.beta.kubernetes.io/azure-allowed-ip-ranges", "198.51.100.10/32 , 198.51.100.0/30"),
			own + "500 -TCP-80-198.51.100.10_32 Inbound Allow Tcp 198.51.100.10/32 → 203.0.113.10 [80]\n" +
				"502 -TCP-80-198.51.100.0_30 Inbound Allow Tcp 198.51.100.0/30 → 203.0.113.10 [80]\n"},
		{"tag", annotate("service.beta.kubernetes.io/azure-allowed-service-tags", "VirtualNetwork"),
			own + "500 -TCP-80-VirtualNetwork Inbound Allow Tcp VirtualNetwork → 203.0.113.10 [80]\n"},
		{"another address", func(s *v1.Service) { s.Spec.LoadBalancerIP = "203.0.113.77" },
			own + "500 -TCP-80-Internet Inbound Allow Tcp Internet → 203.0.113.77 [80]\n"},
	} {
		if _, err := lb.EnsureLoadBalancer(t.Context(), "kubernetes", service("whereami", uid, step.edit), nodes("node0")); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := n.rules(); got != step.want {
			t.Errorf("%s:\n%swant\n%s", step.name, got, step.want)
		}
		if err := n.n.Validate(); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
	}
	if err := lb.EnsureLoadBalancerDeleted(t.Context(), "kubernetes", service("whereami", uid, nil)); err != nil {
		t.Fatal(err)
	}
	if got := n.rules(); got != own {
		t.Errorf("after deletion:\n%s", got)
	}
}

// TestSecurityRefused: what Azure's cloud provider, or the lab, has no rule for is an error and changes nothing.
func TestSecurityRefused(t *testing.T) {
	for want, edit := range map[string]func(*v1.Service){
		"write one of them": func(s *v1.Service) {
			s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/28"}
			s.Annotations = map[string]string{"service.beta.kubernetes.io/azure-allowed-ip-ranges": "198.51.100.0/28"}
		},
		`"nowhere" is no IPv4 range`: func(s *v1.Service) {
			s.Annotations = map[string]string{"service.beta.kubernetes.io/azure-allowed-ip-ranges": "nowhere"}
		},
		`not "Storage"`: func(s *v1.Service) {
			s.Annotations = map[string]string{"service.beta.kubernetes.io/azure-allowed-service-tags": "Storage"}
		},
	} {
		n := newNetwork(t, vnet.SKUBasic)
		n.n.SecurityGroups = []vnet.SecurityGroup{{Name: group}}
		lb, _ := cloud.New(n, nil, group, nil).LoadBalancer()
		_, err := lb.EnsureLoadBalancer(t.Context(), "kubernetes", service("whereami", uid, edit), nodes("node0"))
		if err == nil || !strings.Contains(err.Error(), want) || n.rules() != "" {
			t.Errorf("%v, want %q; rules %q", err, want, n.rules())
		}
	}
}
