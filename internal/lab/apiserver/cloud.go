package apiserver

import (
	"context"
	"fmt"

	"packetwalk.dev/internal/azure/arm"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/plan"
)

// CloudControllers are Kubernetes' own cloud controllers with Azure's provider. They work on the lab's Azure Resource Manager.
type CloudControllers struct{ Processes }

// Start starts the process and does not wait for it.
func (p *CloudControllers) Start(ctx context.Context) error {
	c := p.Cluster()
	token, err := p.Dir.AzureToken()
	if err != nil {
		return err
	}
	nodes := c.Nodes()
	subnet, err := plan.SubnetName(c, nodes[0])
	if err != nil {
		return fmt.Errorf("configure the cloud controllers: %w", err)
	}
	cloud := controlplane.Cloud{
		Manager: plan.ManagementAddress, Token: token, Tenant: arm.Tenant, Subscription: c.Spec.Azure.Subscription,
		ResourceGroup: c.NodeResourceGroup(), NetworkGroup: c.Spec.Azure.ResourceGroup, Location: c.Spec.Azure.Location, VNet: nodes[0].VNet,
		Subnet: subnet, SecurityGroup: c.NodeSecurityGroup(),
		LoadBalancerSKU: string(c.Spec.LoadBalancer.SKU), AvailabilitySet: arm.AvailabilitySet(nodes[0].Name), PodCIDR: c.Spec.Network.PodCIDR,
		ProbeMode: string(c.Spec.LoadBalancer.ClusterServiceLoadBalancerHealthProbeMode),
	}
	if table, _, ok := c.PodRouteTable(); ok {
		cloud.RouteTable, cloud.RouteTableGroup = table, arm.RouteTableGroup(p.Access.Azure.Current(), table)
	}
	component, err := p.Access.Config.CloudController(cloud)
	if err != nil {
		return err
	}
	return p.launch(ctx, []controlplane.Component{component}, []controlplane.Component{component})
}
