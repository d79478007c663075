package explain

import (
	"fmt"
	"slices"

	"packetwalk.dev/internal/model/walk"
)

// taken says how what is not known was taken, where outcomes with the same answer took it all the same way: the answer may depend on it.
func taken(g []*explanation) []condition {
	const most = 5
	common := g[0].assumptions()
	for _, s := range g[1:] {
		others := s.assumptions()
		common = slices.DeleteFunc(common, func(c *walk.Decision) bool {
			return !slices.ContainsFunc(others, func(o *walk.Decision) bool { return o.Answer == c.Answer && o.Asks(c) })
		})
	}
	var all []condition
	for _, c := range common {
		if g[0].endsBy(c) {
			continue // the sentence says it
		}
		rule := ""
		if c.Chain != nil {
			rule = ruleRef(c.Chain, c.Rule) + " "
		}
		if len(g[0].there) > 1 {
			rule = "on " + hostName(c.Host) + " " + rule
		}
		at, way := atStep(c.Step)-1, ""
		if c.Step >= len(g[0].outcome.There) {
			at, way = afterRequest+1, "for the reply, "
		}
		one := condition{at: at, text: fmt.Sprintf("%sprovided that %s%s (%s)", way, rule, c.Options[c.Answer].Label, c.What)}
		if way == "" && c.Chain != nil {
			one.unmatched = onHost(c.Host, ruleRef(c.Chain, c.Rule))
		}
		if !slices.ContainsFunc(all, func(o condition) bool { return o.text == one.text }) {
			all = append(all, one)
		}
	}
	if n := len(all) - most; n > 0 {
		all = append(all[:most], condition{at: all[most].at, text: fmt.Sprintf("and %d more unknown ones", n)})
	}
	return all
}

// given adds how choices were taken. That a rule does not match is then said once, with what it depends on.
func (a summary) given(choices []condition) summary {
	a.conditions = slices.DeleteFunc(slices.Clone(a.conditions), func(c condition) bool {
		return c.unmatched != "" && slices.ContainsFunc(choices, func(o condition) bool { return o.unmatched == c.unmatched })
	})
	a.conditions = append(a.conditions, choices...)
	return a
}

// endsBy reports whether the request ended at the rule of a choice, because the rule's effect is unknown.
func (s *explanation) endsBy(c *walk.Decision) bool {
	return s.stopped != nil && s.stopped.unknown != "" && c.Rule != nil && s.stopped.ref == ruleRef(c.Chain, c.Rule) &&
		s.outcome.End.Host == c.Host
}

// assumptions returns the choices without known weights, each once. What was asked twice and answered differently is left out.
func (s *explanation) assumptions() []*walk.Decision {
	var all []*walk.Decision
	var open []bool // answered differently
	for i := range s.outcome.Choices {
		c := &s.outcome.Choices[i]
		if weight(c) != nil || c.Answer < 0 || c.Answer >= len(c.Options) {
			continue
		}
		if before := slices.IndexFunc(all, c.Asks); before < 0 {
			all, open = append(all, c), append(open, false)
		} else if all[before].Answer != c.Answer {
			open[before] = true
		}
	}
	var certain []*walk.Decision
	for i, c := range all {
		if !open[i] {
			certain = append(certain, c)
		}
	}
	return certain
}
