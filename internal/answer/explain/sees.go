package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/walk"
)

// sees is the sentence that the walk is for: which source address the destination sees, and the rule that decided.
func (s *story) sees() string {
	end := &s.outcome.End
	switch end.Kind {
	case walk.Delivered, walk.Left:
		return s.seen() + s.aftermath()
	case walk.Undecided:
		return "nobody can tell whether the destination sees it: " + s.ended()
	case walk.Looped:
		return "the destination sees nothing: the packet goes round on " + hostName(end.Host) + ": " + s.ended()
	}
	if s.stopped != nil {
		return fmt.Sprintf("the destination sees nothing: %s on %s by %s", end.Kind, hostName(end.Host), s.ended())
	}
	return fmt.Sprintf("the destination sees nothing: %s on %s: %s", end.Kind, hostName(end.Host), s.ended())
}

func (s *story) ended() string {
	if s.stopped != nil {
		return s.stopped.words()
	}
	return cmp.Or(s.outcome.End.Why, "a reason that is not known")
}

// aftermath adds what keeps the request or its answer from doing any good.
func (s *story) aftermath() string {
	end, back := &s.outcome.End, s.outcome.BackEnd
	var more string
	if end.Kind == walk.Left {
		more = "; what is beyond " + hostName(end.Host) + " is not known"
	}
	if end.Refused {
		more += "; nothing listens on " + end.Packet.DestinationEnd()
	}
	if back != nil && back.Refused {
		more += "; " + back.Why
	}
	if back != nil && back.Kind != walk.Delivered && back.Kind != walk.Left {
		more += fmt.Sprintf("; the reply does not arrive: %s on %s: %s", back.Kind, hostName(back.Host), cmp.Or(back.Why, "see above"))
	}
	return more
}

func (s *story) seen() string {
	end := &s.outcome.End
	source := end.Packet.SourceEnd()
	if n := len(s.sources); !known(end.Packet.Source) && n > 0 {
		source = "an address of " + hostName(s.sources[n-1].host) + " (which one is not known here)"
	}
	if len(s.sources) == 0 {
		start := s.start()
		whose := "the sender's own address, " + source + ","
		if start.Source.IsValid() && start.Source != end.Packet.Source {
			whose = source // changed by something that is not a translation
		}
		return "the destination sees " + whose + " because no rule translates it" + s.reasonsToKeep()
	}
	var by []string
	for i := range s.sources {
		by = append(by, s.sources[i].because(len(s.sources) > 1))
	}
	return "the destination sees " + source + ", because " + strings.Join(by, ", then ")
}

// known tells whether an address is one: a masquerade by a machine whose addresses are not known gives none.
func known(a netip.Addr) bool { return a.IsValid() && !a.IsUnspecified() }

// reasonsToKeep names the rules that decided against a translation; the last ones are the most telling. Where the rule of one place did different
// things on two machines, it is said on which.
func (s *story) reasonsToKeep() string {
	const most = 3
	var kept []keeping
	for _, k := range s.kept {
		if !slices.ContainsFunc(kept, func(o keeping) bool { return o.text == k.text }) {
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
		if slices.ContainsFunc(kept, func(o keeping) bool { return o.ref == k.ref && o.host != k.host }) {
			text = "on " + hostName(k.host) + " " + text
		}
		words = append(words, text)
	}
	if len(words) == 0 {
		return ""
	}
	return ": " + strings.Join(words, "; ")
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

// because is "nat KUBE-POSTROUTING 3: MASQUERADE (mark 0x4000, set by nat KUBE-EXT-… 1: default/whereami, externalTrafficPolicy Cluster)".
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
		return text + paren(tr.why)
	}
	set := "set by " + tr.mark.ref
	if tr.mark.why != "" {
		set += ": " + tr.mark.why
	}
	return text + fmt.Sprintf(" (mark %#x, %s)", tr.mark.bits, set)
}
