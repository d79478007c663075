package nodes

import (
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/testing/netnstest"
)

// TestRepair takes a node's setting and the route to its bridge away: each is named, and Repair makes it again. What Azure's network looks
// after, and the bridge of a CNI plugin of the user's, is left out.
func TestRepair(t *testing.T) {
	ns := netnstest.Create(t, filepath.Join(t.TempDir(), "ns"))
	l := &Nodes{Env: &lifecycle.Env{Dir: layout.Dir(t.TempDir())}}
	l.SetCluster(&cluster.Cluster{})
	l.all = []*Node{{Node: cluster.Node{Name: "n1", Address: netip.MustParseAddr("10.240.0.4")}, ns: ns}}
	netnstest.Script(t, ns, `set -e; echo 1 > /proc/sys/net/ipv4/ip_forward
		ip link add cbr0 type bridge; ip addr add 10.244.0.1/24 dev cbr0; ip link set cbr0 up
		ip link add eth0 type bridge; ip addr add 10.240.0.4/16 dev eth0; ip link set eth0 up`)
	if got := l.missing(l.all[0]); len(got) > 0 {
		t.Fatalf("missing at the start: %q", got)
	}
	netnstest.Script(t, ns, "ip route del 10.240.0.0/16")
	for _, c := range []struct{ name, remove, want string }{
		{"forwarding", "echo 0 > /proc/sys/net/ipv4/ip_forward", "n1: setting net/ipv4/ip_forward=1 is missing"},
		{"route to the bridge", "ip route del 10.244.0.0/24", "n1: route 10.244.0.0/24 dev cbr0 is missing"},
		{"route to the bridge itself", "ip route del local 10.244.0.1 dev cbr0 table local", "n1: route local 10.244.0.1 dev cbr0 is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			netnstest.Script(t, ns, c.remove)
			if got := l.missing(l.all[0]); !slices.Equal(got, []string{c.want}) {
				t.Errorf("missing: %q, want %q", got, c.want)
			}
			if got, err := l.Repair(t.Context()); err != nil || !slices.Equal(got, []string{c.want}) {
				t.Errorf("repaired: %q, %v", got, err)
			}
			if got := l.missing(l.all[0]); len(got) > 0 {
				t.Errorf("missing after the repair: %q", got)
			}
		})
	}
	netnstest.Script(t, ns, "ip route del 10.244.0.0/24")
	other := &cluster.Cluster{}
	other.Spec.Network.Plugin = cluster.PluginNone
	l.SetCluster(other)
	if got := l.missing(l.all[0]); len(got) > 0 {
		t.Errorf("missing of a plugin of the user's: %q", got)
	}
}

// TestRepairLocalDNS takes the link of a node's DNS cache away, or an address of it: each is named, and Repair makes it again.
func TestRepairLocalDNS(t *testing.T) {
	ns := netnstest.Create(t, filepath.Join(t.TempDir(), "ns"))
	l := &Nodes{Env: &lifecycle.Env{Dir: layout.Dir(t.TempDir())}}
	c := &cluster.Cluster{}
	c.Spec.NodeOptions.LocalDNS = true
	l.SetCluster(c)
	n := &Node{Node: cluster.Node{Name: "n1", Address: netip.MustParseAddr("10.240.0.4"), Runtime: cluster.RuntimeContainerd}, ns: ns}
	l.all = []*Node{n}
	netnstest.Script(t, ns, "echo 1 > /proc/sys/net/ipv4/ip_forward")
	for _, c := range []struct{ name, remove, want string }{
		{"no link yet", "true", "n1: link localdns is missing"},
		{"the link", "ip link del localdns", "n1: link localdns is missing"},
		{"an address", "ip addr del 169.254.10.11/32 dev localdns", "n1: address 169.254.10.11 dev localdns is missing"},
		{"its state", "ip link set localdns down", "n1: state up of link localdns is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			netnstest.Script(t, ns, c.remove)
			if got := l.missing(n); !slices.Equal(got, []string{c.want}) {
				t.Errorf("missing: %q, want %q", got, c.want)
			}
			if got, err := l.Repair(t.Context()); err != nil || !slices.Equal(got, []string{c.want}) {
				t.Errorf("repaired: %q, %v", got, err)
			}
			if got := l.missing(n); len(got) > 0 {
				t.Errorf("missing after the repair: %q", got)
			}
		})
	}
	n.Runtime = cluster.RuntimeSimulated
	netnstest.Script(t, ns, "ip link del localdns")
	if got := l.missing(n); len(got) > 0 {
		t.Errorf("missing of a simulated node: %q", got)
	}
}
