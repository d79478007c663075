package explain

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"
	"unicode/utf8"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// Options are what the forms of output need beside the walk.
type Options struct {
	Owners *Owners
	// Colour and Width, in columns, are for terminals; with Width 0 no line is broken.
	Colour bool
	Width  int
	// Notes stand below the walk: what the kernel said, "prediction only: …".
	Notes []string
	// Read is what reading the state had to assume, before the walk.
	Read []walk.Assumption
	// Text says that the state is what a text shows, and not what programs dumped.
	Text bool
	// Lines are the fates of the text's lines, and Redacted the names of its redacted addresses.
	Lines    snapshot.Account
	Redacted map[netip.Addr]string
	// Time is when the state that was walked was taken; zero where that is not known.
	Time time.Time
	// Numbers are the outcomes' numbers where the result holds only some of them; nil for 1, 2, 3, …
	Numbers []int
	// Total is how many outcomes there are in all; 0 for those of the result.
	Total int
	// Neighbours gives rules in JSON those beside them in their chains. The walk is one that noted every rule.
	Neighbours bool
	// Live holds what the kernel showed of a packet that was sent; nil where none was.
	Live *Live
	// Report compares the packet that was sent with the walk; nil where none was sent.
	Report *proof.Report
	// Query is the DNS query before the packet; nil for none. A walk without a result is of a packet that is not sent, as its name was not
	// resolved.
	Query *Query
}

// room returns what a terminal has for a text behind an indent of so many characters; 0 where nothing is to be broken.
func (o *Options) room(indent string) int {
	if o.Width == 0 {
		return 0
	}
	return max(o.Width-utf8.RuneCountInString(indent)-2, 20)
}

func (o *Options) explanations(r *walk.Result) []*explanation {
	all := explanations(r, o.Owners)
	for i := range all {
		all[i].live, all[i].policies = o.Live, openPolicies(r, o.Read, &r.Outcomes[i])
		if all[i].reads, all[i].namesUnread = "the state was read", !o.Text; o.Text {
			all[i].reads = "the text shows"
		}
		if i < len(o.Numbers) {
			all[i].number = o.Numbers[i]
		}
	}
	return all
}

func (o *Options) total(r *walk.Result) int { return max(o.Total, len(r.Outcomes)) }

