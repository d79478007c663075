package walk

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// hook runs what the kernel calls at a hook: the chains in the order of their priorities, and between them conntrack, address translation
// and br_netfilter at theirs. It returns how the packet's way ended; nil where it goes on.
func (t *transit) hook(f netfilter.Family, h netfilter.Hook) *End {
	if end := t.needs(rules(f)...); end != nil {
		return end
	}
	if end := t.programsAtHook(f, h); end != nil {
		return end
	}
	builtins := builtinsAt(f, h)
	for _, c := range t.chains(f, h) {
		for len(builtins) > 0 && builtins[0].priority <= c.Base.Priority {
			if end := builtins[0].work(t, f, h); end != nil {
				return end
			}
			builtins = builtins[1:]
		}
		if c.Base.Type == "nat" && f != netfilter.Bridge {
			continue // called by translate
		}
		if end := t.filterChain(c, f, h); end != nil {
			return end
		}
	}
	for _, b := range builtins {
		if end := b.work(t, f, h); end != nil {
			return end
		}
	}
	return nil
}

// ipHook runs hook for the packet's own family, and leads to the next stage.
func (t transit) ipHook(h netfilter.Hook, next stage) passage {
	if end := t.hook(family(&t.p), h); end != nil {
		return t.over(end)
	}
	return t.to(next)
}

// builtin is something in the kernel that stands between the chains of a hook.
type builtin struct {
	priority int
	work     func(*transit, netfilter.Family, netfilter.Hook) *End
}

const last = math.MaxInt // NF_IP_PRI_CONNTRACK_CONFIRM, NF_BR_PRI_LAST

// builtinsAt returns those of a hook. The priorities of br_netfilter are those of net/bridge/br_netfilter_hooks.c, br_nf_ops, and those
// of IPVS those of net/netfilter/ipvs/ip_vs_core.c, ip_vs_ops4.
func builtinsAt(f netfilter.Family, h netfilter.Hook) []builtin {
	switch {
	case f == netfilter.Bridge && h == netfilter.Prerouting:
		return []builtin{{0, (*transit).bridgeNetfilterPrerouting}}
	case f == netfilter.Bridge && h == netfilter.Forward:
		return []builtin{{-1, (*transit).bridgeNetfilterForward}}
	case f == netfilter.Bridge && h == netfilter.Postrouting:
		return []builtin{{last, (*transit).bridgeNetfilterPostrouting}}
	case f == netfilter.Bridge:
	case h == netfilter.Prerouting, h == netfilter.Output:
		list := []builtin{
			{netfilter.PriorityDefrag, (*transit).defragment}, {netfilter.PriorityConntrack, (*transit).track},
			{netfilter.PriorityDNAT, (*transit).translate},
		}
		if h == netfilter.Output {
			list = append(list, builtin{netfilter.PriorityDNAT + 1, (*transit).virtualService})
		}
		return list
	case h == netfilter.Input:
		return []builtin{
			{netfilter.PrioritySNAT - 1, (*transit).virtualService}, {netfilter.PrioritySNAT, (*transit).translate},
			{last, (*transit).confirm},
		}
	case h == netfilter.Postrouting:
		return []builtin{{netfilter.PrioritySNAT, (*transit).translate}, {last, (*transit).confirm}}
	}
	return nil
}

// filterChain evaluates a base chain that is not for translation. A route chain at output makes the kernel look the route up again when it
// changed what routing looks at (net/netfilter/nft_chain_route.c).
func (t *transit) filterChain(c *netfilter.Chain, f netfilter.Family, h netfilter.Hook) *End {
	before := t.p
	if end := t.evaluate(c, f, h, nil); end != nil {
		return end
	}
	if c.Base.Type == "route" && h == netfilter.Output && routingChanged(&before, &t.p) {
		return t.reroute()
	}
	return nil
}

func routingChanged(b, a *packet.Packet) bool {
	return b.Mark != a.Mark || b.Source != a.Source || b.Destination != a.Destination || b.TOS != a.TOS
}

