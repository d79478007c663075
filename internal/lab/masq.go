package lab

import (
	"context"
	"fmt"
	"slices"

	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/manifests"
	"packetwalk.dev/internal/lab/nodes"
	"packetwalk.dev/internal/lab/status"
	"packetwalk.dev/internal/node/ipmasq"
)

// masq is the ip-masq-agent's ConfigMap and DaemonSet, where the cluster has one. The agents themselves are part of packetwalk-node; the
// pods show their logs and health.
type masq struct {
	*lifecycle.Env
	api   *apiserver.Server
	nodes *nodes.Nodes
}

// Start brings them into the API, as AKS does, before the nodes' agents start: without a ConfigMap they would take upstream's defaults.
func (l *masq) Start(ctx context.Context) error {
	c := l.Cluster()
	if c.Spec.Network.IPMasqAgent == cluster.IPMasqNone {
		return nil
	}
	configMap, daemonSet, err := manifests.IPMasqAgent(c)
	if err != nil {
		return err
	}
	bring := manifests.Apply
	if c.Spec.Network.IPMasqAgent == cluster.IPMasqV1 { // users edit it
		bring = manifests.Ensure
	}
	if err := bring(ctx, l.api.REST(), []string{configMap}); err != nil {
		return err
	}
	return manifests.Apply(ctx, l.api.REST(), []string{daemonSet})
}

// Change brings other nonMasqueradeCIDRs to the agents, by their ConfigMap.
func (l *masq) Change(ctx context.Context, c lifecycle.Change) error {
	from, to := c.From.Spec.Network, c.To.Spec.Network
	if to.IPMasqAgent == cluster.IPMasqNone || slices.Equal(from.NonMasqueradeCIDRs, to.NonMasqueradeCIDRs) {
		return nil
	}
	ctx, cancel := c.Deadline.Bound(ctx)
	defer cancel()
	configMap, _, err := manifests.IPMasqAgent(c.To)
	if err == nil {
		err = manifests.Apply(ctx, l.api.REST(), []string{configMap})
	}
	if err != nil {
		return fmt.Errorf("change the ip-masq-agent's configuration: %w", err)
	}
	return nil
}

// masqReport is what is read of packetwalk-node's state of the ip-masq-agent.
type masqReport struct {
	Config    *struct{}        `json:"config"` // null before the first that could be applied
	Unhealthy []string         `json:"unhealthy"`
	Problems  []ipmasq.Problem `json:"problems"`
}

// Report asks the nodes what their ip-masq-agents complain about: as problems what keeps a configuration from being in force, as warnings
// what is likely not meant. What many nodes say is said once.
func (l *masq) Report(s *status.Status) {
	if l.Cluster().Spec.Network.IPMasqAgent != cluster.IPMasqNone {
		s.Add(masqComplaints(nodes.AskAgents[masqReport](l.nodes, "/ip-masq-agent")))
	}
}

func masqComplaints(reports []masqReport) (problems, warnings []string) {
	var unhealthy, suspect []string
	for _, r := range reports {
		if r.Config == nil && len(r.Problems) == 0 {
			continue // it has just started
		}
		unhealthy = append(unhealthy, r.Unhealthy...)
		for _, p := range r.Problems {
			if p.Severity == ipmasq.Warning {
				suspect = append(suspect, "ConfigMap "+p.ConfigMap+", "+p.String())
			}
		}
	}
	const who = "ip-masq-agent"
	return nodes.JoinReports(who, len(reports), unhealthy), nodes.JoinReports(who, len(reports), suspect)
}
