package cli

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/conntrack"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/syntax/iptables"
)

// TestChoose: a number, an address, a host and the label of a choice pick outcomes.
func TestChoose(t *testing.T) {
	outcome := func(to, node, label string) walk.Outcome {
		a := netip.MustParseAddrPort(to)
		p := packet.Packet{Tuple: packet.Tuple{Protocol: packet.TCP, Destination: a.Addr(), DestinationPort: packet.Exactly(a.Port())}}
		return walk.Outcome{
			There: []walk.Step{{Host: node}}, End: walk.End{Kind: walk.Delivered, Host: "pod/default/p" + to, Packet: p},
			Choices: []walk.Chosen{{Choice: netfilter.Choice{Options: []netfilter.Option{{Label: label}}}}},
		}
	}
	all := []walk.Outcome{
		outcome("10.0.0.1:80", "node/a", "0"), outcome("10.0.0.2:80", "node/a", "1"), outcome("10.0.0.1:80", "node/b", "2"),
	}
	for word, want := range map[string][]int{
		"2": {2}, "10.0.0.1": {1, 3}, "10.0.0.2:80": {2}, "node/a": {1, 2}, "b": {3}, "pod/default/p10.0.0.2:80": {2},
	} {
		r := &walk.Result{Outcomes: slices.Clone(all)}
		got, err := choose(r, word, &snapshot.Objects{}, nil)
		if err != nil || !slices.Equal(got, want) || len(r.Outcomes) != len(want) {
			t.Errorf("%s: %v, %v; want %v", word, got, err, want)
		}
	}
	for _, word := range []string{"0", "4", "10.0.0.3", ""} {
		_, err := choose(&walk.Result{Outcomes: slices.Clone(all)}, word, &snapshot.Objects{}, []string{"one end", "other end"})
		if err == nil || !strings.Contains(err.Error(), "1: one end\n2: other end") {
			t.Errorf("%q: %v", word, err)
		}
	}
}

// pieces is a source whose hosts are read on demand: a service has an endpoint on each of three nodes.
type pieces struct{ hosts map[string]bool }

func (p *pieces) more(_ context.Context, hosts []string) (read bool) {
	for _, h := range hosts {
		read = read || !p.hosts[h]
		p.hosts[h] = true
	}
	return read
}

func (p *pieces) Names() []string { return []string{"node/a", "node/b", "node/c", "node/d"} }

func (p *pieces) Objects() (o snapshot.Objects) {
	for i, name := range []string{"a", "b", "c", "d"} {
		o.Nodes = append(o.Nodes, snapshot.Node{Name: name, IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}})
		o.Pods = append(o.Pods, snapshot.Pod{Namespace: "shop", Name: "web-" + name, Node: name,
			IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i + 1), 9})}})
	}
	return o
}

// Host is a node with a card; a has rules that send what is for 10.96.0.1 to a pod on one of the others. d never becomes readable.
func (p *pieces) Host(name string) (*snapshot.Host, error) {
	at := slices.Index(p.Names(), name)
	if at < 0 {
		return nil, snapshot.NotFound(name, nil)
	}
	if !p.hosts[name] || name == "node/d" {
		return nil, &snapshot.UnreadError{Host: name, Err: errors.New("hung")}
	}
	address := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(at + 1)}), 24)
	f := &fib.State{
		Links:     []fib.Link{{Name: "lo", Index: 1, Up: true, Type: "loopback"}, {Name: "eth0", Index: 2, Up: true, Type: "ether"}},
		Addresses: []fib.Address{{Link: "eth0", Prefix: address, Scope: "global"}},
		Routes: []fib.Route{
			{Table: fib.TableLocal, Type: "local", Destination: netip.PrefixFrom(address.Addr(), 32), Link: "eth0", Scope: "host"},
			{Table: fib.TableMain, Type: "unicast", Destination: netip.MustParsePrefix("0.0.0.0/0"), Link: "eth0",
				Gateway: netip.MustParseAddr("10.0.0.254")},
		},
	}
	f.Index()
	h := &snapshot.Host{Name: name, FIB: f, Rules: &netfilter.Ruleset{}, Flows: conntrack.NewTable(nil),
		Sysctls: map[string]string{"net.ipv4.ip_forward": "1"}}
	if name == "node/a" {
		tables, err := iptables.Parse([]byte(`*nat
:OUTPUT ACCEPT [0:0]
-A OUTPUT -d 10.96.0.1/32 -m statistic --mode random --probability 0.33333 -j DNAT --to-destination 10.0.2.9
-A OUTPUT -d 10.96.0.1/32 -m statistic --mode random --probability 0.5 -j DNAT --to-destination 10.0.3.9
-A OUTPUT -d 10.96.0.1/32 -j DNAT --to-destination 10.0.4.9
COMMIT
`))
		if err != nil {
			return nil, err
		}
		if h.Rules.Tables, err = iptables.Lower(tables, netfilter.IPv4, netfilter.IPTablesNFT); err != nil {
			return nil, err
		}
	}
	h.Rules.Index()
	return h, nil
}

