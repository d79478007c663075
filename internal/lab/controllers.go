package lab

import (
	"context"
	"fmt"
	"slices"
	"time"

	"packetwalk.dev/internal/base/pause"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"packetwalk.dev/internal/azure/cloud"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/network"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/lab/status"
)

// services is upstream's service controller over Azure's load balancer.
type services struct {
	*lifecycle.Env
	azure  *network.Network
	api    *apiserver.Server
	faults cloud.Faults
}

func (l *services) Start(ctx context.Context) error {
	l.Keep(ctx, "the service controller", func(ctx context.Context) error {
		factory := informers.NewSharedInformerFactory(l.api.Client, 0)
		return cloud.Run(ctx, l.api.Client, factory, l.azure, plan.CloudName, l.Cluster().NodeSecurityGroup(), &l.faults)
	})
	return nil
}

func (l *services) Report(s *status.Status) { s.Problems = append(s.Problems, l.faults.Problems()...) }

// routes is upstream's route controller, where the nodes' pods have ranges of their own.
type routes struct {
	*lifecycle.Env
	azure  *network.Network
	api    *apiserver.Server
	faults cloud.Faults
	stop   context.CancelFunc // ends the controller; nil where there is none
}

// Start runs the controller, and waits until each node has its route. The nodes have their ranges by now.
func (l *routes) Start(ctx context.Context) error { return l.Restart(ctx, ctx) }

// Restart implements nodes.RouteController. A controller that runs would find new nodes only after a while.
func (l *routes) Restart(ctx, waiting context.Context) error {
	table, _, ok := l.Cluster().PodRouteTable()
	if !ok {
		return nil
	}
	if l.stop != nil {
		l.stop()
	}
	running, stop := context.WithCancel(ctx)
	l.stop = stop
	l.Keep(running, "the route controller", func(ctx context.Context) error {
		factory := informers.NewSharedInformerFactory(l.api.Client, 0)
		return cloud.RunRoutes(ctx, l.api.Client, factory, l.azure, table, plan.CloudName, l.Cluster().Spec.Network.PodCIDR, &l.faults)
	})
	for {
		missing, err := l.unrouted(waiting, table)
		if err != nil {
			return fmt.Errorf("routes to the nodes' pods: %w", err)
		}
		if len(missing) == 0 {
			return nil
		}
		if !pause.For(waiting, 20*time.Millisecond) {
			return fmt.Errorf("routes to the nodes' pods: %v are without one", missing)
		}
	}
}

func (l *routes) Report(s *status.Status) { s.Problems = append(s.Problems, l.faults.Problems()...) }

// unrouted returns the nodes without a route to their pods.
func (l *routes) unrouted(ctx context.Context, table string) ([]string, error) {
	list, err := l.api.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	network := l.azure.Current()
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
