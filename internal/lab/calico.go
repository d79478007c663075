package lab

import (
	"slices"

	"packetwalk.dev/internal/lab/manifests"

	"context"
	_ "embed"
	"fmt"

	"packetwalk.dev/internal/lab/cluster"
)

// calico are Calico's resources, where the cluster's network policy is Calico's.
type calico struct {
	still
	*core
	api   *api
	nodes *nodes
}

// Start makes the API serve Calico's resources and gives it the pool that AKS's add-on manager makes. A pool of that name that is there
// already stays as it is.
func (l *calico) Start(ctx context.Context) error {
	if l.cluster().Spec.Network.Policy != cluster.PolicyCalico {
		return nil
	}
	kinds, err := manifests.CalicoKinds()
	if err != nil {
		return err
	}
	pool, err := manifests.CalicoPool(l.cluster().PodRange())
	if err != nil {
		return err
	}
	if err := manifests.Apply(ctx, l.api.rest(), kinds); err != nil {
		return err
	}
	if err := manifests.Ensure(ctx, l.api.rest(), []string{pool}); err != nil {
		return err
	}
	return manifests.Served(ctx, l.api.rest(), manifests.FelixConfigurations)
}

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
	var unhealthy []string
	for _, r := range reports {
		if len(r.Sets) > 0 { // otherwise it has just started
			unhealthy = append(unhealthy, r.Unhealthy...)
		}
		for _, p := range r.Problems {
			warnings = append(warnings, fmt.Sprintf("%s %s: %s", p.Kind, p.Name, p.Problem))
		}
	}
	slices.Sort(warnings)
	return saidBy("calico pools", len(reports), unhealthy), slices.Compact(warnings)
}
