package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// summary is what the walk is for: a sentence that says which source address the destination sees and the rule that decided, with what it
// depends on.
type summary struct {
	sentence   string
	conditions []condition
}

// condition is something that the sentence depends on, or that keeps the packet or its reply from doing any good.
type condition struct {
	at   position // on the packet's way
	text string
	// unmatched is the rule, with its machine, that it says did not apply; "" for another condition.
	unmatched string
}

// Positions of what is said of the way as a whole: behind all of the request's steps, and behind those of its reply.
const (
	afterRequest position = 1 << 30
	afterReply   position = 1 << 31
)

// text returns the sentence, and each condition on a line below it.
func (a summary) text() string {
	return strings.Join(append([]string{a.sentence}, a.words()...), "\n- ")
}

// words returns the conditions in the packet's order, each once.
func (a summary) words() []string {
	ordered := slices.Clone(a.conditions)
	slices.SortStableFunc(ordered, func(x, y condition) int { return cmp.Compare(x.at, y.at) })
	var words []string
	for _, c := range ordered {
		words = append(words, c.text)
	}
	return unique(words)
}

// before returns the conditions that stand before a place on the packet's way.
func (a *summary) before(at position) []condition {
	return slices.DeleteFunc(slices.Clone(a.conditions), func(c condition) bool { return c.at >= at })
}

func (a *summary) add(at position, format string, args ...any) {
	a.conditions = append(a.conditions, condition{at: at, text: fmt.Sprintf(format, args...)})
}

// summary returns the conclusion. It is no surer than what was read. Where the packet met something that was not read, or left for where
// nothing was, it says so first.
func (s *explanation) summary() summary {
	a := s.walkedOrShown()
	for _, p := range s.policies {
		a.add(afterRequest, "%s", p)
	}
	return a
}

func (s *explanation) walkedOrShown() summary {
	if s.live.decides(s.outcome) {
		return s.shown()
	}
	a := s.conclusion()
	end := &s.outcome.End
	beyond := end.Kind == walk.Left && end.Forwarder == ""
	if end.Kind != walk.Undecided && (len(s.outcome.Unshown) > 0 || beyond) {
		a.sentence = "as far as " + s.reads + ", " + a.sentence
	}
	if lines := s.outcome.Unread; end.Kind != walk.Undecided && len(lines) == 1 {
		a.sentence += fmt.Sprintf(", unless line %d, which was not read, changes it", lines[0])
	} else if end.Kind != walk.Undecided && len(lines) > 1 {
		a.sentence += fmt.Sprintf(", unless one of the lines %s, which were not read, changes it", LineNumbers(lines))
	}
	if s.namesUnread {
		s.addUnread(&a)
	}
	return a
}

// addUnread names the parts of machines' states that the request met and that were not read.
func (s *explanation) addUnread(a *summary) {
	var hosts []string
	parts := map[string][]string{}
	for _, u := range s.outcome.Unshown {
		if u.Chain == nil {
			hosts, parts[u.Host] = append(hosts, u.Host), append(parts[u.Host], string(u.Part))
		}
	}
	for _, host := range unique(hosts) {
		a.add(afterReply, "not read on %s: %s", hostName(host), strings.Join(parts[host], ", "))
	}
}

func (s *explanation) conclusion() summary {
	end := &s.outcome.End
	nothing := func(why string) summary {
		return summary{sentence: fmt.Sprintf("the destination sees nothing: %s on %s%s", end.Kind, hostName(end.Host), why)}
	}
	switch {
	case s.isUnowned():
		a := s.delivered()
		a.sentence = fmt.Sprintf("the destination sees nothing: no host of the lab's internet has %s; %s", end.Packet.Destination, a.sentence)
		return a
	case end.Kind == walk.Delivered || end.Kind == walk.Left:
		a := s.delivered()
		if end.Forwarder != "" {
			a.sentence += "; what " + receiverBeyond(end.Packet.Destination) + " sees is decided there"
		}
		if s.redirected {
			start := s.start()
			a.sentence += "; what " + start.DestinationEnd() + " sees is decided there"
		}
		a.sentence += disguised(end.Disguise)
		if m := s.toDrop; m != nil {
			a.add(m.at, "it is marked to be dropped (%s %#x by %s%s), and no rule that is shown drops it", m.field, m.bits, m.ref, colon(m.why))
		}
		s.aftermath(&a)
		return a
	case end.Kind == walk.Undecided:
		return summary{sentence: "it is unknown whether the destination sees the packet: " + s.ended()}
	case end.Kind == walk.Looped:
		return summary{sentence: "the destination sees nothing: the packet goes round on " + hostName(end.Host) + ": " + s.ended()}
	case s.stopped != nil:
		a := nothing(" by " + s.ended())
		for _, would := range s.allowing {
			a.add(afterRequest, "%s", would)
		}
		return a
	}
	return nothing(": " + s.ended())
}

