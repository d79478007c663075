package nftables

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/conntrack"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/nftables"
)

// oneNode is a host with the rules of a namespace. Pods are behind one link, all other hosts behind another.
type oneNode struct{ node snapshot.Host }

func (n *oneNode) Host(string) (*snapshot.Host, error) { return &n.node, nil }
func (*oneNode) Names() []string                       { return []string{"node"} }
func (*oneNode) Objects() snapshot.Objects             { return snapshot.Objects{} }

func nodeWith(t *testing.T, ns *netns.Namespace) *oneNode {
	t.Helper()
	text, err := program.Command{Path: "nft", Args: []string{"-j", "list", "ruleset"}, In: ns.Do}.Output(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := nftables.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := nftables.Lower(parsed)
	if err != nil {
		t.Fatal(err)
	}
	n := &oneNode{snapshot.Host{Name: "node", FIB: &fib.State{}, Rules: &netfilter.Ruleset{Tables: tables}, Flows: conntrack.NewTable(nil),
		Sysctls: map[string]string{"net.ipv4.ip_forward": "1"}}}
	for i, link := range []struct{ name, address, routes string }{
		{"lo", "127.0.0.1/8", ""}, {"eth0", "10.13.0.4/24", "0.0.0.0/0"}, {"pods", "10.1.255.1/32", "10.1.0.0/16"},
	} {
		f := n.node.FIB
		l := fib.Link{Name: link.name, Index: i + 1, Up: true, LowerUp: true, Type: "ether", MAC: packet.MAC{2, 0, 0, 0, 0, byte(i)}}
		if i == 0 {
			l.Type, l.MAC = "loopback", packet.MAC{}
		}
		f.Links = append(f.Links, l)
		n.node.Sysctls["net.ipv4.conf."+link.name+".forwarding"] = "1"
		p := netip.MustParsePrefix(link.address)
		f.Addresses = append(f.Addresses, fib.Address{Link: link.name, Prefix: p, Scope: "global"})
		f.Routes = append(f.Routes, fib.Route{Table: fib.TableLocal, Type: "local", Destination: netip.PrefixFrom(p.Addr(), 32),
			Link: link.name, Source: p.Addr(), Scope: "host"})
		if link.routes != "" {
			f.Routes = append(f.Routes, fib.Route{Table: fib.TableMain, Type: "unicast", Destination: netip.MustParsePrefix(link.routes),
				Link: link.name, Scope: "link"})
		}
	}
	n.node.FIB.Index()
	n.node.Rules.Index()
	return n
}

// walked returns where a packet goes, by which probability, as sorted lines.
func (n *oneNode) walked(t *testing.T, request walk.Request) []string {
	t.Helper()
	r, err := walk.Walk(n, request)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		if o.Probability == nil {
			t.Fatalf("%v: a choice by unknown odds", request.Packet.Tuple)
		}
		lines = append(lines, fmt.Sprintf("%s %s %v %s", o.Probability.RatString(), o.End.Kind, o.End.Packet.Tuple, o.End.Reject))
	}
	slices.Sort(lines)
	return lines
}

// firstPacket requests the walk of a flow's first packet: the node's own, or one that comes in by eth0.
func firstPacket(protocol packet.Protocol, from netip.Addr, to netip.AddrPort) walk.Request {
	r := walk.Request{Host: "node", OneWay: true, Packet: packet.Packet{Tuple: packet.Tuple{Protocol: protocol, Source: from,
		Destination: to.Addr(), SourcePort: packet.Exactly(4000), DestinationPort: packet.Exactly(to.Port())}}}
	if from != netip.MustParseAddr("10.13.0.4") {
		r.Arrives, r.Forwarded = "eth0", true
	}
	if protocol == packet.TCP {
		r.Packet.TCPFlags = packet.SYN
	}
	return r
}

// randomPackets requests walks of packets for names that random worlds have, from a pod, from outside and from the node itself.
func randomPackets(r *rand.Rand, n int) (requests []walk.Request) {
	for range n {
		to := netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", 1+r.IntN(6))), uint16(80+r.IntN(3)))
		switch r.IntN(3) {
		case 0:
			to = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("%s.%d", []string{"203.0.113", "198.51.100"}[r.IntN(2)], r.IntN(3))), to.Port())
		case 1:
			to = netip.AddrPortFrom(netip.MustParseAddr("10.13.0.4"), uint16(30000+r.IntN(5)))
		}
		from := []string{"10.13.0.4", "198.51.100.77", "10.1.0.77"}[r.IntN(3)]
		request := firstPacket([]packet.Protocol{packet.TCP, packet.UDP, packet.SCTP}[r.IntN(3)], netip.MustParseAddr(from), to)
		if from == "10.1.0.77" {
			request.Arrives = "pods"
		}
		requests = append(requests, request)
	}
	return requests
}