// TestReadOnDemand: only the hosts of the outcomes that --choose may pick are read, and one that cannot be read is an outcome of its own.
func TestReadOnDemand(t *testing.T) {
	for word, want := range map[string]string{
		"":                 "node/a node/b node/c node/d",
		"1":                "node/a node/b",
		"2":                "node/a node/b node/c",
		"10.0.3.9":         "node/a node/c",
		"pod/shop/web-b":   "node/a node/b",
		"web-b":            "node/a node/b",
		"c":                "node/a node/c",
		"fits none so far": "node/a node/b node/c node/d",
	} {
		p := &pieces{hosts: map[string]bool{}}
		w := &world{Source: p, more: p.more}
		request := walk.Request{Host: "node/a", Packet: packet.Packet{TCPFlags: packet.SYN, Tuple: packet.Tuple{Protocol: packet.TCP,
			Destination: netip.MustParseAddr("10.96.0.1"), DestinationPort: packet.Exactly(80)}}}
		r, err := w.predict(t.Context(), request, word)
		if err != nil || len(r.Outcomes) != 3 {
			t.Fatalf("%q: %+v, %v", word, r, err)
		}
		if got := strings.Join(slices.Sorted(maps.Keys(p.hosts)), " "); got != want {
			t.Errorf("%q: %s were read, want %s", word, got, want)
		}
		if !undecided(r) || r.Outcomes[2].End.Why != "node/d is not read: hung" {
			t.Errorf("%q: %+v", word, r.Outcomes[2].End)
		}
	}
	p := &pieces{hosts: map[string]bool{}}
	w := &world{Source: p, more: p.more}
	destination := packet.Tuple{Protocol: packet.TCP, Destination: netip.MustParseAddr("10.96.0.1")}
	_, err := w.predict(t.Context(), walk.Request{Host: "node/d", Packet: packet.Packet{Tuple: destination}}, "")
	if err == nil || err.Error() != "node/d is not read: hung" {
		t.Errorf("the sender is not read: %v", err)
	}
}

// TestUndecided: a walk is undecided where an end, or which way is taken, is not known.
func TestUndecided(t *testing.T) {
	ends := func(kinds ...walk.EndKind) *walk.Result {
		r := &walk.Result{}
		for _, k := range kinds {
			r.Outcomes = append(r.Outcomes, walk.Outcome{End: walk.End{Kind: k}})
		}
		return r
	}
	reply := ends(walk.Delivered)
	reply.Outcomes[0].BackEnd = &walk.End{Kind: walk.Undecided}
	chosen := ends(walk.Delivered)
	chosen.Outcomes[0].Choices = []walk.Chosen{{Choice: netfilter.Choice{Kind: netfilter.Unknown}}}
	open := ends(walk.Delivered, walk.Delivered)
	open.Outcomes[1].Choices = chosen.Outcomes[0].Choices
	for i, test := range []struct {
		result *walk.Result
		want   bool
	}{
		{ends(walk.Delivered), false}, {ends(walk.Dropped, walk.Left), false}, {ends(walk.Delivered, walk.Undecided), true},
		{reply, true}, {chosen, false}, {open, true},
	} {
		if got := undecided(test.result); got != test.want {
			t.Errorf("%d: %v", i, got)
		}
	}
}