// isUnowned reports whether the packet reached a lab's internet, and no host there has its public destination.
func (s *explanation) isUnowned() bool {
	end := &s.outcome.End
	return end.Host == snapshot.LabInternet && s.stopped == nil && receiverBeyond(end.Packet.Destination) == "the internet" &&
		(end.Reject == "icmp-net-unreachable" || end.Reject == "icmp-host-unreachable")
}

func (s *explanation) ended() string {
	if s.stopped != nil {
		return s.stopped.words()
	}
	return cmp.Or(s.outcome.End.Why, "an unknown reason")
}

// receiverBeyond names the receiver of a packet that a forwarder sends on.
func receiverBeyond(destination netip.Addr) string {
	if destination.IsPrivate() || sharedRange.Contains(destination) {
		return "the destination"
	}
	return "the internet"
}

// sharedRange is private to networks, too (RFC 6598).
var sharedRange = netip.MustParsePrefix("100.64.0.0/10")

// endPlace returns where a packet's way ended, for people.
func endPlace(e *walk.End) string { return cmp.Or(e.Forwarder, hostName(e.Host)) }

// aftermath adds what keeps the request or its reply from doing any good.
func (s *explanation) aftermath(a *summary) {
	end := &s.outcome.End
	if end.Kind == walk.Left && end.Forwarder == "" {
		a.add(afterRequest, "the network beyond %s is unknown", hostName(end.Host))
	}
	if end.Refused {
		a.add(afterRequest, "nothing listens on %s", end.Packet.DestinationEnd())
	}
	for _, fault := range s.replyFaults() {
		a.add(afterReply, "%s", fault)
	}
}

// replyFaults returns what keeps the reply from doing any good, in words.
func (s *explanation) replyFaults() (faults []string) {
	back := s.outcome.BackEnd
	add := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if asked := s.start(); back != nil && back.Kind == walk.Left && back.Forwarder == "" && back.Host == s.outcome.There[0].Host &&
		back.Packet.About == nil && known(back.Packet.Source) && known(asked.Destination) && back.Packet.Source != asked.Destination {
		add("the reply leaves as %s, not as %s, which the sender asked: it discards the reply%s", back.Packet.SourceEnd(),
			asked.DestinationEnd(), s.untracking())
	}
	if back != nil && back.Disguise != "" {
		add("what the sender's program sees of the reply is unknown: %s", back.Disguise)
	}
	switch {
	case back == nil || back.Kind == walk.Left || back.Kind == walk.Delivered && !back.Refused:
	case back.Refused:
		add("%s", back.Why)
	case back.Kind == walk.Undecided:
		add("whether the reply arrives is unknown: on %s: %s", endPlace(back), cmp.Or(back.Why, "see above"))
	default:
		add("the reply does not arrive: %s on %s: %s", back.Kind, endPlace(back), cmp.Or(back.Why, "see above"))
	}
	return faults
}

// untracking names the rule that took the reply out of tracking, so that no mapping applied to it; "" for none.
func (s *explanation) untracking() string {
	for i := range s.outcome.Back {
		st := &s.outcome.Back[i]
		if v := st.Visit; v != nil && slices.ContainsFunc(st.Changes, func(c packet.Change) bool { return c.Field == "tracked" }) {
			return paren(reference(v) + " takes it out of tracking")
		}
	}
	return ""
}