// TestEachStateForwards: if a change, or a comparison with what is there, goes in as many transactions as can be, each packet goes in each
// state between as before or as after.
func TestEachStateForwards(t *testing.T) {
	config := proxy.Config{Family: service.IPv4, MasqueradeBit: 14}
	config.Detector.CIDR = netip.MustParsePrefix("10.1.0.0/16")
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 77))
			w := &randomWorld{r: r, services: map[int]*corev1.Service{}, slices: map[int]*discoveryv1.EndpointSlice{}}
			ns := namespace(t, "ns")
			packets := randomPackets(r, 30)
			goes := func() (all [][]string) {
				n := nodeWith(t, ns)
				for _, p := range packets {
					all = append(all, n.walked(t, p))
				}
				return all
			}
			kernel := &hookedKernel{Kernel: nftablesIn(t, ns)}
			s := NewSyncer(config, NewRules(kernel))
			for change := range 6 {
				for range 4 {
					w.change()
				}
				before := goes()
				var between [][][]string
				if kernel.after = func() { between = append(between, goes()) }; change == 0 {
					kernel.after = nil
				}
				if s.most = 1; change%2 == 1 {
					s = NewSyncer(config, NewRules(kernel)) // compares
					s.most = 1
				}
				mustSync(t, s, w.ports())
				kernel.after = nil
				after := goes()
				for i, state := range between {
					for j := range packets {
						if !slices.Equal(state[j], before[j]) && !slices.Equal(state[j], after[j]) {
							t.Errorf("change %d, state %d of %d: %v:\n%s\nbefore:\n%s\nafter:\n%s", change, i, len(between), packets[j].Packet.Tuple,
								strings.Join(state[j], "\n"), strings.Join(before[j], "\n"), strings.Join(after[j], "\n"))
						}
					}
				}
				t.Logf("change %d: %d states", change, len(between))
			}
		})
	}
}

// TestOtherShapeForwards: while a table of another shape is made anew, in as many transactions as can be, each packet goes as before; also
// if one of those is refused, and the next sync goes on.
func TestOtherShapeForwards(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 77))
	w := &randomWorld{r: r, services: map[int]*corev1.Service{}, slices: map[int]*discoveryv1.EndpointSlice{}}
	for range 20 {
		w.change()
	}
	config := proxy.Config{Family: service.IPv4, MasqueradeBit: 14, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}
	config.Detector.CIDR = netip.MustParsePrefix("10.1.0.0/16")
	ns := namespace(t, "ns")
	mustSync(t, syncerIn(t, ns, config), w.ports())
	want := list(t, ns)
	const set = "\tset cluster-ips {\n\t\ttype ipv4_addr\n"
	other := strings.Replace(want, set, set+"\t\tsize 65535\n", 1)
	packets := randomPackets(r, 20)
	var before [][]string
	states, refused, all := 0, -1, 0
	m := &hookedKernel{Kernel: nftablesIn(t, ns)}
	look := func() {
		n := nodeWith(t, ns)
		for i, p := range packets {
			if got := n.walked(t, p); len(before) == i {
				before = append(before, got)
			} else if !slices.Equal(got, before[i]) {
				t.Errorf("state %d: %v:\n%s\nbefore:\n%s", states, p.Packet.Tuple, strings.Join(got, "\n"), strings.Join(before[i], "\n"))
			}
		}
		states++
	}
	refuse := &meddlingKernel{Kernel: m, before: func([]netlink.Message) error {
		if states == refused {
			refused = -1
			return unix.ENOMEM
		}
		return nil
	}}
	for at := -1; at < all; at++ {
		applyNFT(t, ns, "delete table ip %s\n%s", TableName, other)
		states, refused, m.after = 0, at, look
		look()
		s := NewSyncer(config, NewRules(refuse))
		s.most = 1
		_, err := sync(t.Context(), s, w.ports())
		if at > 0 && !errors.Is(err, unix.ENOMEM) {
			t.Errorf("refused in state %d: %v", at, err)
		}
		mustSync(t, s, w.ports())
		if m.after = nil; at < 0 {
			all = states
		}
		t.Logf("refused in state %d: %d states", at, states)
		if got := list(t, ns); !slices.Equal(sortedLines(got), sortedLines(want)) {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	}
}

// hookedKernel is the kernel, but calls after when a transaction has succeeded.
type hookedKernel struct {
	Kernel
	after func()
}

func (w *hookedKernel) Commit(ctx context.Context, messages []netlink.Message, generation uint32) error {
	err := w.Kernel.Commit(ctx, messages, generation)
	if err == nil && w.after != nil {
		w.after()
	}
	return err
}
