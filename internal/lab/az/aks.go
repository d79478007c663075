package az

import (
	"fmt"

	"packetwalk.dev/internal/azure/arm"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/cluster"
)

const (
	kindCluster = "Microsoft.ContainerService/managedClusters"
	kindPool    = kindCluster + "/agentPools"
)

// clusters returns the lab's cluster with the fields of armcontainerservice.ManagedCluster that are true of it, as az shows them. It has no
// name that resolves (fqdn): the API server is at an address.
func clusters(l Lab) ([]any, error) {
	c := l.Cluster
	if c == nil {
		return nil, nil
	}
	var pools []any
	for _, p := range c.Spec.NodePools {
		pools = append(pools, poolProfile(l, p))
	}
	return []any{resource(l.Network, c.Spec.Azure.ResourceGroup, kindCluster, c.Metadata.Name, object{
		"nodeResourceGroup": c.NodeResourceGroup(), "dnsPrefix": c.DNSPrefix(), "kubernetesVersion": c.Spec.KubernetesVersion,
		"currentKubernetesVersion": l.KubernetesVersion, "enableRbac": true, "powerState": object{"code": "Running"},
		"provisioningState": l.state("Updating"),
		"agentPoolProfiles": pools, "networkProfile": networkProfile(l), "addonProfiles": addonProfiles(c),
	})}, nil
}

// state returns a provisioning state; changing is the one of a resource that is being changed.
func (l Lab) state(changing string) string {
	if l.Changing {
		return changing
	}
	return "Succeeded"
}

// poolProfile has the fields of armcontainerservice.ManagedClusterAgentPoolProfile. The names of the nodes are those of an availability
// set.
func poolProfile(l Lab, p cluster.NodePool) object {
	o := object{
		"name": p.Name, "count": float64(p.Count), "maxPods": float64(p.MaxPods), "mode": string(p.Mode), "osType": "Linux", "type": "AvailabilitySet",
		"vmSize":              p.VMSize,
		"orchestratorVersion": l.Cluster.Spec.KubernetesVersion, "currentOrchestratorVersion": l.KubernetesVersion,
		"powerState": object{"code": "Running"}, "provisioningState": l.state("Scaling"),
		"enableNodePublicIp": p.EnableNodePublicIP,
	}
	for name, list := range map[string][]string{"availabilityZones": p.AvailabilityZones, "nodeTaints": p.NodeTaints} {
		if len(list) > 0 {
			o[name] = anys(list)
		}
	}
	if len(p.NodeLabels) > 0 {
		labels := object{}
		for key, value := range p.NodeLabels {
			labels[key] = value
		}
		o["nodeLabels"] = labels
	}
	if v, s, err := l.Cluster.FindSubnet(p.VNetSubnet); err == nil {
		o["vnetSubnetId"] = arm.SubnetID(l.Network, v.Name, s.Name)
	}
	return o
}

func anys(list []string) []any {
	var all []any
	for _, s := range list {
		all = append(all, s)
	}
	return all
}

// agentPools returns the pools as resources of their own.
func agentPools(l Lab) ([]any, error) {
	var all []any
	for _, p := range l.Cluster.Spec.NodePools {
		o := poolProfile(l, p)
		group := l.Cluster.Spec.Azure.ResourceGroup
		o["resourceGroup"], o["typePropertiesType"], o["type"] = group, o["type"], kindPool
		o["id"] = resourceID(l.Network, group, kindCluster, l.Cluster.Metadata.Name) + "/agentPools/" + p.Name
		all = append(all, o)
	}
	return all, nil
}