// evaluate runs a chain and notes the rules it met.
func (t *transit) evaluate(c *netfilter.Chain, f netfilter.Family, h netfilter.Hook,
	translate func(packet.Translation) netfilter.Verdict) *End {
	ctx := &t.run.context
	from, after := len(t.run.visits), t.p
	*ctx = netfilter.Context{
		Packet: &t.p, Family: f, Hook: h, Host: t.m, Chooser: t, Translate: translate, Visits: t.run.visits, EveryRule: t.run.req.EveryRule,
		OpenRules: t.run.req.OpenRules,
	}
	v, err := c.Run(ctx)
	t.run.visits = ctx.Visits
	for _, c := range ctx.Unshown {
		t.run.notShown(MissingState{Host: t.m.Name, Chain: c})
	}
	if ctx.AskedOwner {
		t.assumeOwner()
	}
	then := *t // as the packet was after each rule
	for i := from; i < len(t.run.visits); i++ {
		visit := &t.run.visits[i]
		if visit.After != nil {
			after = *visit.After
		}
		then.p = after
		t.steps = append(t.steps, then.record(Step{Stage: Ruled, Family: f, Hook: h, Visit: visit, Changes: visit.Changes}))
	}
	t.noteTie(c, f, h, t.run.visits[from:])
	if err != nil {
		return t.end(Looped, err.Error())
	}
	return t.endByVerdict(v, t.run.visits[from:])
}

// endByVerdict returns the packet's end, or nil if the verdict of the last visit lets it pass.
func (t *transit) endByVerdict(v netfilter.Verdict, visits []netfilter.Visit) *End {
	rule := "a rule"
	if len(visits) > 0 {
		by := &visits[len(visits)-1]
		rule = by.Chain.Ref(by.Rule)
	}
	var end *End
	switch v.Kind {
	case netfilter.Accept:
		return nil
	case netfilter.Drop:
		end = t.end(Dropped, "dropped by "+rule)
	case netfilter.Reject:
		if t.sumIsWrong() {
			end = t.end(Dropped, fmt.Sprintf("dropped by %s, without an error as its UDP checksum is wrong (nf_send_unreach): %s", rule, whyWrong))
			break
		}
		end = t.end(Rejected, fmt.Sprintf("rejected with %s by %s", v.Detail, rule))
	case netfilter.Stolen:
		end = t.end(Dropped, fmt.Sprintf("taken by %s: %s", rule, v.Detail))
	default:
		end = t.end(Undecided, fmt.Sprintf("what %s does is unknown: %s", rule, v.Detail))
	}
	end.Reject = v.Detail
	return end
}

// deviceHook runs the chains that hang at one interface, at hook Ingress or Egress.
func (t *transit) deviceHook(link string, h netfilter.Hook) *End {
	if end := t.needs(rules(netfilter.Netdev)...); end != nil {
		return end
	}
	chains := slices.Concat(t.m.Rules.Hook(netfilter.Netdev, h), t.m.Rules.Hook(netfilter.Inet, h))
	slices.SortStableFunc(chains, func(a, b *netfilter.Chain) int { return cmp.Compare(a.Base.Priority, b.Base.Priority) })
	for _, c := range chains {
		if !t.attachedTo(c, link) {
			continue
		}
		if end := t.evaluate(c, c.Table.Family, h, nil); end != nil {
			return end
		}
	}
	return nil
}

// attachedChain is a chain at a link.
type attachedChain struct {
	chain *netfilter.Chain
	link  string
}

func (h attachedChain) String() string {
	return fmt.Sprintf("chain %s %s hangs at %s", h.chain.Table.Name, h.chain.Name, h.link)
}

// attachedTo reports whether a chain hangs at an interface.
func (t *transit) attachedTo(c *netfilter.Chain, link string) bool {
	if c.Base.Devices != nil {
		return slices.Contains(c.Base.Devices, link)
	}
	return t.decide(attachedChain{c, link}, "it does", "it does not")
}

func family(p *packet.Packet) netfilter.Family {
	if p.IsIPv6() {
		return netfilter.IPv6
	}
	return netfilter.IPv4
}
