package verify

import (
	"fmt"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
)

func ruleText(r *netfilter.Rule) string {
	if r == nil {
		return "no rule"
	}
	return r.Text
}

// WalkText returns an outcome, a step a line.
func WalkText(o *walk.Outcome) string {
	var b strings.Builder
	for _, way := range [][]walk.Step{o.There, o.Back} {
		for i := range way {
			stepText(&b, &way[i])
		}
		if len(way) > 0 {
			b.WriteString("--\n")
		}
	}
	return b.String()
}

func stepText(b *strings.Builder, s *walk.Step) {
	p := &s.Packet
	fmt.Fprintf(b, "%s %s", s.Host, s.Stage)
	switch {
	case s.Visit != nil:
		fmt.Fprintf(b, " %s %s: %s", s.Visit.Chain.Table.Family, s.Visit.Chain.Ref(s.Visit.Rule), s.Visit.Verdict.Kind)
		if s.Visit.Rule != nil {
			fmt.Fprintf(b, ": %s", s.Visit.Rule.Text)
		}
		for _, c := range s.Changes {
			fmt.Fprintf(b, " [%s %s → %s]", c.Field, c.From, c.To)
		}
	case s.Route != nil:
		fmt.Fprintf(b, " %s dev %s via %s src %s", s.Route.Type, s.Route.Link, s.Route.Gateway, s.Route.Source)
	case s.Bridge != nil:
		fmt.Fprintf(b, " %s → %v", s.Bridge.Bridge, s.Bridge.Ports)
	case s.Resolve != nil:
		fmt.Fprintf(b, " %s is %s by %s", s.Resolve.Address, s.Resolve.MAC, s.Resolve.By)
	default:
		fmt.Fprintf(b, " %s>%s %s ttl %d %s", p.In, p.Out, tupleText(p), p.TTL, p.Frame.Destination)
		if p.Mark != 0 {
			fmt.Fprintf(b, " mark %#x", p.Mark)
		}
	}
	if s.Why != "" {
		fmt.Fprintf(b, " (%s)", s.Why)
	}
	b.WriteByte('\n')
}

func tupleText(p *packet.Packet) string {
	text := fmt.Sprintf("%s %s > %s", p.Protocol, p.SourceEnd(), p.DestinationEnd())
	if p.About != nil {
		text += fmt.Sprintf(" type %d code %d about %s", p.Type, p.Code, p.About)
	}
	return text
}
