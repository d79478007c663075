package explain

import (
	"fmt"
	"slices"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// IsUndecided reports whether one of the ways, or a reply's, ends in what is not known, or which way is taken depends on that. It is not
// known either what a process sees to which a program may show something else. The packet of a live walk does not meet programs of the
// sender's control group, so what they do is open although it passed.
func IsUndecided(result *walk.Result, live bool) bool {
	if live && len(UnmetPrograms(result)) > 0 {
		return true
	}
	unknown := func(e *walk.End) bool { return e != nil && (e.Kind == walk.Undecided || e.Disguise != "") }
	several := slices.ContainsFunc(result.Outcomes, func(o walk.Outcome) bool { return !sameEnds(&o, &result.Outcomes[0]) })
	return slices.ContainsFunc(result.Outcomes, func(o walk.Outcome) bool {
		return unknown(&o.End) || unknown(o.BackEnd) || len(o.Unread) > 0 || several && slices.ContainsFunc(o.Choices, func(c walk.Decision) bool {
			return c.Kind == netfilter.Unknown
		})
	})
}

// sameEnds reports whether two outcomes end alike and by the same rule, there and back.
func sameEnds(a, b *walk.Outcome) bool {
	same := func(a, b *walk.End) bool {
		return a == nil && b == nil || a != nil && b != nil && a.Kind == b.Kind && a.Host == b.Host && a.Link == b.Link &&
			a.Refused == b.Refused && a.Reject == b.Reject && a.Why == b.Why && a.Packet.Tuple == b.Packet.Tuple
	}
	return same(&a.End, &b.End) && same(a.BackEnd, b.BackEnd)
}

// UnmetPrograms returns notes about the programs that the packet of a live walk did not meet: its process is not in the sender's control group.
func UnmetPrograms(result *walk.Result) (notes []string) {
	for i := range result.Outcomes {
		for _, c := range result.Outcomes[i].Choices {
			asked, ok := c.About.(walk.Intervention)
			if !ok || c.Host != result.Request.Host {
				continue
			}
			for _, p := range asked.OfGroups() {
				note := fmt.Sprintf("packetwalk sent the packet from outside of that control group, so that it did not meet %s", &p)
				if !slices.Contains(notes, note) {
					notes = append(notes, note)
				}
			}
		}
	}
	return notes
}

// EndedConnections returns notes about connections that get their answer and end all the same, when the sender acknowledges it.
func EndedConnections(src snapshot.Source, result *walk.Result) (notes []string, err error) {
	var ends []string
	outcomes := map[string]int{}
	for i := range result.Outcomes {
		forgets, always, err := walk.Forgets(src, result.Request, &result.Outcomes[i])
		if err != nil {
			return nil, err
		}
		if !always {
			continue
		}
		end := "on " + forgets[0].Host + " " + forgets[0].Why
		if outcomes[end]++; outcomes[end] == 1 {
			ends = append(ends, end)
		}
	}
	for _, end := range ends {
		of := ""
		if total := len(result.Outcomes); outcomes[end] < total {
			of = fmt.Sprintf(" in %d of these %d outcomes", outcomes[end], total)
		}
		notes = append(notes, fmt.Sprintf("the connection does not last%s: %s", of, end))
	}
	return notes, nil
}
