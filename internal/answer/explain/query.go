package explain

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/model/walk"
)

// Query is a DNS query by which the sender looks a name up before it sends the packet.
type Query struct {
	Name       string
	Resolved   bool   // the sender's resolver has just had an address
	Unanswered string // why it had none, or not all
	Result     *walk.Result
	// Options are those of the query's own walk: its notes, what reading assumed, what the kernel showed.
	Options Options
}

// QueryFate says how a DNS query ends.
type QueryFate string

// The fates.
const (
	QueryAnswered QueryFate = "answered"
	QueryLost     QueryFate = "lost" // on all its ways, it or the answer does not arrive
	QueryUnknown  QueryFate = "unknown"
)

// knownResolvers are addresses that name servers have on every node or network: Azure's documentation, and AgentBaker's localdns.sh.
var knownResolvers = map[netip.Addr]string{
	netip.AddrFrom4([4]byte{168, 63, 129, 16}): "Azure's DNS of the VNet",
	netip.AddrFrom4([4]byte{169, 254, 10, 10}): "AKS LocalDNS",
	netip.AddrFrom4([4]byte{169, 254, 10, 11}): "AKS LocalDNS",
	netip.AddrFrom4([4]byte{169, 254, 20, 10}): "NodeLocal DNSCache",
}

// resolver returns the owner of the query's destination, in words; "" where it is unknown.
func (q *Query) resolver() string {
	p := &q.Result.Request.Packet
	return cmp.Or(knownResolvers[p.Destination], q.Options.Owners.name(p.Destination, p.Protocol, p.DestinationPort))
}

// arrives reports whether an outcome's query gets to a program and its answer back.
func arrives(o *walk.Outcome) bool {
	return o.End.Kind == walk.Delivered && !o.End.Refused && o.BackEnd != nil && o.BackEnd.Kind == walk.Delivered && !o.BackEnd.Refused
}

// Fate returns what becomes of the query. That of one that leaves for where nothing is known is unknown, unless its answer has come. So is
// that of one that was answered against the walk.
func (q *Query) Fate() QueryFate {
	arrived, lost := 0, 0
	for i := range q.Result.Outcomes {
		o := &q.Result.Outcomes[i]
		left := o.End.Kind == walk.Left || o.BackEnd != nil && o.BackEnd.Kind == walk.Left
		switch {
		case arrives(o), left && q.Resolved:
			arrived++
		case !left:
			lost++
		}
	}
	switch n := len(q.Result.Outcomes); {
	case IsUndecided(q.Result, q.Options.Live != nil), lost == n && q.Resolved, q.Result.More && arrived < n:
		return QueryUnknown
	case lost == n:
		return QueryLost
	case arrived+lost < n:
		return QueryUnknown
	}
	return QueryAnswered
}

// mostAnswerers is how many hosts that may answer are named.
const mostAnswerers = 3

// Text returns what becomes of the query in a line: who asks which resolver, who answers, and by what the query may be lost.
func (q *Query) Text() string {
	request := &q.Result.Request
	who := request.Packet.Destination.String() + paren(q.resolver())
	text := fmt.Sprintf("%s asks %s for %s: ", hostName(request.Host), who, strings.TrimSuffix(q.Name, "."))
	var answer, fates []string
	for _, s := range q.Options.explanations(q.Result) {
		if arrives(s.outcome) {
			answer = append(answer, hostName(s.outcome.End.Host))
			continue
		}
		fates = append(fates, s.loss())
	}
	answer, fates = unique(answer), unique(fates)
	switch n := len(answer); {
	case n == 1:
		fates = append([]string{answer[0] + " answers"}, fates...)
	case n > mostAnswerers:
		fates = append([]string{fmt.Sprintf("one of %d answers, such as %s", n, answer[0])}, fates...)
	case n > 1:
		fates = append([]string{strings.Join(answer, " or ") + " answers"}, fates...)
	}
	text += strings.Join(fates, "; or ")
	switch fate := q.Fate(); {
	case q.Resolved && len(answer) == 0 && fate == QueryUnknown:
		text += "; an answer has come, whatever the walk says"
	case q.Resolved && len(answer) == 0:
		text += "; an answer has come"
	case !q.Resolved:
		text += "; the name was not resolved" + colon(q.Unanswered)
	}
	if len(q.Result.Assumed)+len(q.Options.Read) > 0 {
		text += " (assumptions: see -o wide)"
	}
	return text
}

// loss says why a query gets no answer, or why that is unknown.
func (s *explanation) loss() string {
	end := &s.outcome.End
	var a summary
	switch {
	case s.live.decides(s.outcome):
		a = s.summary()
		return strings.Join(append([]string{a.sentence}, a.words()...), "; ")
	case end.Kind == walk.Left:
		return "the query leaves the captured network on " + endPlace(end)
	case end.Kind == walk.Delivered:
		s.aftermath(&a)
		return fmt.Sprintf("the query gets to %s, but %s", hostName(end.Host), strings.Join(a.words(), "; "))
	}
	return strings.TrimPrefix(s.conclusion().sentence, "the destination sees nothing: ")
}

// writeQuery writes the way of the query before the packet's, if there is one: in a line with its notes, and with every step if wide. It ends
// with the conclusion if the packet is not sent.
func (o *Options) writeQuery(w io.Writer, wide, sent bool) error {
	q := o.Query
	if q == nil {
		return nil
	}
	w, done := o.named(termsafe.Writer(w))
	defer done()
	p := &page{Writer: bufio.NewWriter(w), o: o}
	p.wrapped("", bold, "DNS: "+q.Text())
	if wide {
		fmt.Fprintln(p)
		if err := Wide(p, q.Result, q.Options); err != nil {
			return err
		}
	} else {
		for _, n := range q.Options.Notes {
			p.wrapped("  ", plain, n)
		}
	}
	switch {
	case sent:
		fmt.Fprintln(p)
	case q.Fate() == QueryUnknown:
		p.wrapped("", bold, "it is unknown whether the name is resolved; to walk a packet nevertheless, write its address")
	default:
		p.wrapped("", bold, "the destination sees nothing: its name is not resolved; to walk a packet nevertheless, write its address")
	}
	return p.Flush()
}

// QueryDoc is a DNS query of the sender, before the packet.
type QueryDoc struct {
	Name       string    `json:"name"`
	Server     string    `json:"server"`
	Resolver   string    `json:"resolver,omitempty"`
	Resolved   bool      `json:"resolved"`
	Unanswered string    `json:"unanswered,omitempty"`
	Fate       QueryFate `json:"fate"`
	Text       string    `json:"text"`
	Walk       Document  `json:"walk"`
}

func (q *Query) doc() *QueryDoc {
	return &QueryDoc{Name: strings.TrimSuffix(q.Name, "."), Server: q.Result.Request.Packet.Destination.String(), Resolver: q.resolver(), Resolved: q.Resolved,
		Unanswered: q.Unanswered, Fate: q.Fate(), Text: q.Text(), Walk: newDocument(q.Result, q.Options)}
}
