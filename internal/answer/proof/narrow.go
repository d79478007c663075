package proof

import (
	"slices"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// Narrow returns a walk with only those outcomes that the kernel may have taken. It leaves out what the kernel showed: assumptions and
// unread state of the hosts at which everything was seen as predicted, and how unknown choices were taken that only outcomes without a
// difference took so. Assumptions of other outcomes alone are gone, too. Those that no trace shows stay.
func Narrow(source snapshot.Source, result *walk.Result, report *Report) (*walk.Result, error) {
	narrow := *result
	narrow.Outcomes, narrow.Otherwise = nil, nil
	for _, i := range report.Candidates {
		narrow.Outcomes = append(narrow.Outcomes, result.Outcomes[i])
	}
	if result.More || len(narrow.Outcomes) < len(result.Outcomes) {
		if err := assumeAnew(source, &narrow); err != nil {
			return nil, err
		}
	}
	isShown := func(host string) bool { return slices.Contains(report.Shown, host) }
	isShownState := func(m walk.MissingState) bool { return isShown(m.Host) }
	narrow.Assumed = slices.DeleteFunc(slices.Clone(narrow.Assumed), func(a walk.Assumption) bool {
		return isShown(a.Host) && !a.Untraced
	})
	var settled []walk.Decision
	if report.First == nil && !result.More {
		settled = slices.DeleteFunc(commonChoices(narrow.Outcomes), func(c walk.Decision) bool {
			asked, ok := c.About.(walk.Intervention)
			return ok && c.Host == result.Request.Host && len(asked.OfGroups()) > 0 // the packet's sender is in no such group
		})
	}
	for i := range narrow.Outcomes {
		o := &narrow.Outcomes[i]
		o.Unshown = slices.DeleteFunc(slices.Clone(o.Unshown), isShownState)
		o.BackUnshown = slices.DeleteFunc(slices.Clone(o.BackUnshown), isShownState)
		o.Choices = slices.DeleteFunc(slices.Clone(o.Choices), func(c walk.Decision) bool {
			return slices.ContainsFunc(settled, sameChoice(&c))
		})
	}
	return &narrow, nil
}

// commonChoices returns the unknown choices that all of some outcomes took in the same way.
func commonChoices(outcomes []walk.Outcome) (common []walk.Decision) {
	for i := range outcomes {
		if i == 0 {
			common = slices.DeleteFunc(slices.Clone(outcomes[0].Choices), func(c walk.Decision) bool { return c.Kind != netfilter.Unknown })
			continue
		}
		common = slices.DeleteFunc(common, func(c walk.Decision) bool { return !slices.ContainsFunc(outcomes[i].Choices, sameChoice(&c)) })
	}
	return common
}

func sameChoice(c *walk.Decision) func(walk.Decision) bool {
	return func(o walk.Decision) bool { return c.Answer == o.Answer && c.Asks(&o) }
}

// assumeAnew sets a result's assumptions to those of its outcomes: it walks each of them once more.
func assumeAnew(source snapshot.Source, result *walk.Result) error {
	var assumed []walk.Assumption
	for i := range result.Outcomes {
		request := result.Request
		request.MaxOutcomes, request.Pin = 1, nil
		for _, c := range result.Outcomes[i].Choices {
			request.Pin = append(request.Pin, c.Answer)
		}
		one, err := walk.Walk(source, request)
		if err != nil {
			return err
		}
		for _, a := range one.Assumed {
			if !slices.Contains(assumed, a) {
				assumed = append(assumed, a)
			}
		}
	}
	result.Assumed = assumed
	return nil
}

// shown returns the hosts at which everything that is predicted, on both ways, was compared: they were watched, and so were the hosts before
// and after them on the way.
func (c *comparison) shown() (hosts []string) {
	o := c.outcome
	unsure := map[string]bool{}
	for _, e := range []*walk.End{&o.End, o.BackEnd} {
		if e != nil && e.Kind == walk.Undecided {
			unsure[e.Host] = true
		}
	}
	look := func(steps []walk.Step, compared bool) {
		before := ""
		for _, s := range steps {
			hosts = append(hosts, s.Host)
			if !compared || c.observed.Hosts[s.Host] == nil {
				unsure[s.Host] = true
			}
			if before != "" && (c.observed.Hosts[s.Host] == nil || c.observed.Hosts[before] == nil) {
				unsure[before], unsure[s.Host] = true, true
			}
			before = s.Host
		}
	}
	look(o.There, true)
	look(o.Back, !c.Unanswered)
	slices.Sort(hosts)
	return slices.DeleteFunc(slices.Compact(hosts), func(host string) bool { return unsure[host] })
}
