package kubelet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// followPodCIDRs has the CNI configuration written for the pod ranges that the node gets, and again when it gets others because it
// registered anew.
//
// Upstream's kubelet calls the node not Ready until then. Here it is Ready and its pods wait: the node lifecycle controller would keep pods
// off a node that began as not Ready for up to 5 s after it is (its --node-monitor-period).
func (k *Kubelet) followPodCIDRs(ctx context.Context) error {
	var written []string
	for {
		var again <-chan time.Time
		node, err := k.cfg.Shared.factory.Core().V1().Nodes().Lister().Get(k.name)
		if err == nil && len(node.Spec.PodCIDRs) > 0 && !slices.Equal(node.Spec.PodCIDRs, written) {
			err := k.configureCNI(node.Spec.PodCIDRs)
			if k.tried("configure the pod network", err); err != nil {
				again = time.After(time.Second)
			} else {
				if written == nil {
					close(k.networked)
				}
				written = node.Spec.PodCIDRs
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-k.nodeChanged:
		case <-again:
		}
	}
}

func (k *Kubelet) configureCNI(ranges []string) error {
	pods := make([]netip.Prefix, len(ranges))
	for i, r := range ranges {
		var err error
		if pods[i], err = netip.ParsePrefix(r); err != nil {
			return fmt.Errorf("spec.podCIDRs: %w", err)
		}
	}
	if err := k.cfg.ConfigureCNI(pods); err != nil {
		return fmt.Errorf("for %v: %w", pods, err)
	}
	return nil
}

// waitNetworked waits until pods can be added to the node's network.
func (k *Kubelet) waitNetworked(ctx context.Context) error {
	select {
	case <-k.networked:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the node has no pod range (spec.podCIDR): %w", ctx.Err())
	}
}
