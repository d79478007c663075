package netns_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/testing/netnstest"
)

// holds checks which of the strings are in a text.
func holds(t *testing.T, got string, want, never []string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("no %q", w)
		}
	}
	for _, w := range never {
		if strings.Contains(got, w) {
			t.Errorf("there is %q", w)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
}

// TestApply brings one namespace through states, one after the other, and looks with ip(8).
func TestApply(t *testing.T) {
	a, _ := netnstest.Pair(t)
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	netnstest.Run(t, a, "ip", "route", "add", "192.168.9.0/24", "via", "10.9.0.2") // not ours
	netnstest.Run(t, a, "ip", "rule", "add", "pref", "77", "lookup", "77")
	base := []netns.Address{{Link: "eth0", Prefix: prefix("10.9.0.1/24")}}
	first := netns.State{
		Sysctls: []netns.Sysctl{{Key: "net/ipv4/ip_forward", Value: "1"}, {Key: "net/ipv4/conf/eth0/proxy_arp", Value: "1"}},
		Links:   []string{"eth0", "lo"},
		Addresses: append([]netns.Address{{Link: "lo", Prefix: prefix("10.1.0.1/32"), Scope: "host"},
			{Link: "lo", Prefix: prefix("fd00::1/128")}}, base...),
		Routes: []netns.Route{
			{Destination: prefix("0.0.0.0/0"), Gateway: addr("10.77.0.1"), Link: "eth0", OnLink: true},
			{Destination: prefix("10.2.0.5/32"), Link: "eth0"},
			{Destination: prefix("10.3.0.0/16"), Kind: "blackhole"},
			{Table: 1001, Destination: prefix("0.0.0.0/0"), Gateway: addr("10.9.0.2"), Link: "eth0"},
			{Destination: prefix("fd01::/64"), Link: "eth0"},
		},
		Rules: []netns.Rule{{Priority: 1000, Mark: 1, Mask: 0xffffffff, Table: 1001},
			{Priority: 1001, From: prefix("10.4.0.0/16"), Table: 1001}},
		Neighbours: []netns.Neighbour{{Link: "eth0", Address: addr("10.77.0.1"), MAC: "00:0d:3a:00:00:77"},
			{Link: "eth0", Address: addr("10.2.0.5"), MAC: "00:0d:3a:00:00:05"}},
	}
	second := netns.State{
		Links:     []string{"eth0", "lo"},
		Addresses: append([]netns.Address{{Link: "lo", Prefix: prefix("10.1.0.2/32")}}, base...),
		Routes: []netns.Route{
			{Destination: prefix("0.0.0.0/0"), Gateway: addr("10.77.0.2"), Link: "eth0", OnLink: true},
			{Table: 1002, Destination: prefix("0.0.0.0/0"), Gateway: addr("10.9.0.2"), Link: "eth0"},
		},
		Rules:      []netns.Rule{{Priority: 1000, Mark: 2, Mask: 0xffffffff, Table: 1002}},
		Neighbours: []netns.Neighbour{{Link: "eth0", Address: addr("10.77.0.1"), MAC: "00:0d:3a:00:00:99"}},
	}
	look := func() string { // without what the kernel makes by itself, some of it only after it has looked for duplicates
		return netnstest.Run(t, a, "sh", "-c", "{ ip -o addr; ip route show table all; ip -6 route; ip rule; ip neigh show nud permanent;"+
			" sysctl net.ipv4.ip_forward net.ipv4.conf.eth0.proxy_arp; } | grep -vE '^(local|broadcast|multicast) |fe80:'")
	}
	foreign := []string{"192.168.9.0/24 via 10.9.0.2 dev eth0", "77:\tfrom all lookup 77", "10.9.0.1/24"}
	old := []string{
		"10.1.0.1/32 scope host lo", "fd00::1/128", "default via 10.77.0.1 dev eth0 proto 142 onlink", "10.2.0.5 dev eth0 proto 142 scope link",
		"blackhole 10.3.0.0/16",
		"default via 10.9.0.2 dev eth0 table 1001", "fd01::/64", "from all fwmark 0x1 lookup 1001", "from 10.4.0.0/16 lookup 1001",
		"10.2.0.5 dev eth0 lladdr 00:0d:3a:00:00:05 PERMANENT", "10.77.0.1 dev eth0 lladdr 00:0d:3a:00:00:77 PERMANENT",
	}
	now := []string{"10.1.0.2/32 scope global lo", "default via 10.77.0.2 dev eth0 proto 142 onlink",
		"default via 10.9.0.2 dev eth0 table 1002", "from all fwmark 0x2 lookup 1002", "10.77.0.1 dev eth0 lladdr 00:0d:3a:00:00:99 PERMANENT"}
	netnstest.Apply(t, a, first)
	one := look()
	holds(t, one, slices.Concat(foreign, old, []string{"ip_forward = 1", "proxy_arp = 1"}), now)
	netnstest.Apply(t, a, first)
	if two := look(); two != one {
		t.Errorf("applied twice is not applied once:\n%s\n%s", one, two)
	}
	netnstest.Apply(t, a, second)
	holds(t, look(), slices.Concat(foreign, now), old)
	netnstest.Apply(t, a, netns.State{Protocol: 16,
		Routes: []netns.Route{{Destination: prefix("10.5.0.0/16"), Gateway: addr("10.9.0.2"), Link: "eth0"}}})
	holds(t, look(), append(now, "10.5.0.0/16 via 10.9.0.2 dev eth0 proto dhcp"), nil)
	netnstest.Apply(t, a, netns.State{})
	holds(t, look(), append(foreign, "proto dhcp"), []string{"proto 142", "fwmark"})
}

func TestApplyRefuses(t *testing.T) {
	a, _ := netnstest.Pair(t)
	nowhere := netns.State{Routes: []netns.Route{{Destination: netip.MustParsePrefix("10.2.0.5/32"), Link: "nope"}}}
	if err := a.Apply(nowhere); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("route over no link: %v", err)
	}
	if err := a.Apply(netns.State{Sysctls: []netns.Sysctl{{Key: "net/ipv4/nope", Value: "1"}}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("unknown sysctl: %v", err)
	}
}

// TestApplyNeighbours: a neighbour whose link-layer address changes has the new one, and one that moves to another link is no longer on the
// first.
func TestApplyNeighbours(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := netnstest.Create(t, t.TempDir()+"/a")
	for _, link := range []string{"d0", "d1"} {
		netnstest.Run(t, ns, "ip", "link", "add", link, "up", "type", "bridge")
	}
	there := netip.MustParseAddr("10.9.0.7")
	for _, want := range []netns.Neighbour{
		{Link: "d0", Address: there, MAC: "00:0d:3a:00:00:01"}, {Link: "d0", Address: there, MAC: "00:0d:3a:00:00:02"},
		{Link: "d1", Address: there, MAC: "00:0d:3a:00:00:02"},
	} {
		netnstest.Apply(t, ns, netns.State{Links: []string{"d0", "d1"}, Neighbours: []netns.Neighbour{want}})
		got := strings.TrimSpace(netnstest.Run(t, ns, "ip", "neigh", "show", "nud", "permanent", there.String()))
		if want := fmt.Sprintf("%s dev %s lladdr %s PERMANENT", there, want.Link, want.MAC); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
