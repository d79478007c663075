package netns_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/testing/netnstest"
)

// TestHalfMadePair: ends that whoever made them did not bring up are brought up the next time; what has an address stays down when it is.
func TestHalfMadePair(t *testing.T) {
	a, b := netnstest.Pair(t)
	netnstest.Run(t, b, "ip", "link", "set", "peer-of-a", "down")
	ensure := func() string {
		t.Helper()
		one, other := netns.LinkEnd{Namespace: a, Name: "eth0"}, netns.LinkEnd{Namespace: b, Name: "peer-of-a"}
		if err := netns.EnsureVeth(one, other, 1400); err != nil {
			t.Fatal(err)
		}
		return netnstest.Run(t, b, "ip", "-br", "link", "show", "peer-of-a")
	}
	if out := ensure(); !strings.Contains(out, "DOWN") {
		t.Errorf("a link with an address was brought up: %s", out)
	}
	netnstest.Run(t, b, "ip", "addr", "flush", "dev", "peer-of-a")
	if out := ensure(); !strings.Contains(out, "UP,LOWER_UP") {
		t.Errorf("a bare link was not brought up: %s", out)
	}
}

func TestSockets(t *testing.T) {
	a, b := netnstest.Pair(t)
	l, err := b.Listen(t.Context(), "tcp", "10.9.0.2:80")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, c.RemoteAddr())
			c.Close()
		}
	}()
	netnstest.Apply(t, a, netns.State{Addresses: []netns.Address{{Link: "lo", Prefix: netip.MustParsePrefix("10.9.0.77/32")}}})
	for _, local := range []netip.Addr{{}, netip.MustParseAddr("10.9.0.77")} {
		c, err := a.DialFrom(t.Context(), "tcp", local, "10.9.0.2:80")
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(c)
		c.Close()
		want := "10.9.0.1:"
		if local.IsValid() {
			want = local.String() + ":"
		}
		if !strings.HasPrefix(string(got), want) {
			t.Errorf("came from %s, want %s", got, want)
		}
	}
	if _, err := a.Dial(t.Context(), "tcp", "name:80"); err == nil {
		t.Error("dialled a name")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.Dial(ctx, "tcp", "10.9.0.99:80"); !errors.Is(err, context.DeadlineExceeded) && !os.IsTimeout(err) &&
		!errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("dial to nobody: %v", err)
	}
	p, err := b.ListenPacket(t.Context(), "udp", "10.9.0.2:53")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	u, err := a.Dial(t.Context(), "udp", "10.9.0.2:53")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	fmt.Fprint(u, "hello")
	buf := make([]byte, 16)
	p.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, from, err := p.ReadFrom(buf); err != nil || string(buf[:n]) != "hello" || from.(*net.UDPAddr).IP.String() != "10.9.0.1" {
		t.Errorf("got %q from %v, %v", buf[:n], from, err)
	}
}

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

func TestLinks(t *testing.T) {
	a, b := netnstest.Pair(t)
	if got := netnstest.Run(t, b, "ip", "-d", "link", "show", "peer-of-a"); !strings.Contains(got, "mtu 1400") ||
		!strings.Contains(got, "alias the other end") || !strings.Contains(got, "12:34:56:78:9a:bc") {
		t.Error(got)
	}
	// A link of the name that is not the pair's is replaced.
	netnstest.Run(t, b, "ip", "link", "add", "name", "x", "type", "bridge")
	if err := netns.EnsureVeth(netns.LinkEnd{Namespace: a, Name: "eth1"}, netns.LinkEnd{Namespace: b, Name: "x"}, 1500); err != nil {
		t.Fatal(err)
	}
	if got := netnstest.Run(t, b, "ip", "-d", "link", "show", "x"); !strings.Contains(got, "veth") {
		t.Errorf("the bridge of the end's name is still there: %s", got)
	}
	for range 2 {
		if err := a.DeleteLink("eth1"); err != nil {
			t.Error(err)
		}
	}
	if names, err := b.LinkNames(); err != nil || slices.Contains(names, "x") {
		t.Errorf("links %v, %v", names, err)
	}
}

func TestRuleSetsAndFlows(t *testing.T) {
	a, b := netnstest.Pair(t)
	script := "table ip t { chain c { type filter hook prerouting priority 0; ct mark set 7\n }\n }\n"
	if err := ruleset.ApplyNFT(t.Context(), b, script); err != nil {
		t.Fatal(err)
	}
	if err := ruleset.ApplyNFT(t.Context(), b, "flush ruleset\nnonsense\n"); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("bad script: %v", err)
	}
	if dump := netnstest.Run(t, b, "nft", "list", "ruleset"); !strings.Contains(dump, "chain c ") {
		t.Errorf("the failed script changed something: %s", dump)
	}
	if err := ruleset.RestoreIPTables(t.Context(), b, "*filter\n-A INPUT -s 1.2.3.4 -j DROP\nCOMMIT\n", true); err != nil {
		t.Fatal(err)
	}
	if dump := netnstest.Run(t, b, "iptables-save"); !strings.Contains(dump, "-A INPUT -s 1.2.3.4/32 -j DROP") {
		t.Error(dump)
	}
	for port := range 3 {
		l, err := b.Listen(t.Context(), "tcp", fmt.Sprintf("10.9.0.2:%d", 8000+port))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := a.Dial(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	all, err := b.Flows()
	if err != nil || len(all) != 3 {
		t.Fatalf("%v %v", all, err)
	}
	f := all[0]
	if f.Protocol != 6 || f.Source.Addr().String() != "10.9.0.1" || f.ReplyDestination != f.Source || f.Mark != 7 || f.TimeoutSeconds == 0 ||
		f.Status == 0 {
		t.Errorf("flow %+v", f)
	}
	for _, c := range []struct {
		filter netns.FlowFilter
		want   int
	}{
		{netns.FlowFilter{DestinationPort: 8001, Mark: 8, Mask: 0xff}, 0},
		{netns.FlowFilter{Protocol: 17}, 0},
		{netns.FlowFilter{DestinationPort: 8001, Mark: 7, Mask: 0xff}, 1},
		{netns.FlowFilter{Protocol: 6, Destination: netip.MustParsePrefix("10.9.0.0/24")}, 2},
	} {
		if got, err := b.DeleteFlows(c.filter); err != nil || got != c.want {
			t.Errorf("%+v deleted %d, want %d: %v", c.filter, got, c.want, err)
		}
	}
	if n, err := b.DeleteFlows(); n != 0 || err != nil {
		t.Error(n, err)
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
