package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
)

// An answer is what the walk is for: a sentence that says which source address the destination sees and the rule that decided, and what it
// hangs on and what keeps it from doing any good.
type summary struct {
	sentence   string
	conditions []string
}

// text is the sentence, and each condition on a line below it.
func (a summary) text() string {
	return strings.Join(append([]string{a.sentence}, a.conditions...), "\n- ")
}

// summary is the conclusion. It is no surer than what was read: where the packet met something that is not all shown, it says so first.
func (s *explanation) summary() summary {
	a := s.conclusion()
	if len(s.outcome.Unshown) > 0 && s.outcome.End.Kind != walk.Undecided {
		a.sentence = "as far as " + s.reads + ", " + a.sentence
	}
	return a
}

func (s *explanation) conclusion() summary {
	end := &s.outcome.End
	switch {
	case end.Kind == walk.Delivered || end.Kind == walk.Left:
		a := s.delivered()
		if end.Forwarder != "" {
			a.sentence += "; what " + whoIsBeyond(end.Packet.Destination) + " sees is decided there"
		}
		if s.redirected {
			start := s.start()
			a.sentence += "; what " + start.DestinationEnd() + " sees is decided there"
		}
		if m := s.toDrop; m != nil {
			a.conditions = append(a.conditions, fmt.Sprintf("it is marked to be dropped (%s %#x by %s%s), and no rule that is shown drops it", m.field,
				m.bits, m.ref, colon(m.why)))
		}
		a.conditions = append(a.conditions, s.aftermath()...)
		return a
	case end.Kind == walk.Undecided:
		return summary{sentence: "nobody can tell whether the destination sees it: " + s.ended()}
	case end.Kind == walk.Looped:
		return summary{sentence: "the destination sees nothing: the packet goes round on " + hostName(end.Host) + ": " + s.ended()}
	case s.stopped != nil:
		return summary{fmt.Sprintf("the destination sees nothing: %s on %s by %s", end.Kind, hostName(end.Host), s.ended()), s.allowing}
	}
	return summary{sentence: fmt.Sprintf("the destination sees nothing: %s on %s: %s", end.Kind, hostName(end.Host), s.ended())}
}

func (s *explanation) ended() string {
	if s.stopped != nil {
		return s.stopped.words()
	}
	return cmp.Or(s.outcome.End.Why, "a reason that is not known")
}

// whoIsBeyond is who gets a packet that a forwarder sends on.
func whoIsBeyond(destination netip.Addr) string {
	if destination.IsPrivate() || sharedRange.Contains(destination) {
		return "the destination"
	}
	return "the internet"
}

// sharedRange is private to networks, too (RFC 6598).
var sharedRange = netip.MustParsePrefix("100.64.0.0/10")

// endPlace is where a packet's way ended, for people.
func endPlace(e *walk.End) string { return cmp.Or(e.Forwarder, hostName(e.Host)) }

// aftermath is what keeps the request or its answer from doing any good.
func (s *explanation) aftermath() []string {
	end, back := &s.outcome.End, s.outcome.BackEnd
	var more []string
	if end.Kind == walk.Left && end.Forwarder == "" {
		more = append(more, "what is beyond "+hostName(end.Host)+" is not known")
	}
	if end.Refused {
		more = append(more, "nothing listens on "+end.Packet.DestinationEnd())
	}
	if back != nil && back.Refused {
		more = append(more, back.Why)
	}
	switch {
	case back == nil || back.Kind == walk.Delivered || back.Kind == walk.Left:
	case back.Kind == walk.Undecided:
		more = append(more, fmt.Sprintf("whether the reply arrives is unknown: on %s: %s", endPlace(back), cmp.Or(back.Why, "see above")))
	default:
		more = append(more, fmt.Sprintf("the reply does not arrive: %s on %s: %s", back.Kind, endPlace(back), cmp.Or(back.Why, "see above")))
	}
	return more
}

func (s *explanation) delivered() summary {
	end := &s.outcome.End
	viewer, source := cmp.Or(end.Forwarder, "the destination"), end.Packet.SourceEnd()
	if s.redirected {
		viewer = "what listens on " + end.Packet.DestinationEnd() + " of " + hostName(end.Host)
	}
	if n := len(s.sources); !known(end.Packet.Source) && n > 0 {
		source = "an address of " + hostName(s.sources[n-1].host) + " (which one is not known here)"
	}
	if len(s.sources) == 0 {
		start := s.start()
		whose := "the sender's own address, " + source + ","
		if start.Source.IsValid() && start.Source != end.Packet.Source {
			whose = source // changed by something that is not a translation
		}
		return summary{viewer + " sees " + whose + " because no rule translates it", s.exempting()}
	}
	several := len(s.sources) > 1
	var by, marks []string
	for i := range s.sources {
		by = append(by, s.sources[i].because(several))
		marks = append(marks, s.sources[i].marked(several)...)
	}
	return summary{viewer + " sees " + source + ", because " + strings.Join(by, ", then "), marks}
}

// known tells whether an address is one: a masquerade by a machine whose addresses are not known gives none.
func known(a netip.Addr) bool { return !packet.IsUnknown(a) && !a.IsUnspecified() }

// exempting names the rules that decided against a translation; the last ones are the most telling. Where the rule of one place did
// different things on two machines, it is said on which.
func (s *explanation) exempting() []string {
	const most = 3
	var kept []exemption
	for _, k := range s.exemptions {
		if !slices.ContainsFunc(kept, func(o exemption) bool { return o.text == k.text }) {
			kept = append(kept, k)
		}
	}
	kept = kept[max(0, len(kept)-most):]
	var words []string
	if s.local != "" {
		words = append(words, s.local)
	}
	for _, k := range kept {
		text := k.text
		if slices.ContainsFunc(kept, func(o exemption) bool { return o.ref == k.ref && o.host != k.host }) {
			text = "on " + hostName(k.host) + " " + text
		}
		words = append(words, text)
	}
	return words
}

func unique(all []string) []string {
	var one []string
	seen := map[string]bool{}
	for _, s := range all {
		if !seen[s] {
			seen[s] = true
			one = append(one, s)
		}
	}
	return one
}

// because is "nat KUBE-POSTROUTING 3: MASQUERADE (kubernetes service traffic requiring SNAT)". Where a mark made the rule apply, that says
// more.
func (tr *translation) because(withHost bool) string {
	text := tr.does
	if tr.ref == "" {
		text = "of " + text
	} else {
		text = tr.ref + ": " + tr.does
	}
	if withHost {
		text = "on " + hostName(tr.host) + " " + text
	}
	if tr.mark == nil {
		text += paren(tr.why)
	}
	return text
}

// colon is ": s", or nothing.
func colon(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}

// marked is "mark 0x4000 was set by nat KUBE-EXT-… 1: default/whereami, externalTrafficPolicy Cluster".
func (tr *translation) marked(withHost bool) []string {
	if tr.mark == nil {
		return nil
	}
	text := fmt.Sprintf("mark %#x was set by %s", tr.mark.bits, tr.mark.ref)
	if withHost {
		text = "on " + hostName(tr.host) + " " + text
	}
	return []string{text + colon(tr.mark.why)}
}
