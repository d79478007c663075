package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"packetwalk.dev/internal/base/pause"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"packetwalk.dev/internal/azure/cloud"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/network"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/lab/status"
)

// services is upstream's service controller over a Basic load balancer. A Standard one is the cloud controllers', whose failures it reports.
type services struct {
	*lifecycle.Env
	azure  *network.Network
	api    *apiserver.Server
	faults cloud.Faults

	mu       sync.Mutex
	failures cache.Store // events of failures; nil where the cloud controllers do not run
	services cache.Store
}

func (l *services) Start(ctx context.Context) error {
	if l.Cluster().Spec.LoadBalancer.SKU == cluster.SKUStandard {
		l.Keep(ctx, "the watch of the cloud controllers' failures", l.watch)
		return nil
	}
	l.Keep(ctx, "the service controller", func(ctx context.Context) error {
		factory := informers.NewSharedInformerFactory(l.api.Client, 0)
		return cloud.Run(ctx, l.api.Client, factory, l.azure, plan.CloudName, l.Cluster().NodeSecurityGroup(), &l.faults)
	})
	return nil
}

// watch keeps the events of load balancers that the cloud controllers could not make.
func (l *services) watch(ctx context.Context) error {
	failed := informers.NewSharedInformerFactoryWithOptions(l.api.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = "involvedObject.kind=Service,reason=SyncLoadBalancerFailed"
	}))
	defer failed.Shutdown()
	all := informers.NewSharedInformerFactory(l.api.Client, 0)
	defer all.Shutdown()
	l.mu.Lock()
	l.failures, l.services = failed.Core().V1().Events().Informer().GetStore(), all.Core().V1().Services().Informer().GetStore()
	l.mu.Unlock()
	failed.Start(ctx.Done())
	all.Start(ctx.Done())
	<-ctx.Done()
	return ctx.Err()
}

// Report adds why Services have no load balancer.
func (l *services) Report(s *status.Status) {
	s.Problems = append(s.Problems, l.faults.Problems()...)
	l.mu.Lock()
	failures, services := l.failures, l.services
	l.mu.Unlock()
	if failures == nil {
		return
	}
	last := map[string]*corev1.Event{}
	for _, o := range failures.List() {
		e := o.(*corev1.Event)
		name := e.InvolvedObject.Namespace + "/" + e.InvolvedObject.Name
		if before := last[name]; before == nil || before.LastTimestamp.Before(&e.LastTimestamp) {
			last[name] = e
		}
	}
	for _, name := range slices.Sorted(maps.Keys(last)) {
		o, ok, err := services.GetByKey(name)
		if err != nil || !ok {
			continue
		}
		service := o.(*corev1.Service)
		waits := service.Spec.Type == corev1.ServiceTypeLoadBalancer && len(service.Status.LoadBalancer.Ingress) == 0
		if waits && service.UID == last[name].InvolvedObject.UID {
			s.Problems = append(s.Problems, fmt.Sprintf("service %s: %s (this is tried again)", name, failure(last[name].Message)))
		}
	}
}

// azureMessage matches the message in an error of Azure's, which the provider shows with its whole answer.
var azureMessage = regexp.MustCompile(`"message": "([^"]+)"`)

// failure returns why a load balancer was not made, in one line.
func failure(event string) string {
	if m := azureMessage.FindStringSubmatch(event); m != nil {
		return m[1]
	}
	return status.OneLine(errors.New(event))
}

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
