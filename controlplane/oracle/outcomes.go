package oracle

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/internal/syntax/nftables"
)

// outcomes are what can become of a packet, in words, with the probability of each: how it ends, where, as what (so masqueraded or not),
// what it is answered with, and whether the client is remembered.
type outcomes map[string]float64

// equal reports whether they are the same, within what iptables' statistic rounds.
func (o outcomes) equal(other outcomes) bool {
	return maps.EqualFunc(o, other, func(a, b float64) bool { return math.Abs(a-b) <= 1e-9 })
}

// String lists them, a line each.
func (o outcomes) String() string {
	var b strings.Builder
	for _, text := range slices.Sorted(maps.Keys(o)) {
		fmt.Fprintf(&b, "  %.10f %s\n", o[text], text)
	}
	return b.String()
}

// always reports whether nothing else comes of the packet than what begins so.
func (o outcomes) always(begin string) bool {
	for text := range o {
		if !strings.HasPrefix(text, begin) {
			return false
		}
	}
	return len(o) > 0
}

// outcomes walks a packet whose sender has not been there before.
func (n *node) outcomes(p *probe) (outcomes, error) {
	r, err := walk.Walk(n, p.request())
	if err != nil {
		return nil, err
	}
	if r.More || len(r.Assumed) > 0 {
		return nil, fmt.Errorf("%s: more outcomes %t, assumed %v", p, r.More, r.Assumed)
	}
	all := outcomes{}
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		odds, isNew, err := chance(o.Choices)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		if isNew {
			all[ending(o)] += odds
		}
	}
	return all, nil
}

// chance returns the probability of choices; isNew is false where one says that the client has been there.
func chance(choices []walk.Decision) (odds float64, isNew bool, err error) {
	odds = 1
	for i := range choices {
		c := &choices[i]
		chosen, sum := c.Options[c.Answer], uint64(0)
		for _, o := range c.Options {
			sum += o.Weight
		}
		switch {
		case c.Kind == netfilter.Random && sum > 0:
			odds *= float64(chosen.Weight) / float64(sum)
		case c.Kind == netfilter.History && chosen.Label == "matches":
			return 0, false, nil
		case c.Kind != netfilter.History:
			return 0, false, fmt.Errorf("a choice that is not by chance: %s", c.What)
		}
	}
	return odds, true, nil
}

func ending(o *walk.Outcome) string {
	remembered := ""
	for s := range o.Steps() {
		if s.Visit != nil && s.Visit.Rule != nil && remembers(s.Visit.Rule.Text) {
			remembered = ", client remembered"
		}
	}
	e := &o.End
	switch e.Kind {
	case walk.Dropped:
		if !strings.HasPrefix(e.Why, "dropped by ") {
			return string(e.Kind) + ": " + e.Why
		}
		return string(e.Kind)
	case walk.Rejected:
		return string(e.Kind) + " by " + e.Reject
	}
	return fmt.Sprintf("%s by %s: %s%s", e.Kind, e.Link, e.Packet.Tuple, remembered)
}

// remembers reports whether a rule of a service proxy notes where a client is.
func remembers(rule string) bool {
	return strings.Contains(rule, "update @affinity") || strings.Contains(rule, "-m recent --set ")
}

// listed reads the tables of nft in a namespace.
func listed(ctx context.Context, ns *netns.Namespace) ([]byte, error) {
	return program.Command{Path: "nft", Args: []string{"-j", "list", "ruleset"}, In: ns.Do}.Output(ctx)
}

func tablesOf(listing []byte) ([]*netfilter.Table, error) {
	rules, err := nftables.Parse(listing)
	if err != nil {
		return nil, err
	}
	return nftables.Lower(rules)
}

// tables are those of dumps of iptables-save.
func tablesOfSaved(v Settings, dumps [][]byte) (all []*netfilter.Table, err error) {
	family := netfilter.IPv4
	if v.IPv6 {
		family = netfilter.IPv6
	}
	for _, dump := range dumps {
		parsed, err := iptables.Parse(dump)
		if err != nil {
			return nil, err
		}
		lowered, err := iptables.Lower(parsed, family, netfilter.IPTablesNFT)
		if err != nil {
			return nil, err
		}
		all = append(all, lowered...)
	}
	return all, nil
}
