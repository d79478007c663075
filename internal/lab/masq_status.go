package lab

import (
	"fmt"
	"maps"
	"slices"

	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/node/ipmasq"
)

// masqReport is what is read of packetwalk-node's state of the ip-masq-agent.
type masqReport struct {
	Config    *struct{}        `json:"config"` // null before the first that could be applied
	Unhealthy []string         `json:"unhealthy"`
	Problems  []ipmasq.Problem `json:"problems"`
}

// Report asks the nodes what their ip-masq-agents complain about: as problems what keeps a configuration from being in force, as warnings
// what is likely not meant. What many nodes say is said once.
func (l *masq) Report(s *Status) {
	if l.cluster().Spec.Network.IPMasqAgent != cluster.IPMasqNone {
		s.add(masqComplaints(askAgents[masqReport](l.nodes, masqAgentState)))
	}
}

func masqComplaints(reports []masqReport) (problems, warnings []string) {
	unhealthy, suspect := map[string]int{}, map[string]int{}
	for _, r := range reports {
		if r.Config == nil && len(r.Problems) == 0 {
			continue // it has just started
		}
		for _, what := range r.Unhealthy {
			unhealthy[what]++
		}
		for _, p := range r.Problems {
			if p.Severity == ipmasq.Warning {
				suspect["ConfigMap "+p.ConfigMap+", "+p.String()]++
			}
		}
	}
	list := func(what map[string]int) (lines []string) {
		for _, text := range slices.Sorted(maps.Keys(what)) {
			lines = append(lines, fmt.Sprintf("ip-masq-agent of %d of %d nodes: %s", what[text], len(reports), text))
		}
		return lines
	}
	return list(unhealthy), list(suspect)
}
