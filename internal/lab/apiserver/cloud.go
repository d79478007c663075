package apiserver

import (
	"context"
	"fmt"

	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/plan"
)

// CloudControllers are Kubernetes' own cloud controllers with Azure's provider, where the load balancer is a Standard one. They work on the
// lab's Azure Resource Manager.
type CloudControllers struct{ Processes }

// Start starts the process and does not wait for it.
func (p *CloudControllers) Start(ctx context.Context) error {
	c := p.Cluster()
	if c.Spec.LoadBalancer.SKU != cluster.SKUStandard {
		return nil
	}
	token, err := p.Dir.AzureToken()
	if err != nil {
		return err
	}
	nodes := c.Nodes()
	subnet, err := plan.SubnetName(c, nodes[0])
	if err != nil {
		return fmt.Errorf("configure the cloud controllers: %w", err)
	}
	component, err := p.Access.Config.CloudController(controlplane.Cloud{
		Manager: plan.ManagementAddress, Token: token, Subscription: c.Spec.Azure.Subscription, ResourceGroup: c.NodeResourceGroup(),
		NetworkGroup: c.Spec.Azure.ResourceGroup, Location: c.Spec.Azure.Location, VNet: nodes[0].VNet, Subnet: subnet,
		SecurityGroup: c.NodeSecurityGroup(), ProbeMode: string(c.Spec.LoadBalancer.ClusterServiceLoadBalancerHealthProbeMode),
	})
	if err != nil {
		return err
	}
	return p.launch(ctx, []controlplane.Component{component}, []controlplane.Component{component})
}
