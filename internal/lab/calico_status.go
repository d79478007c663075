package lab

import (
	"fmt"
	"maps"
	"slices"

	"packetwalk.dev/internal/lab/cluster"
)

// poolReport is what is read of packetwalk-node's state of Calico's pools.
type poolReport struct {
	Sets      map[string]any `json:"sets"` // none before the first that were in force
	Unhealthy []string       `json:"unhealthy"`
	Problems  []struct {
		Kind, Name, Problem string
	} `json:"problems"`
}

// Report asks the nodes about Calico's pools: as problems what keeps them from being in force, as warnings what is wrong with an object.
// What many nodes say is said once.
func (l *calico) Report(s *Status) {
	if l.cluster().Spec.Network.Policy == cluster.PolicyCalico {
		s.add(poolComplaints(askAgents[poolReport](l.nodes, "/calico-pools")))
	}
}

func poolComplaints(reports []poolReport) (problems, warnings []string) {
	unhealthy, wrong := map[string]int{}, map[string]bool{}
	for _, r := range reports {
		if len(r.Sets) > 0 { // otherwise it has just started
			for _, what := range r.Unhealthy {
				unhealthy[what]++
			}
		}
		for _, p := range r.Problems {
			wrong[fmt.Sprintf("%s %s: %s", p.Kind, p.Name, p.Problem)] = true
		}
	}
	for _, what := range slices.Sorted(maps.Keys(unhealthy)) {
		problems = append(problems, fmt.Sprintf("calico pools of %d of %d nodes: %s", unhealthy[what], len(reports), what))
	}
	return problems, slices.Sorted(maps.Keys(wrong))
}
