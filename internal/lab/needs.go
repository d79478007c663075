package lab

import (
	"context"

	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/preflight"
	"packetwalk.dev/internal/lab/status"
)

// Needs returns what a lab needs of the machine: one that is made from a cluster.yaml, or the existing one. nil is as in [UpOptions].
func Needs(d layout.Dir, source []byte) ([]preflight.Need, error) {
	if source == nil {
		made, exists, err := d.ClusterSource()
		if err != nil {
			return nil, err
		}
		if source = made; !exists {
			source = defaultCluster
		}
	}
	c, err := d.Parse(source)
	if err != nil {
		return nil, err
	}
	return needs(c), nil
}

// needs returns the needs without which the cluster cannot run. The optional ones are the lab process's to try.
func needs(c *cluster.Cluster) []preflight.Need {
	all := []preflight.Need{preflight.Lab}
	network, proxy := c.Spec.Network, c.Spec.ServiceProxy
	if network.Plugin == cluster.PluginKubenet || network.Plugin == cluster.PluginAzure && network.Mode == cluster.ModeBridge {
		all = append(all, preflight.PodBridge)
	}
	iptables := c.Spec.VirtualNode.Enabled // its container groups have a service proxy of their own
	switch {
	case proxy.Implementation == cluster.ProxyNone:
	case proxy.Backend == cluster.BackendNFTables:
		all = append(all, preflight.NFTablesProxy)
	default:
		iptables = true
	}
	if iptables {
		all = append(all, preflight.IPTablesProxy)
	}
	if network.Policy == cluster.PolicyCalico {
		all = append(all, preflight.Calico)
	}
	return all
}

// optionalFeatures tries the features that a lab does without, and loads their modules. What is off for lack of one is said at the start
// and in the status.
type optionalFeatures struct {
	*lifecycle.Env
	check func(context.Context, ...preflight.Need) ([]preflight.Row, error)
	rows  []preflight.Row
	off   []string
}

func (l *optionalFeatures) Start(ctx context.Context) error {
	var err error
	if l.rows, err = l.check(ctx, preflight.OptionalNeeds()...); err != nil {
		return err
	}
	l.off = preflight.Off(l.rows, preflight.LiveWalk, preflight.FlowList, preflight.Counters, preflight.PodUsers) // the limits are for [bounds] to report
	for _, line := range l.off {
		l.Done("%s", line)
	}
	return nil
}

func (l *optionalFeatures) Report(s *status.Status) { s.Warnings = append(s.Warnings, l.off...) }
