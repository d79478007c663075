package explain

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/walk"
)

// groups puts together outcomes that differ only in the endpoint, in the order of their first ones.
func groups(all []*explanation) [][]*explanation {
	var gs [][]*explanation
	at := map[string]int{}
	for _, s := range all {
		shape := s.shape()
		i, ok := at[shape]
		if !ok {
			i = len(gs)
			at[shape] = i
			gs = append(gs, nil)
		}
		gs[i] = append(gs[i], s)
	}
	return gs
}

func (p *page) group(g []*explanation, shared int) {
	var numbers []int
	for _, s := range g {
		numbers = append(numbers, s.number)
	}
	first := g[0]
	title := fmt.Sprintf("%s of %d (%s): ", ranges(numbers), p.total, odds(g))
	var endings []string
	by := map[string][]int{}
	for _, s := range g {
		e := p.ending(s)
		endings, by[e] = append(endings, e), append(by[e], s.number)
	}
	endings = unique(endings)
	if len(endings) == 1 {
		title += endings[0]
	} else {
		title += "identical except for " + differences(g)
	}
	fmt.Fprintln(p)
	p.wrapped("", bold, title)
	for _, e := range endings {
		if len(endings) > 1 {
			p.wrapped("    "+ranges(by[e])+"  ", plain, e)
		}
	}
	for _, what := range undecided(g) {
		p.wrapped("  ", yellow, "unknown: "+what)
	}
	open := ""
	flat := first.flat()
	if len(g) > 1 && len(flat) > shared {
		fmt.Fprintf(p, "  %s\n", p.paint(dim, fmt.Sprintf("number %d in full:", first.number)))
	}
	if shared > 0 && shared < len(flat) && flat[shared].host == flat[shared-1].host {
		open = flat[shared].host
	}
	p.lines(flat[shared:], open, "  ")
}

// differences names what outcomes of a group differ in, beside where they end: the nodes on the way, the source that the destination sees.
func differences(g []*explanation) string {
	all := []string{"the last hop"}
	differ := func(of func(*explanation) string) bool {
		return slices.ContainsFunc(g, func(s *explanation) bool { return of(s) != of(g[0]) })
	}
	if differ(func(s *explanation) string { return strings.Join(s.nodes(), " ") }) {
		all = append(all, "the nodes on the way")
	}
	if differ(func(s *explanation) string { return s.outcome.End.Packet.SourceEnd() }) {
		all = append(all, "the source address and port")
	}
	if last := len(all) - 1; last > 0 {
		return strings.Join(all[:last], ", ") + " and " + all[last]
	}
	return all[0]
}

// endWords says of an end other than a delivery what becomes of the packet.
var endWords = map[walk.EndKind]string{
	walk.Left: "leaves the known network", walk.Undecided: "outcome unknown", walk.Looped: "goes round in a loop",
}

// undecided returns the choices without known weights that outcomes of a group took differently, in words.
func undecided(g []*explanation) []string {
	var asked []*walk.Decision
	var differ []string
	for _, s := range g {
		for i := range s.outcome.Choices {
			c := &s.outcome.Choices[i]
			if weight(c) != nil {
				continue
			}
			if before := slices.IndexFunc(asked, c.Asks); before < 0 {
				asked = append(asked, c)
			} else if asked[before].Answer != c.Answer {
				differ = append(differ, hostName(c.Host)+": "+c.What)
			}
		}
	}
	return unique(differ)
}

// ending returns where an outcome ends, whose that is, and the nodes on the way.
func (p *page) ending(s *explanation) string {
	e := &s.outcome.End
	text := e.Packet.DestinationEnd()
	if owner := p.o.Owners.name(e.Packet.Destination, e.Packet.Protocol, e.Packet.DestinationPort); owner != "" {
		text += ", " + owner
	}
	if e.Kind != walk.Delivered {
		text += ", " + cmp.Or(endWords[e.Kind], string(e.Kind))
	}
	if nodes := s.nodes(); p.nodes > 1 && len(nodes) > 0 {
		text += ", by " + strings.Join(nodes, ", ")
	}
	return text
}

// nodes returns the nodes on the way, each once.
func (s *explanation) nodes() []string {
	var nodes []string
	for _, b := range s.there {
		if strings.HasPrefix(b.host, "node/") && !slices.Contains(nodes, hostName(b.host)) {
			nodes = append(nodes, hostName(b.host))
		}
	}
	return nodes
}

// odds returns "probability 1/2", or "probability 1/4 each".
func odds(g []*explanation) string {
	sum, each := new(big.Rat), true
	for _, s := range g {
		p := s.outcome.Probability
		if p == nil {
			return "probability unknown"
		}
		sum.Add(sum, p)
		each = each && share(p) == share(g[0].outcome.Probability)
	}
	switch {
	case len(g) == 1:
		return "probability " + share(sum)
	case each:
		return "probability " + share(g[0].outcome.Probability) + " each"
	}
	return "probability " + share(sum) + " together"
}

// share writes a probability for people: as the fraction that it is where that is short, else as the shortest one beside it, "about 1/5".
// The kernel holds a probability in 31 bits (xt_statistic.h), so that what kube-proxy writes as 0.20000000019 is 429496730/2147483648; the
// exact fraction is in the JSON.
func share(p *big.Rat) string {
	const longest = 1000
	if p.Denom().IsInt64() && p.Denom().Int64() <= longest {
		return p.RatString()
	}
	near := big.NewRat(1, 1_000_000)
	for denominator := int64(1); denominator <= longest; denominator++ {
		scaled, _ := new(big.Rat).Mul(p, big.NewRat(denominator, 1)).Float64()
		fraction := big.NewRat(int64(math.Round(scaled)), denominator)
		if off := new(big.Rat).Sub(p, fraction); fraction.Sign() > 0 && off.Abs(off).Cmp(near) <= 0 {
			return "about " + fraction.RatString()
		}
	}
	return "about " + p.FloatString(6)
}

// ranges writes 1, 2, 3, 5 as "1-3, 5".
func ranges(n []int) string {
	var parts []string
	for i := 0; i < len(n); {
		j := i
		for j+1 < len(n) && n[j+1] == n[j]+1 {
			j++
		}
		if j > i {
			parts = append(parts, fmt.Sprintf("%d-%d", n[i], n[j]))
		} else {
			parts = append(parts, fmt.Sprint(n[i]))
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}

// Drop returns where and by what the packet is dropped on all its ways, the first of them if they differ, and "" where one delivers it or
// is not known.
func Drop(r *walk.Result, owners *Owners) string {
	for i := range r.Outcomes {
		if r.Outcomes[i].End.Kind != walk.Dropped {
			return ""
		}
	}
	if len(r.Outcomes) == 0 {
		return ""
	}
	s := explain(&r.Outcomes[0], 1, owners)
	return fmt.Sprintf("dropped on %s by %s", hostName(s.outcome.End.Host), s.ended())
}

// Endings says of each outcome, in the order of the walk's, where it ends and how likely it is: to choose from.
func Endings(r *walk.Result, o Options) []string {
	all := o.explanations(r)
	p := &page{o: &o, total: o.total(r), nodes: 2}
	endings := make([]string, len(all))
	for i, s := range all {
		endings[i] = p.ending(s) + " (" + odds([]*explanation{s}) + ")"
	}
	return endings
}
