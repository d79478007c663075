// Package ruletest is for tests of what rules were lowered to: hosts that know little, choosers that take any answer, and an evaluation
// that must not fail. Only tests import it.
package ruletest

import (
	"errors"
	"net/netip"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// Other is a chooser that takes another answer each time.
type Other int

// Choose returns the next answer.
func (o *Other) Choose(c netfilter.Choice) int { *o++; return int(*o) % max(len(c.Options), 1) }

// First is a chooser that notes what it was asked and takes the first answer.
type First struct{ Asked []string }

// Choose notes the question and returns 0.
func (c *First) Choose(q netfilter.Choice) int { c.Asked = append(c.Asked, q.What); return 0 }

// Links is a host with links, by their names, and nothing else.
type Links map[string]netfilter.Link

// Recent finds no list.
func (Links) Recent(string) (netfilter.RecentList, bool) { return nil, false }

// IPSet finds no set.
func (Links) IPSet(string) (*netfilter.Set, bool) { return nil, false }

// AddressType knows no address.
func (Links) AddressType(netip.Addr, string) (netfilter.AddressType, bool) { return 0, false }

// Route knows no route.
func (Links) Route(netfilter.RouteQuery) (netfilter.RouteAnswer, bool) {
	return netfilter.RouteAnswer{}, false
}

// Link returns the link with a name.
func (h Links) Link(name string) (netfilter.Link, bool) { l, ok := h[name]; return l, ok }

// Evaluate runs a few packets through every base chain: nothing may panic, and only runaway jumps may end in an error.
func Evaluate(t *testing.T, tables []*netfilter.Table) {
	t.Helper()
	rs := &netfilter.Ruleset{Tables: tables}
	rs.Index()
	four := packet.Tuple{Protocol: packet.TCP, Source: netip.MustParseAddr("10.0.0.1"), Destination: netip.MustParseAddr("1.2.3.4"),
		SourcePort: packet.OneOf(1000, 2000, 1500), DestinationPort: packet.Exactly(80)}
	six := packet.Tuple{Protocol: packet.ICMPv6, Source: netip.MustParseAddr("fd00::1"), Destination: netip.MustParseAddr("fd00::2"),
		Type: 128}
	packets := []packet.Packet{{Tuple: four,
		Local: packet.Local{In: "eth0", Track: packet.Track{Flow: &packet.Flow{Original: four, Reply: four.Reply()}}}},
		{Tuple: six, Local: packet.Local{Out: "eth0"}},
		{Frame: packet.Frame{ARP: &packet.ARP{Sender: four.Source, Target: four.Destination}}, Local: packet.Local{In: "eth0"}}, {}}
	var chooser Other
	for _, table := range tables {
		for _, c := range table.Chains {
			if c.Base == nil {
				continue
			}
			for _, p := range packets {
				ctx := &netfilter.Context{Packet: &p, Family: table.Family, Hook: c.Base.Hook, Chooser: &chooser, Host: Links{},
					Translate: func(packet.Translation) netfilter.Verdict { return netfilter.Verdict{Kind: netfilter.Accept} }}
				if _, err := c.Run(ctx); err != nil && !errors.Is(err, netfilter.ErrRunaway) {
					t.Fatal(err)
				}
			}
			for i := range c.Rules {
				for _, s := range c.Rules[i].Statements {
					_ = s.String()
				}
			}
		}
	}
}
