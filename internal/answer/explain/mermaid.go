package explain

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode"

	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/model/walk"
)

// mostMessages limits the arrows of a diagram: a packet may go round.
const mostMessages = 40

// Mermaid writes the first outcome as a sequence diagram in a block of Markdown: the machines, the packet between them, and the rules that
// translate it.
func Mermaid(w io.Writer, r *walk.Result, o Options) error {
	d := &diagram{Writer: bufio.NewWriter(w), o: &o, ids: map[string]string{}}
	fmt.Fprintln(d, "```mermaid\nsequenceDiagram")
	if r == nil {
		d.note(d.participant("?", "the sender"), o.Query.Text())
		fmt.Fprintln(d, "```")
		return d.Flush()
	}
	all := o.explanations(r)
	if len(all) == 0 {
		return fmt.Errorf("the walk has no outcome")
	}
	s := all[0]
	out := s.outcome
	hosts := hostsOf(out)
	for _, host := range hosts {
		d.participant(host, hostName(host))
	}
	across := d.ids[hosts[0]]
	if len(hosts) > 1 {
		across += "," + d.ids[hosts[len(hosts)-1]]
	}
	if total := o.total(r); total > 1 {
		d.note(across, s.numbered(total))
	}
	if o.Query != nil {
		d.note(d.ids[hosts[0]], o.Query.Text())
	}
	d.way(out.There, "->>", newReasoner(o.Owners))
	if last := d.ids[out.End.Host]; out.End.Kind == walk.Delivered {
		d.note(last, "delivered to "+out.End.Packet.DestinationEnd()+listening(&out.End))
	} else {
		d.note(last, string(out.End.Kind)+": "+s.ended())
	}
	d.way(out.Back, "-->>", newReasoner(o.Owners))
	d.note(across, s.summary().text())
	fmt.Fprintln(d, "```")
	return d.Flush()
}

// hostsOf returns the machines of an outcome in the order in which the packet and its reply come to them, each once.
func hostsOf(out *walk.Outcome) []string {
	var all []string
	for s := range out.Steps() {
		all = append(all, s.Host)
	}
	return unique(append(all, out.End.Host))
}

// diagram writes a sequence diagram; an error of the writer sticks in the bufio.Writer.
type diagram struct {
	*bufio.Writer
	o        *Options
	ids      map[string]string // of machines
	messages int
}

func (d *diagram) participant(host, name string) string {
	id := fmt.Sprintf("m%d", len(d.ids)+1)
	d.ids[host] = id
	fmt.Fprintf(d, "    participant %s as %s\n", id, d.escape(name))
	return id
}

func (d *diagram) note(over, text string) {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		lines = append(lines, d.escape(line))
	}
	fmt.Fprintf(d, "    Note over %s: %s\n", over, strings.Join(lines, "<br/>"))
}

// way writes an arrow for each pair of machines, and a note for each translation.
func (d *diagram) way(steps []walk.Step, arrow string, why *reasoner) {
	for i := range steps {
		st := &steps[i]
		if i > 0 && st.Host != steps[i-1].Host {
			if d.messages++; d.messages > mostMessages {
				d.note(d.ids[st.Host], "and further machines, which are left out here")
				return
			}
			p := &steps[i-1].Packet
			fmt.Fprintf(d, "    %s%s%s: %s\n", d.ids[steps[i-1].Host], arrow, d.ids[st.Host],
				d.escape(fmt.Sprintf("%s %s → %s", p.Protocol, p.SourceEnd(), p.DestinationEnd())))
		}
		by := "the connection's NAT mapping"
		if v := st.Visit; v != nil {
			by = reference(v) + paren(why.why(st.Host, v, &st.Packet))
		}
		for _, c := range changesOf(st) {
			if c.Field == "source" || c.Field == "destination" {
				d.note(d.ids[st.Host], fmt.Sprintf("%s %s → %s\nby %s", strings.ToUpper(natLabel(c.Field)), c.From, c.To, by))
			}
		}
	}
}

// escape returns a text in which Mermaid and Markdown find only letters: other signs are entities. Names are of others.
func (d *diagram) escape(text string) string {
	var b strings.Builder
	for _, r := range termsafe.Text(d.o.withNames(text)) {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune(" .,/()→", r) || r == ':' && b.Len() > 0 || r == '-' && b.Len() > 0 {
			b.WriteRune(r)
			continue
		}
		fmt.Fprintf(&b, "#%d;", r)
	}
	return b.String()
}
