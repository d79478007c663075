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

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/network"
	"packetwalk.dev/internal/lab/nodes"
	"packetwalk.dev/internal/lab/status"
)

// cloudFailures reports what the cloud controllers could not make: load balancers of Services, and routes to nodes' pods.
type cloudFailures struct {
	*lifecycle.Env
	api    *apiserver.Server
	routes *podRoutes

	mu       sync.Mutex
	services cache.Store   // nil before the watch started
	events   []cache.Store // of the reasons
}

// Reasons of the events of Kubernetes' cloud controllers (k8s.io/cloud-provider, controllers/service and controllers/route).
const (
	balancerFailed = "SyncLoadBalancerFailed"
	balancerMade   = "EnsuredLoadBalancer"
	routeFailed    = "FailedToCreateRoute"
)

func (l *cloudFailures) Start(ctx context.Context) error {
	l.Keep(ctx, "the watch of the cloud controllers' failures", l.watch)
	return nil
}

// watch keeps the Services, and the controllers' events.
func (l *cloudFailures) watch(ctx context.Context) error {
	factory := informers.NewSharedInformerFactory(l.api.Client, 0)
	defer factory.Shutdown()
	services := factory.Core().V1().Services().Informer().GetStore()
	factory.Start(ctx.Done())
	var events []cache.Store
	for _, reason := range []string{balancerFailed, balancerMade, routeFailed} {
		some := informers.NewSharedInformerFactoryWithOptions(l.api.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = "reason=" + reason
		}))
		defer some.Shutdown()
		events = append(events, some.Core().V1().Events().Informer().GetStore())
		some.Start(ctx.Done())
	}
	l.mu.Lock()
	l.services, l.events = services, events
	l.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

// Report adds why Services have no load balancer, and nodes no route to their pods.
func (l *cloudFailures) Report(s *status.Status) {
	l.mu.Lock()
	services, events := l.services, l.events
	l.mu.Unlock()
	if services == nil {
		return
	}
	var all []*corev1.Event
	for _, store := range events {
		for _, o := range store.List() {
			all = append(all, o.(*corev1.Event))
		}
	}
	last := lastEvents(all)
	for _, name := range slices.Sorted(maps.Keys(last)) {
		e := last[name]
		pending := false
		switch e.Reason {
		case balancerFailed:
			o, ok, err := services.GetByKey(name)
			pending = err == nil && ok && hasBalancer(o.(*corev1.Service)) && o.(*corev1.Service).UID == e.InvolvedObject.UID
			name = "service " + name
		case routeFailed:
			ctx, cancel := context.WithTimeout(context.Background(), nodes.AskTimeout)
			missing, err := l.routes.missing(ctx)
			cancel()
			pending = err != nil || slices.Contains(missing, e.InvolvedObject.Name)
			name = "node " + e.InvolvedObject.Name
		}
		if pending {
			s.Problems = append(s.Problems, fmt.Sprintf("%s: %s (this is tried again)", name, failure(e.Message)))
		}
	}
}

// lastEvents returns the last event about each object, by namespace and name. Of a failure and a success within a second, the success counts:
// the API's times have no fractions, and what still fails has a later event soon.
func lastEvents(all []*corev1.Event) map[string]*corev1.Event {
	last := map[string]*corev1.Event{}
	for _, e := range all {
		name := e.InvolvedObject.Namespace + "/" + e.InvolvedObject.Name
		before := last[name]
		if before == nil || before.LastTimestamp.Before(&e.LastTimestamp) ||
			before.LastTimestamp.Equal(&e.LastTimestamp) && e.Reason == balancerMade {
			last[name] = e
		}
	}
	return last
}

// hasBalancer reports whether a Service has a load balancer, or is to get one.
func hasBalancer(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer || len(s.Finalizers) > 0
}

// azureMessage matches the message in an error of Azure's, which the provider shows with its whole answer.
var azureMessage = regexp.MustCompile(`"message": "([^"]+)"`)

// failure returns why something was not made, in one line.
func failure(event string) string {
	if m := azureMessage.FindStringSubmatch(event); m != nil {
		return m[1]
	}
	return status.OneLine(errors.New(event))
}

// podRoutes waits for the routes to nodes' pods, which the cloud controllers make where the nodes' pods have ranges of their own.
type podRoutes struct {
	*lifecycle.Env
	azure *network.Network
	api   *apiserver.Server
}

// Start waits until each node has its route. The nodes have their ranges by now.
func (l *podRoutes) Start(ctx context.Context) error { return l.Wait(ctx) }

// Wait implements nodes.PodRoutes.
func (l *podRoutes) Wait(ctx context.Context) error {
	for {
		missing, err := l.missing(ctx)
		if err != nil {
			return fmt.Errorf("routes to the nodes' pods: %w", err)
		}
		if len(missing) == 0 {
			return nil
		}
		if !pause.For(ctx, 20*time.Millisecond) {
			return fmt.Errorf("routes to the nodes' pods: %v are without one; 'packetwalk logs %s' may say why", missing,
				controlplane.CloudControllerManager)
		}
	}
}

// missing returns the nodes that have no route to their pods at present.
func (l *podRoutes) missing(ctx context.Context) ([]string, error) {
	table, _, ok := l.Cluster().PodRouteTable()
	if !ok {
		return nil, nil
	}
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
