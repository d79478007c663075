package cloud

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	servicecontroller "k8s.io/cloud-provider/controllers/service"
	"k8s.io/component-base/featuregate"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
)

// Provider implements k8s.io/cloud-provider's Interface with a load balancer and, for kubenet, routes: nodes register themselves.
type Provider struct{ balancer balancer }

var _ cloudprovider.Interface = Provider{}

// New makes the provider over a network. With a lister of nodes the back-end pool follows it; nil trusts the controller's lists. Services'
// ports are opened in the named network security group, "" for none.
func New(n Network, nodes corelisters.NodeLister, securityGroup string, faults *Faults) Provider {
	return Provider{balancer{n, nodes, securityGroup, faults}}
}

// Initialize does nothing: the provider needs no client.
func (Provider) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}

// LoadBalancer returns the part that is set.
func (p Provider) LoadBalancer() (cloudprovider.LoadBalancer, bool) { return p.balancer, true }

// Instances reports that the provider has none.
func (Provider) Instances() (cloudprovider.Instances, bool) { return nil, false }

// InstancesV2 reports that the provider has none.
func (Provider) InstancesV2() (cloudprovider.InstancesV2, bool) { return nil, false }

// Zones reports that the provider has none.
func (Provider) Zones() (cloudprovider.Zones, bool) { return nil, false }

// Clusters reports that the provider has none.
func (Provider) Clusters() (cloudprovider.Clusters, bool) { return nil, false }

// Routes reports that the provider has none: RunRoutes has the routes.
func (Provider) Routes() (cloudprovider.Routes, bool) { return nil, false }

// ProviderName returns Azure's name, as in the nodes' provider IDs.
func (Provider) ProviderName() string { return "azure" }

// HasClusterID reports true: there is one cluster, and the load balancer is its own.
func (Provider) HasClusterID() bool { return true }

// workers is how many Services are worked on at once; each waits for the API server most of its time.
const workers = 5

// Run runs upstream's service controller over the network until ctx ends. Services' ports are opened in the named security group. It starts
// the informers that it adds to the factory. The controller has no wait of its own before a Service's first address: that comes as soon as
// its informers are in sync; only what failed is tried again later (5 s at first, upstream's constant).
func Run(ctx context.Context, client kubernetes.Interface, factory informers.SharedInformerFactory, n Network, clusterName,
	securityGroup string, faults *Faults,
) error {
	services, nodes := factory.Core().V1().Services(), factory.Core().V1().Nodes()
	controller, err := servicecontroller.New(New(n, nodes.Lister(), securityGroup, faults), client, services, nodes, clusterName,
		featuregate.NewFeatureGate())
	if err != nil {
		return fmt.Errorf("service controller: %w", err)
	}
	if faults != nil {
		faults.ask(func(object string) bool {
			namespace, name, _ := strings.Cut(object, "/")
			s, err := services.Lister().Services(namespace).Get(name)
			return err == nil && (s.Spec.Type == v1.ServiceTypeLoadBalancer || len(s.Finalizers) > 0)
		})
	}
	factory.Start(ctx.Done())
	controller.Run(ctx, workers, controllersmetrics.NewControllerManagerMetrics("packetwalk"))
	return nil
}
