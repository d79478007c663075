package explain

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/walk"
)

// Wide writes every step in order: each rule that was evaluated with its number, text, verdict and, where it did not apply, the test that
// failed. Rules that did not apply are there when the walk noted them (walk.Request.EveryRule).
func Wide(w io.Writer, r *walk.Result, o Options) error {
	if err := o.writeQuery(w, true, r != nil); err != nil || r == nil {
		return err
	}
	return write(w, r, o, func(p *page, all []*explanation) {
		each := make([][]hostLine, len(all))
		for i, s := range all {
			each[i] = s.everyStep(o.Owners)
		}
		shared := sharedPrefix(each)
		p.lines(each[0][:shared])
		for i, s := range all {
			if len(all) > 1 {
				fmt.Fprintf(p, "\n%s\n", p.paint(bold, s.numbered(p.total)))
			}
			p.lines(each[i][shared:])
		}
	})
}

// sharedPrefix returns how many lines all have in common at the beginning.
func sharedPrefix(all [][]hostLine) int {
	n := len(all[0])
	for _, f := range all[1:] {
		n = min(n, len(f))
		for i := range n {
			if f[i] != all[0][i] {
				n = i
				break
			}
		}
	}
	return n
}

// everyStep returns the whole outcome, a line a step.
func (s *explanation) everyStep(o *Owners) []hostLine {
	all := everyLine(s.outcome.There, "", o)
	all = append(all, hostLine{s.outcome.End.Host, line{label: "end", text: ended(&s.outcome.End)}})
	all = append(all, everyLine(s.outcome.Back, replyHeading+" on ", o)...)
	if e := s.outcome.BackEnd; e != nil {
		all = append(all, hostLine{replyHeading + " on " + hostName(e.Host), line{label: "end", text: ended(e)}})
	}
	return all
}

func ended(e *walk.End) string {
	text := fmt.Sprintf("%s: %s", e.Kind, e.Packet.Tuple)
	if e.Why != "" {
		text += ": " + e.Why
	}
	return text + listening(e)
}

func everyLine(steps []walk.Step, prefix string, o *Owners) []hostLine {
	var all []hostLine
	why := newReasoner(o)
	for i := range steps {
		st := &steps[i]
		host := st.Host
		if prefix != "" {
			host = prefix + hostName(st.Host)
		}
		for _, l := range wideLines(st, why) {
			all = append(all, hostLine{host, l})
		}
		if st.Copied != nil {
			for _, t := range everyLine(st.Copied.Steps, prefix, o) {
				t.label = "copy: " + t.label
				all = append(all, t)
			}
		}
	}
	return all
}

func wideLines(st *walk.Step, why *reasoner) []line {
	p := &st.Packet
	switch st.Stage {
	case walk.Sent:
		return []line{{label: "sent", text: p.String()}}
	case walk.Received:
		return []line{{label: "in", text: linkAndPort(p.In, p.BridgeIn) + "  " + p.String()}}
	case walk.Encapsulated, walk.Decapsulated:
		return []line{{label: "tunnel", text: tunnelText(st) + "  " + p.String()}}
	case walk.Transmit:
		return []line{{label: "out", text: linkAndPort(p.Out, p.BridgeOut) + "  " + p.String()}}
	case walk.Ruled:
		return []line{wideRule(st, why)}
	case walk.Routed:
		return wideRoute(st)
	case walk.Bridged:
		return []line{{label: "bridge", text: bridgeText(st.Bridge)}}
	case walk.Resolved:
		return []line{{label: "next", text: resolveText(st.Resolve)}}
	case walk.Tracked:
		return []line{{label: "flow", text: strings.TrimSpace(p.Track.State.String() + paren(flowText(st)))}}
	case walk.Translated:
		return []line{{label: "nat", text: changed(st.Changes) + paren(st.Why)}}
	case walk.Ended:
		return nil // the end itself is written
	case walk.Copy:
		return []line{{label: "copy", text: st.Why + "; its end: " + ended(&st.Copied.End)}}
	}
	return []line{{label: "check", text: strings.TrimSpace(changed(st.Changes) + paren(st.Why))}}
}

func flowText(st *walk.Step) string {
	if st.Flow() == nil {
		return ""
	}
	return st.Flow().Original.String() + ", answers " + st.Flow().Reply.String()
}

// wideRule returns "nat KUBE-SERVICES 4: RULE" with what came of it.
func wideRule(st *walk.Step, why *reasoner) line {
	v := st.Visit
	text := reference(v)
	if v.Rule != nil {
		text += ": " + v.Rule.Text
	}
	r := why.reason(st.Host, v, &st.Packet)
	l := line{label: v.Verdict.Kind.String(), text: text, owner: r.For}
	if r.Writer != "" {
		l.owner += "  [" + r.Writer + "]"
	}
	switch v.Verdict.Kind {
	case netfilter.Continue:
		l.label = "applies"
	case netfilter.Break:
		l.label, l.owner = "no", ""
		if v.Failed != nil {
			l.text += "  [needs: " + v.Failed.String() + "]"
		}
	case netfilter.Drop, netfilter.Reject, netfilter.Undecided, netfilter.Stolen:
		l.bad = true
	}
	if v.Verdict.Detail != "" {
		l.text += "  [" + v.Verdict.Detail + "]"
	}
	if changes := changesOf(st); len(changes) > 0 {
		l.text += "  [" + changed(changes) + "]"
	}
	return l
}

func wideRoute(st *walk.Step) []line {
	var lines []line
	if st.Route != nil {
		for _, c := range st.Route.Considered {
			lines = append(lines, line{label: "no", text: fmt.Sprintf("policy rule %d%s: %s", c.Rule.Priority, policyTests(c.Rule), c.Why)})
		}
	}
	return append(lines, line{label: "route", text: routeText(st.Route) + paren(st.Why)})
}

func bridgeText(b *walk.BridgeStep) string {
	if b == nil {
		return "?"
	}
	how := "flooded: no entry for the address"
	if e := b.Entry; e != nil {
		how = "FDB entry " + e.MAC.String() + " on " + e.Port
	}
	return fmt.Sprintf("%s to %s (%s)", b.Bridge, cmp.Or(strings.Join(b.Ports, ", "), "no port"), how)
}

func resolveText(r *walk.ResolveStep) string {
	if r == nil {
		return "?"
	}
	text := fmt.Sprintf("%s is at %s on %s (%s", r.Address, r.MAC, r.Link, r.By)
	if r.Answerer != "" {
		text += ", answered by " + hostName(r.Answerer)
	}
	return text + ")"
}