// networkProfile has the fields of armcontainerservice.NetworkProfile.
func networkProfile(l Lab) object {
	n, lb := l.Cluster.Spec.Network, l.Cluster.Spec.LoadBalancer
	sku := map[cluster.SKU]string{cluster.SKUBasic: "Basic", cluster.SKUStandard: "Standard"}
	o := object{
		"networkPlugin": string(n.Plugin), "serviceCidr": n.ServiceCIDR.String(), "dnsServiceIp": n.DNSServiceIP.String(),
		"networkPolicy": string(n.Policy),
		"ipFamilies":    []any{"IPv4"}, "loadBalancerSku": sku[lb.SKU], "outboundType": string(l.Cluster.Spec.OutboundType),
	}
	if name, managed := l.Cluster.ManagedNATGateway(); managed {
		o["natGatewayProfile"] = gatewayProfile(l, name)
	}
	switch {
	case n.IsOverlay():
		o["networkPluginMode"] = string(n.Mode)
	case n.Mode != "":
		o["networkMode"] = string(n.Mode)
	}
	if n.PodCIDR.IsValid() {
		o["podCidr"] = n.PodCIDR.String()
	}
	if lb.SKU == cluster.SKUStandard && l.Cluster.Spec.OutboundType == cluster.OutboundLoadBalancer {
		o["loadBalancerProfile"] = balancerProfile(l)
	}
	return o
}

// gatewayProfile has the fields of armcontainerservice.ManagedClusterNATGatewayProfile.
func gatewayProfile(l Lab, name string) object {
	p := l.Cluster.Spec.NATGateway
	g, _ := l.Network.NATGateway(name)
	var ids []any
	for _, ip := range g.PublicIPs {
		ids = append(ids, object{"id": resourceID(l.Network, l.Network.NodeResourceGroup, "Microsoft.Network/publicIPAddresses", ip),
			"resourceGroup": l.Network.NodeResourceGroup})
	}
	return object{
		"idleTimeoutInMinutes": float64(p.IdleTimeoutMinutes), "managedOutboundIpProfile": object{"count": float64(p.ManagedIPs)},
		"effectiveOutboundIPs": ids,
	}
}

// balancerProfile has the fields of armcontainerservice.ManagedClusterLoadBalancerProfile.
func balancerProfile(l Lab) object {
	out := l.Cluster.Spec.LoadBalancer.Outbound
	modes := map[cluster.HealthProbeMode]string{cluster.ProbeServiceNodePort: "ServiceNodePort", cluster.ProbeShared: "Shared"}
	var ids []any
	for _, lb := range l.Network.LoadBalancers {
		for _, r := range lb.OutboundRules {
			for _, name := range r.Frontends {
				for _, f := range lb.Frontends {
					if f.Name == name {
						ids = append(ids, object{"id": arm.FrontendIPID(l.Network, f), "resourceGroup": l.Network.NodeResourceGroup})
					}
				}
			}
		}
	}
	return object{
		"allocatedOutboundPorts": float64(out.Ports), "idleTimeoutInMinutes": float64(out.IdleTimeoutMinutes),
		"managedOutboundIPs": object{"count": float64(out.ManagedIPs)}, "effectiveOutboundIPs": ids,
		"clusterServiceLoadBalancerHealthProbeMode": modes[l.Cluster.Spec.LoadBalancer.ClusterServiceLoadBalancerHealthProbeMode],
	}
}

// addonProfiles returns the addons that are on, under the names of the container service.
func addonProfiles(c *cluster.Cluster) object {
	all := object{}
	if c.HasAddon(cluster.AddonHTTPRouting) {
		all["httpApplicationRouting"] = object{"enabled": true, "config": object{"HTTPApplicationRoutingZoneName": c.HTTPRoutingZone()}}
	}
	if v := c.Spec.VirtualNode; v.Enabled {
		all["aciConnectorLinux"] = object{"enabled": true, "config": object{"SubnetName": v.Subnet}}
	}
	return all
}

// machines returns the virtual machines, one for each NIC.
func machines(l Lab) ([]any, error) { return view(arm.VirtualMachines(l.Network)) }

func resourceID(n vnet.Network, group, kind, name string) string {
	return fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/%s/%s", n.Subscription, group, kind, name)
}

// resource returns a resource of another provider than the network's.
func resource(n vnet.Network, group, kind, name string, more object) any {
	o := object{"id": resourceID(n, group, kind, name), "name": name, "type": kind, "location": n.Location, "resourceGroup": group,
		"provisioningState": "Succeeded"}
	for k, v := range more {
		o[k] = v
	}
	return o
}
