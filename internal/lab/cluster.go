package lab

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"packetwalk.dev/internal/azure/cloud"
	"packetwalk.dev/internal/azure/vnet"
)

// startCluster starts what needs the API server and returns when pods can be made and every node is Ready. The kubelets need
// nothing but the API and start at once; the agents have upstream's role for node proxies, which is there when the control plane
// is ready.
func (l *lab) startCluster(ctx context.Context, ready <-chan struct{}) error {
	l.startCloud(ctx)
	var g errgroup.Group
	g.Go(func() error { return l.startKubelets(ctx) })
	g.Go(func() error { return l.startAgents(ctx, ready) })
	g.Go(func() error { return waitDefaultAccount(ctx, l.client) })
	if err := g.Wait(); err != nil {
		return err
	}
	if err := l.startRoutes(ctx); err != nil {
		return err
	}
	l.done("%d of %d nodes Ready", len(l.nodes), len(l.nodes))
	return l.startVirtualNode(ctx)
}

// startCloud starts upstream's service controller over Azure's load balancer.
func (l *lab) startCloud(ctx context.Context) {
	factory := informers.NewSharedInformerFactory(l.client, 0)
	go func() {
		if err := cloud.Run(ctx, l.client, factory, l.fabric, cloudName, l.cluster.NodeSecurityGroup()); err != nil && ctx.Err() == nil {
			l.log.Error("service controller", "err", err)
		}
	}()
}

// startRoutes starts upstream's route controller where the nodes' pods have ranges of their own, which they have by now, and waits until each
// node has its route. One that runs already, and would look for new nodes only after a while, is ended.
func (l *lab) startRoutes(ctx context.Context) error {
	table, _, ok := l.cluster.PodRouteTable()
	if !ok {
		return nil
	}
	if l.stopRoutes != nil {
		l.stopRoutes()
	}
	running, stop := context.WithCancel(ctx)
	l.stopRoutes = stop
	factory := informers.NewSharedInformerFactory(l.client, 0)
	go func() {
		if err := cloud.RunRoutes(running, l.client, factory, l.fabric, table, cloudName, l.cluster.Spec.Network.PodCIDR); err != nil && running.Err() == nil {
			l.log.Error("route controller", "err", err)
		}
	}()
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		missing, err := l.unroutedNodes(waiting, table)
		if err != nil {
			return fmt.Errorf("routes to the nodes' pods: %w", err)
		}
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-waiting.Done():
			return fmt.Errorf("routes to the nodes' pods: %v are without one", missing)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// unroutedNodes are those without a route to their pods.
func (l *lab) unroutedNodes(ctx context.Context, table string) ([]string, error) {
	list, err := l.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	network := l.network()
	routes, _ := network.RouteTable(table)
	var missing []string
	for _, n := range list.Items {
		routed := routes != nil && slices.ContainsFunc(routes.Routes, func(r vnet.UserRoute) bool { return r.Prefix.String() == n.Spec.PodCIDR })
		if !routed {
			missing = append(missing, n.Name)
		}
	}
	return missing, nil
}
