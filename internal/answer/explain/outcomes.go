package explain

import (
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

// mostRows limits the rows of a table, and mostAlike those for outcomes that differ little.
const (
	mostRows  = 40
	mostAlike = 10
)

// outcomes writes a table with a row for each outcome. Outcomes that differ little stand together.
func (p *page) outcomes(r *walk.Result, all []*explanation) {
	gs := groups(all)
	title := fmt.Sprintf("%d outcomes", p.total)
	if len(all) < p.total {
		title = fmt.Sprintf("%d of %d outcomes", len(all), p.total)
	} else if r.More {
		title = fmt.Sprintf("the first %d outcomes", p.total)
	}
	if len(gs) == 1 {
		title += ", identical except for " + differences(all)
	}
	fmt.Fprintln(p)
	p.wrapped("", bold, title+":")
	open, width := undecided(all), 0
	for _, s := range all {
		width = max(width, len(percent(s.outcome.Probability)))
	}
	rows := 0
	for _, g := range gs {
		shown := min(len(g), mostRows-rows)
		if len(g) > mostAlike+1 {
			shown = min(shown, mostAlike)
		}
		for _, s := range g[:shown] {
			p.wrapped(fmt.Sprintf("  %*d  %*s  ", len(fmt.Sprint(p.total)), s.number, width, percent(s.outcome.Probability)), plain,
				s.conditions(open)+s.short())
		}
		if rows += shown; rows == mostRows {
			break
		}
		if shown < len(g) {
			p.wrapped("  ", plain, fmt.Sprintf("and %d more like these (-o short lists all)", len(g)-shown))
		}
	}
	if rows == mostRows {
		p.wrapped("  ", plain, "-o short lists all outcomes")
	}
	for _, g := range gs {
		if len(g) > 1 && len(gs) > 1 {
			p.wrapped("", dim, ranges(numbersOf(g))+": identical except for "+differences(g))
		}
	}
	var unknown []string
	for _, c := range open {
		unknown = append(unknown, hostName(c.Host)+": "+c.What)
	}
	for _, what := range unique(unknown) {
		p.wrapped("", yellow, "unknown: "+what)
	}
	title = fmt.Sprintf("outcome %d, step by step", all[0].number)
	if p.o.Live == nil {
		title += fmt.Sprintf(" (--choose %d shows outcome %[1]d)", all[1].number)
	}
	fmt.Fprintln(p)
	p.wrapped("", bold, title+":")
}

// numbered returns an outcome in one line with its number and probability.
func (s *explanation) numbered(total int) string {
	odds := "probability unknown"
	if s.outcome.Probability != nil {
		odds = percent(s.outcome.Probability)
	}
	return fmt.Sprintf("%d of %d (%s): %s", s.number, total, odds, s.short())
}

// differences names what outcomes of a group differ in: the nodes on the way, the source that the destination sees, where they end.
func differences(g []*explanation) string {
	differ := func(of func(*explanation) string) bool {
		return slices.ContainsFunc(g, func(s *explanation) bool { return of(s) != of(g[0]) })
	}
	end := func(s *explanation) *walk.End { return &s.outcome.End }
	var all []string
	if differ(func(s *explanation) string { return strings.Join(s.nodes(), " ") }) {
		all = append(all, "the nodes on the way")
	}
	if differ(func(s *explanation) string { return end(s).Packet.Source.String() }) {
		all = append(all, "the source address")
	} else if differ(func(s *explanation) string { return end(s).Packet.SourcePort.String() }) {
		all = append(all, "the source port")
	}
	if differ(func(s *explanation) string { return end(s).Host + " " + end(s).Packet.DestinationEnd() }) {
		all = append(all, "the last hop")
	}
	switch last := len(all) - 1; {
	case last < 0:
		return "the rules on the way"
	case last > 0:
		return strings.Join(all[:last], ", ") + " and " + all[last]
	}
	return all[0]
}

// undecided returns the choices without known weights that outcomes took differently, each once.
func undecided(all []*explanation) []*walk.Decision {
	var asked, differ []*walk.Decision
	for _, s := range all {
		for i := range s.outcome.Choices {
			c := &s.outcome.Choices[i]
			if weight(c) != nil {
				continue
			}
			before := slices.IndexFunc(asked, c.Asks)
			if before < 0 {
				asked = append(asked, c)
			} else if asked[before].Answer != c.Answer && !slices.Contains(differ, asked[before]) {
				differ = append(differ, asked[before])
			}
		}
	}
	return differ
}

// conditions returns how an outcome took choices, as the beginning of a sentence: "if filter FORWARD 1 matches: ".
func (s *explanation) conditions(choices []*walk.Decision) string {
	const most = 3
	var all []string
	for i := range s.outcome.Choices {
		own := &s.outcome.Choices[i]
		if own.Answer < 0 || own.Answer >= len(own.Options) || !slices.ContainsFunc(choices, own.Asks) {
			continue
		}
		text := own.Options[own.Answer].Label
		if own.Chain != nil {
			text = ruleRef(own.Chain, own.Rule) + " " + text
		}
		if own.Step >= len(s.outcome.There) {
			text = "for the reply " + text
		}
		all = append(all, text)
	}
	if len(all) == 0 {
		return ""
	}
	if n := len(all) - most; n > 0 {
		all = append(all[:most], fmt.Sprintf("%d more", n))
	}
	return "if " + strings.Join(all, " and ") + ": "
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

// percent returns a probability as "33 %".
func percent(p *big.Rat) string {
	if p == nil {
		return "? %"
	}
	exact, _ := new(big.Rat).Mul(p, big.NewRat(100, 1)).Float64()
	switch rounded := math.Round(exact); {
	case rounded == 0 && p.Sign() > 0:
		return "< 1 %"
	case rounded == 100 && exact < 100:
		return "> 99 %"
	default:
		return fmt.Sprintf("%.0f %%", rounded)
	}
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

// Ending returns by what rule, route or check an outcome ended, in words.
func Ending(o *walk.Outcome, owners *Owners) string { return explain(o, 1, owners).ended() }
