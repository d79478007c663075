package explain

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
)

// explanation is one outcome in words: what mattered on each machine, and why the destination sees the address that it sees.
type explanation struct {
	number     int // from 1, in the order of the walk's outcomes
	outcome    *walk.Outcome
	there      []hop
	back       []hop
	machines   []string      // on the request's way, in short
	sources    []translation // of the request's source address, in order
	exemptions []exemption   // rules that decided against translating it
	local      *exemption    // the rule that led to the node's own endpoints alone, past the mark for masquerade
	stopped    *refusal      // by which rule the request's way ended
	bypassed   []string      // rules that would translate a new connection, but not one that exists
	allowing   []string      // what policies would have allowed it with
	toDrop     *marking      // by which the request is marked to be dropped, as others' rules are to do
	connection *walk.Step    // where the request met a connection that existed before; nil for a new one
	redirected bool          // a program of the machine takes the request, in place of its destination: a proxy
	reads      string        // what the conclusion is from: "the text shows"
	policies   []string      // that are not enforced for the request's pods, or of which that is unknown
	live       *Live         // what the kernel showed; nil where no packet was sent
	// namesUnread says that the conclusion names what was not read: of a text that would be most of a machine's state.
	namesUnread bool
}

// hop is a machine on the way.
type hop struct {
	host  string
	lines []line
}

// line is one thing that happened there.
type line struct {
	label, text string
	owner       string // whose rule or address it is
	// shape is equal for lines that differ only in which endpoint or node it was.
	shape  string
	clears *string // what it cleared, of a line that matters only where a rule asks for the mark
	bad    bool    // the packet ended, or what becomes of it is unknown
}

// translation is a rule's, or a binding's, change of an address.
type translation struct {
	host     string
	ref      string // "nat KUBE-POSTROUTING 3"; "" for a binding
	does     string // "MASQUERADE"
	why      string
	field    string // "source" or "destination"
	from, to string
	mark     *marking // that made the rule apply
	at       position
}

// exemption is a rule of a machine that left the request its source, and where on the way that was.
type exemption struct {
	host, ref, text string
	at              position
	unmatched       string  // the rule with its machine, where it did not apply
	cleared         *string // which rule had cleared the mark that it asks for; nil for none
}

// position is a place on a packet's way in half steps: a rule that did not apply stands between two steps.
type position int

// atStep returns the position of a step. Steps of the reply come behind those of the request.
func atStep(n int) position { return position(2 * n) }

// marking is who marked the packet.
type marking struct {
	field    string // "mark", or "connmark", the connection's
	bits     uint32
	ref, why string
	at       position
}

// refusal is the rule that ended a packet's way.
type refusal struct {
	ref, does, why string
	unknown        string // why its effect is unknown; "" where it is known
}

// words returns the refusal with its reason.
func (r *refusal) words() string { return r.ref + ": " + r.does + paren(r.why) + colon(r.unknown) }

// paren returns " (s)", or nothing.
func paren(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

func explanations(r *walk.Result, o *Owners) []*explanation {
	all := make([]*explanation, len(r.Outcomes))
	for i := range r.Outcomes {
		all[i] = explain(&r.Outcomes[i], i+1, o)
	}
	return all
}

func explain(out *walk.Outcome, number int, o *Owners) *explanation {
	s := &explanation{number: number, outcome: out}
	t := &renderer{reasoner: newReasoner(o), explanation: s, choices: out.Choices}
	s.machines = t.machines(out)
	s.there = rounds(t.hops(out.There, false))
	t.conclude()
	if s.connection != nil {
		s.bypassed = t.bypassed(s.connection)
	}
	s.back = rounds(t.hops(out.Back, true))
	return s
}

// rounds leaves out what a packet that goes in a circle goes through again and again.
func rounds(hops []hop) []hop {
	const longest = 8
	for i := range hops {
		for size := 1; size <= longest; size++ {
			n := 0
			for j := i + size; j+size <= len(hops) && sameHops(hops[i:i+size], hops[j:j+size]); j += size {
				n++
			}
			if n < 2 {
				continue
			}
			again := line{label: "again", text: fmt.Sprintf("the last %d machines, %d more times", size, n), shape: "again", bad: true}
			last := hop{hops[i+size-1].host, append(slices.Clone(hops[i+size-1].lines), again)}
			rest := rounds(hops[i+size*(n+1):])
			return append(append(slices.Clone(hops[:i+size-1]), last), rest...)
		}
	}
	return hops
}

func sameHops(a, b []hop) bool {
	return slices.EqualFunc(a, b, func(x, y hop) bool { return x.host == y.host && slices.Equal(x.lines, y.lines) })
}

// start returns the packet as it was sent.
func (s *explanation) start() packet.Packet {
	if len(s.outcome.There) == 0 {
		return s.outcome.End.Packet
	}
	return s.outcome.There[0].Packet
}

// address stands for any address with a port in a shape.
var address = regexp.MustCompile(`\[?[0-9a-f.:]*[.:][0-9a-f.:]+\]?(:[0-9-]+)?`)

// shape returns a text that outcomes share if they differ only in the endpoint and in the nodes on the way.
func (s *explanation) shape() string {
	var b strings.Builder
	hosts := map[string]string{}
	name := func(host string) string {
		if _, ok := hosts[host]; !ok {
			kind, _, _ := strings.Cut(host, "/")
			hosts[host] = fmt.Sprintf("%s%d", kind, len(hosts))
		}
		return hosts[host]
	}
	for _, hops := range [][]hop{s.there, s.back} {
		for _, bl := range hops {
			b.WriteString("\n" + name(bl.host))
			for _, l := range bl.lines {
				b.WriteString("|" + l.shape)
			}
		}
		b.WriteString("\n--")
	}
	for _, tr := range s.sources {
		fmt.Fprintf(&b, "\n%s %s", name(tr.host), address.ReplaceAllString(tr.ref, ""))
		if tr.mark != nil {
			b.WriteString(" mark")
		}
	}
	fmt.Fprintf(&b, "\n%s %v", s.outcome.End.Kind, s.outcome.End.Refused)
	if s.outcome.BackEnd != nil {
		fmt.Fprintf(&b, " %s", s.outcome.BackEnd.Kind)
	}
	return b.String()
}
