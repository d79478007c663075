package cloud

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	cloudprovider "k8s.io/cloud-provider"
	routecontroller "k8s.io/cloud-provider/controllers/route"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	_ "k8s.io/controller-manager/pkg/features/register" // the feature gates that the route controller looks at

	"packetwalk.dev/internal/azure/vnet"
)

// routes implements k8s.io/cloud-provider's Routes over one route table, as cloud-provider-azure does (azure_routes.go): a route is named
// after its node and leads to the node's own address.
type routes struct {
	network Network
	table   string
	faults  *Faults // by node; may be nil
}

// ListRoutes gives the table's routes. Those that a person made are among them: the controller leaves alone what is outside the pods'
// range.
func (r routes) ListRoutes(context.Context, string) ([]*cloudprovider.Route, error) {
	n, _ := r.network.Snapshot()
	t, ok := n.RouteTable(r.table)
	if !ok {
		return nil, fmt.Errorf("list routes: no route table %q", r.table)
	}
	list := []*cloudprovider.Route{}
	for _, u := range t.Routes {
		list = append(list, &cloudprovider.Route{Name: u.Name, TargetNode: types.NodeName(u.Name), DestinationCIDR: u.Prefix.String()})
	}
	return list, nil
}

// CreateRoute makes the route to a node's pods.
func (r routes) CreateRoute(_ context.Context, _, _ string, route *cloudprovider.Route) error {
	return r.faults.note(string(route.TargetNode), r.create(route))
}

func (r routes) create(route *cloudprovider.Route) error {
	prefix, err := netip.ParsePrefix(route.DestinationCIDR)
	if err != nil {
		return fmt.Errorf("route to the pods of %s: %w", route.TargetNode, err)
	}
	i := slices.IndexFunc(route.TargetNodeAddresses, func(a v1.NodeAddress) bool { return a.Type == v1.NodeInternalIP })
	if i < 0 {
		return fmt.Errorf("route %s to the pods of %s: the node has no internal address", prefix, route.TargetNode)
	}
	hop, err := netip.ParseAddr(route.TargetNodeAddresses[i].Address)
	if err != nil {
		return fmt.Errorf("route %s to the pods of %s: %w", prefix, route.TargetNode, err)
	}
	return r.network.Update(func(n *vnet.Network) error {
		return n.SetRoute(r.table, vnet.UserRoute{Name: string(route.TargetNode), Prefix: prefix, NextHopType: vnet.NextHopAppliance,
			NextHop: hop})
	})
}

// DeleteRoute takes a route away; one that is not there is no error. The controller makes a node's new route at the same time, which has
// the same name.
func (r routes) DeleteRoute(_ context.Context, _ string, route *cloudprovider.Route) error {
	return r.network.Update(func(n *vnet.Network) error {
		if t, ok := n.RouteTable(r.table); ok {
			t.Routes = slices.DeleteFunc(t.Routes,
				func(u vnet.UserRoute) bool { return u.Name == route.Name && u.Prefix.String() == route.DestinationCIDR })
		}
		return nil
	})
}

// routeSyncPeriod is upstream's --route-reconciliation-period: how soon a node that comes later, and a route that was deleted by hand, get
// their route.
const routeSyncPeriod = 10 * time.Second

// RunRoutes runs upstream's route controller over one of the network's route tables until ctx ends: a route to each node's part of the
// pods' range. It looks once at its start and then every 10 s, so it is best started when the nodes have their ranges.
func RunRoutes(ctx context.Context, client kubernetes.Interface, factory informers.SharedInformerFactory, n Network, table,
	clusterName string, pods netip.Prefix,
	faults *Faults,
) error {
	cidr := &net.IPNet{IP: pods.Masked().Addr().AsSlice(), Mask: net.CIDRMask(pods.Bits(), pods.Addr().BitLen())}
	controller, err := routecontroller.New(routes{n, table, faults}, client, factory.Core().V1().Nodes(), clusterName, []*net.IPNet{cidr})
	if err != nil {
		return fmt.Errorf("route controller: %w", err)
	}
	if faults != nil {
		faults.ask(func(node string) bool {
			_, err := factory.Core().V1().Nodes().Lister().Get(node)
			return err == nil
		})
	}
	factory.Start(ctx.Done())
	controller.Run(ctx, routeSyncPeriod, controllersmetrics.NewControllerManagerMetrics("packetwalk"))
	return nil
}