func (s *explanation) delivered() summary {
	end := &s.outcome.End
	seen := s.live.source(end)
	viewer, source := cmp.Or(end.Forwarder, "the destination"), seen.SourceEnd()
	if s.redirected {
		viewer = "what listens on " + end.Packet.DestinationEnd() + " of " + hostName(end.Host)
	}
	if s.isUnowned() {
		viewer = "a firewall on the way"
	}
	if end.Disguise != "" {
		viewer = "the kernel of " + hostName(end.Host)
	}
	if n := len(s.sources); !known(seen.Source) && n > 0 {
		source = "an unknown address of " + hostName(s.sources[n-1].host)
	}
	if len(s.sources) == 0 {
		start := s.start()
		whose := "the sender's own address, " + source + ","
		switch {
		case start.Source.IsValid() && start.Source != end.Packet.Source:
			whose = source // changed by something that is not a translation
		case !known(end.Packet.Source):
			whose = "the sender's own address, which is unknown,"
		}
		if s.connection != nil {
			a := summary{sentence: viewer + " sees " + whose + " because its connection exists, " + s.mapping()}
			for _, rule := range s.bypassed {
				a.add(atStep(0), "%s", rule)
			}
			return a
		}
		return summary{viewer + " sees " + whose + " because no rule translates it", s.exempting()}
	}
	a := summary{sentence: fmt.Sprintf("%s sees %s, after %d translations", viewer, source, len(s.sources))}
	several := len(s.sources) > 1
	for i := range s.sources {
		tr := &s.sources[i]
		a.conditions = append(a.conditions, tr.marked(several)...)
		if several {
			a.add(tr.at, "%s", tr.because(true))
		} else {
			a.sentence = viewer + " sees " + source + ", because " + tr.because(false)
		}
	}
	return a
}

// mapping says what the connection that exists does to the packet's source.
func (s *explanation) mapping() string {
	if f := s.connection.Packet.Track.Flow; f.Status&packet.DNAT != 0 {
		return "without a mapping of its source"
	}
	return "without a mapping"
}

// known reports whether an address is one: a masquerade by a machine whose addresses are not known gives none.
func known(a netip.Addr) bool {
	return (packet.IsRedacted(a) || !packet.IsUnknown(a)) && !a.IsUnspecified()
}

// exempting names the rules that decided against a translation; the last ones are the most telling. Where the rule of one place did
// different things on two machines, it is said on which.
func (s *explanation) exempting() []condition {
	const most = 3
	var kept []exemption
	for _, k := range s.exemptions {
		if !slices.ContainsFunc(kept, func(o exemption) bool { return o.text == k.text }) {
			kept = append(kept, k)
		}
	}
	slices.SortStableFunc(kept, func(x, y exemption) int { return cmp.Compare(x.at, y.at) })
	kept = kept[max(0, len(kept)-most):]
	var all []condition
	if s.local != nil {
		all = append(all, condition{at: s.local.at, text: s.local.text})
	}
	for _, k := range kept {
		text := k.text
		if slices.ContainsFunc(kept, func(o exemption) bool { return o.ref == k.ref && o.host != k.host }) {
			text = "on " + hostName(k.host) + " " + text
		}
		all = append(all, condition{k.at, text, k.unmatched})
		if k.cleared != nil {
			all = append(all, condition{at: k.at, text: *k.cleared})
		}
	}
	return all
}

// LineNumbers returns numbers as "14, 16-18, 31", at most ten such parts.
func LineNumbers(numbers []int) string {
	var parts []string
	for i, j := 0, 0; i < len(numbers); i = j {
		for j = i + 1; j < len(numbers) && numbers[j] == numbers[j-1]+1; j++ {
		}
		switch {
		case len(parts) == 10:
			return fmt.Sprintf("%s and %d more", strings.Join(parts, ", "), len(numbers)-i)
		case j == i+1:
			parts = append(parts, fmt.Sprint(numbers[i]))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", numbers[i], numbers[j-1]))
		}
	}
	return strings.Join(parts, ", ")
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

// because returns "nat KUBE-POSTROUTING 3: MASQUERADE (kubernetes service traffic requiring SNAT)". Where a mark made the rule apply, that
// says more.
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

// colon returns ": s", or nothing.
func colon(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}

// marked returns "mark 0x4000 was set by nat KUBE-EXT-… 1: default/whereami, externalTrafficPolicy Cluster".
func (tr *translation) marked(withHost bool) []condition {
	if tr.mark == nil {
		return nil
	}
	text := fmt.Sprintf("mark %#x was set by %s", tr.mark.bits, tr.mark.ref)
	if withHost {
		text = "on " + hostName(tr.host) + " " + text
	}
	return []condition{{at: tr.mark.at, text: text + colon(tr.mark.why)}}
}
