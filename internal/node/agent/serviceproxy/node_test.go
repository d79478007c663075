package serviceproxy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/service"
)

func TestNodeEligibility(t *testing.T) {
	now := metav1.Now()
	deleting, tainted := &corev1.Node{}, &corev1.Node{}
	deleting.DeletionTimestamp = &now
	tainted.Spec.Taints = []corev1.Taint{{Key: toBeDeleted}}
	for name, c := range map[string]struct {
		node *corev1.Node
		want bool
	}{"there": {&corev1.Node{}, true}, "none": {nil, false}, "deleting": {deleting, false}, "tainted": {tainted, false}} {
		if got := eligible(c.node); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestWhatTheNodeSays: its pods' ranges and its own address become part of the rules when they are known, and not before; without its
// object they stay.
func TestWhatTheNodeSays(t *testing.T) {
	node := func(ips []string, pods ...string) *corev1.Node {
		n := &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: pods}}
		for _, ip := range ips {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
		}
		return n
	}
	for _, c := range []struct {
		name    string
		options options.Options
		node    *corev1.Node
		family  service.Family
		had     string // its own address, before
		pods    string // "": no range
		own     string
		ports   string // "all", or addresses
		err     string
	}{
		{name: "pods of the node", options: options.Options{PodsOfNode: true}, node: node(nil, "10.1.0.0/24", "fd00::/64"), family: service.IPv6,
			pods: "fd00::/64", ports: "all"},
		{name: "pods of the other family", options: options.Options{PodsOfNode: true}, node: node(nil, "10.1.0.0/24"), family: service.IPv6,
			ports: "all"},
		{name: "no pods yet", options: options.Options{PodsOfNode: true}, node: node(nil), family: service.IPv4, err: "spec.podCIDRs"},
		{name: "no node yet", options: options.Options{PodsOfNode: true}, family: service.IPv4, err: "spec.podCIDRs"},
		{name: "primary", options: options.Options{NodePortPrimary: true}, node: node([]string{"127.0.0.1"}), family: service.IPv4, own: "127.0.0.1",
			ports: "127.0.0.1"},
		{name: "primary of the other family", options: options.Options{NodePortPrimary: true}, node: node([]string{"127.0.0.1"}), family: service.IPv6,
			ports: "all"},
		{name: "primary, not known yet", options: options.Options{NodePortPrimary: true}, family: service.IPv4},
		{name: "primary, known before", options: options.Options{NodePortPrimary: true}, family: service.IPv4, had: "127.0.0.1", own: "127.0.0.1",
			ports: "127.0.0.1"},
		{name: "bind address", options: options.Options{NodePortPrimary: true, NodeIP: netip.MustParseAddr("127.0.0.1")},
			node: node([]string{"10.0.0.9"}), family: service.IPv4, own: "127.0.0.1", ports: "127.0.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &family{common: &common{Config: Config{Options: c.options}}, Family: c.family}
			if c.had != "" {
				f.config.NodeIP = netip.MustParseAddr(c.had)
			}
			err := f.configure(kube.Delta{Node: c.node})
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v, want %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			text := func(valid bool, s string) string {
				if valid {
					return s
				}
				return ""
			}
			ports := "all"
			if f.config.NodePortIPs != nil {
				ports = ""
				for _, ip := range f.config.NodePortIPs {
					ports += ip.String()
				}
			}
			got := [3]string{text(f.config.Detector.CIDR.IsValid(), f.config.Detector.CIDR.String()), text(f.config.NodeIP.IsValid(),
				f.config.NodeIP.String()), ports}
			if want := [3]string{c.pods, c.own, c.ports}; got != want {
				t.Errorf("pods, own address, node ports: %q, want %q", got, want)
			}
			f.triggered = map[service.Key]time.Time{}
			if err := f.configure(kube.Delta{}); err != nil || c.pods != "" && f.config.Detector.CIDR.String() != c.pods {
				t.Errorf("once there are rules, without the node: pods %s, %v", f.config.Detector.CIDR, err)
			}
		})
	}
}

func TestServiceCIDRs(t *testing.T) {
	object := func(cidrs ...string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
	}
	objects := []*networkingv1.ServiceCIDR{object("10.9.0.0/16", "fd01::/112"), object("10.0.0.0/16"), object("10.9.0.0/16", "nonsense")}
	for f, want := range map[service.Family]string{service.IPv4: "[10.0.0.0/16 10.9.0.0/16]", service.IPv6: "[fd01::/112]"} {
		if got := fmt.Sprint(serviceCIDRs(f, objects)); got != want {
			t.Errorf("%s: %s, want %s", f, got, want)
		}
	}
}