// The looks of words on a terminal (ECMA-48, SGR).
const (
	plain  = ""
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// page writes lines of text; an error of the writer sticks in the bufio.Writer.
type page struct {
	*bufio.Writer
	o     *Options
	total int // outcomes
}

// paint gives a text on one line its look. What others made has no control characters in it, nor a second line.
func (p *page) paint(look, s string) string {
	s = termsafe.Text(s)
	if !p.o.Colour || look == plain || s == "" {
		return s
	}
	return "\x1b[" + look + "m" + s + "\x1b[0m"
}

// Text writes the walk at a glance: a table of the outcomes where there are several, and of the first one each machine with what mattered
// there and the reply's way back in brief. Below stand what had to be assumed and a sentence that says what the destination sees and why,
// with what it depends on as a list.
func Text(w io.Writer, r *walk.Result, o Options) error {
	if err := o.writeQuery(w, false, r != nil); err != nil || r == nil {
		return err
	}
	return write(w, r, o, func(p *page, all []*explanation) {
		if len(all) > 1 {
			p.outcomes(r, all)
		}
		p.lines(all[0].flat())
	})
}

// write writes a walk: the packet with its sender and destination, the outcomes, and at the end what was assumed and what the destination
// sees.
func write(w io.Writer, r *walk.Result, o Options, outcomes func(p *page, all []*explanation)) error {
	w, done := o.named(termsafe.Writer(w))
	defer done()
	p := &page{Writer: bufio.NewWriter(w), o: &o, total: o.total(r)}
	all := o.explanations(r)
	if len(all) == 0 {
		return fmt.Errorf("the walk has no outcome")
	}
	p.head(all[0])
	outcomes(p, all)
	p.foot(r, all)
	return p.Flush()
}

// head writes the packet with its sender and destination.
func (p *page) head(s *explanation) {
	start := s.start()
	p.wrapped("", bold, fmt.Sprintf("%s %s → %s", start.Protocol, start.SourceEnd(), start.DestinationEnd()))
	from := p.o.Owners.name(start.Source, 0, start.SourcePort)
	if from == "" && len(s.outcome.There) > 0 && s.outcome.There[0].Stage == walk.Sent {
		from = hostName(s.outcome.There[0].Host)
	}
	to := p.o.Owners.name(start.Destination, start.Protocol, start.DestinationPort)
	if to == "" && start.Destination.IsLoopback() {
		to = "itself"
	}
	if end := &s.outcome.End; to == "" && end.Kind == walk.Delivered && end.Packet.Destination == start.Destination {
		to = hostName(end.Host)
	}
	if from != "" || to != "" {
		const unknown = "unknown address"
		p.wrapped("", dim, cmp.Or(from, unknown)+" → "+cmp.Or(to, unknown))
	}
}

// hostLine is a line with the machine that it is told of.
type hostLine struct {
	host string
	line
}

// replyHeading stands above the way back.
const replyHeading = "the reply"

// flat returns the explanation line by line, the reply in brief behind it.
func (s *explanation) flat() []hostLine {
	var all []hostLine
	for _, b := range s.there {
		for _, l := range b.lines {
			all = append(all, hostLine{b.host, l})
		}
	}
	return append(all, s.replyLines()...)
}

// replyLines returns the reply's way, a line for each machine, with its translations.
func (s *explanation) replyLines() []hostLine {
	var all []hostLine
	for _, b := range s.back {
		var ways []string
		var more []line
		for _, l := range b.lines {
			switch l.label {
			case "in", "out":
				ways = append(ways, port(l.text))
			case "snat", "dnat", "drop", "reject", "unknown", "taken", "choice":
				l.text = l.label + " " + l.text
				l.label = ""
				more = append(more, l)
			}
		}
		text := hostName(b.host)
		if len(ways) > 0 {
			text += ": " + strings.Join(ways, " → ")
		}
		all = append(all, hostLine{replyHeading, line{text: text}})
		for _, l := range more {
			l.text = "  " + l.text
			all = append(all, hostLine{replyHeading, l})
		}
	}
	if e := s.outcome.BackEnd; e != nil {
		switch e.Kind {
		case walk.Delivered:
			l := line{text: "arrives from " + e.Packet.SourceEnd()}
			if e.Refused {
				l = line{text: "arrives, but " + e.Why, bad: true}
			}
			all = append(all, hostLine{replyHeading, l})
		case walk.Left:
			text := "leaves the captured network on " + hostName(e.Host)
			if e.Forwarder != "" {
				text = "leaves through " + e.Forwarder
			}
			all = append(all, hostLine{replyHeading, line{text: text}})
		default:
			all = append(all, hostLine{replyHeading, line{text: fmt.Sprintf("%s on %s: %s", e.Kind, endPlace(e), e.Why), bad: true}})
		}
	}
	return all
}

// port returns the wire's end in "BRIDGE, port LINK" and "LINK, port of BRIDGE".
func port(text string) string {
	link, rest, bridged := strings.Cut(text, ", port ")
	if bridged && !strings.HasPrefix(rest, "of ") {
		return rest
	}
	return link
}

// lines writes lines under their machines' names.
func (p *page) lines(lines []hostLine) {
	owner, open := "", "" // said last
	for _, l := range lines {
		if l.host != open {
			owner, open = "", l.host
			title := open
			if !strings.HasPrefix(open, replyHeading) {
				title = hostName(open)
			}
			fmt.Fprintf(p, "\n%s\n", p.paint(bold, title))
		}
		if l.owner == owner {
			l.owner = ""
		} else {
			owner = l.owner
		}
		p.line(l.line, "  ")
	}
}

// line writes a label, what happened, and whose it is: beside it where there is room, else below.
func (p *page) line(l line, indent string) {
	const column = 8
	look := plain
	if l.bad {
		look = red
	} else if l.label == "snat" || l.label == "dnat" {
		look = yellow
	}
	left, below := indent, indent
	if l.label != "" {
		left += p.paint(dim, fmt.Sprintf("%-*s", column-1, l.label)) + " "
		below += strings.Repeat(" ", column)
	}
	lines := termsafe.Wrap(l.text, p.o.room(below)) // of which the second begins two columns further in
	for i, text := range lines {
		if i > 0 {
			left = below + "  "
		}
		if i == len(lines)-1 && l.owner != "" && utf8.RuneCountInString(left+text+l.owner)+3 <= cmp.Or(p.o.Width, 100) {
			fmt.Fprintf(p, "%s%s   %s\n", left, p.paint(look, text), p.paint(dim, l.owner))
			return
		}
		fmt.Fprintf(p, "%s%s\n", left, p.paint(look, text))
	}
	if l.owner != "" {
		p.wrapped(below+"  ", dim, l.owner)
	}
}

// foot says what was assumed, what there is to add, and what the destination sees, once for each different answer.
func (p *page) foot(r *walk.Result, all []*explanation) {
	fmt.Fprintln(p)
	p.assumed(r)
	if r.More {
		fmt.Fprintf(p, "there are more outcomes than the %d that were walked\n", len(r.Outcomes))
	}
	for _, n := range p.o.Notes {
		p.wrapped("", plain, n)
	}
	var answers []summary
	by := map[string][]*explanation{}
	for _, s := range all {
		a := s.summary()
		if by[a.text()] == nil {
			answers = append(answers, a)
		}
		by[a.text()] = append(by[a.text()], s)
	}
	for _, a := range answers {
		p.summary(a, by[a.text()], len(answers) > 1)
	}
}

// summary writes a sentence, and below it what it depends on, also on how what is not known was taken.
func (p *page) summary(a summary, g []*explanation, several bool) {
	which := ""
	if several {
		var numbers []int
		for _, s := range g {
			numbers = append(numbers, s.number)
		}
		which = fmt.Sprintf("%s of %d: ", ranges(numbers), p.total)
	}
	p.wrapped(which, bold, a.sentence)
	for _, c := range a.given(taken(g)).words() {
		p.wrapped("- ", plain, c)
	}
}

// wrapped writes a text behind its beginning, on a terminal broken between words to its width.
func (p *page) wrapped(begin, look, text string) {
	below := strings.Repeat(" ", utf8.RuneCountInString(begin))
	for i, line := range termsafe.Wrap(text, p.o.room(begin)) {
		if i > 0 {
			begin = below
		}
		fmt.Fprintf(p, "%s%s\n", begin, p.paint(look, line))
	}
}
