package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/cluster"
)

const (
	// ControlPlaneHost is the host of the API server, which every lab has.
	ControlPlaneHost = "controlplane"
	// CloudName is what AKS calls the load balancer and its back-end pool.
	CloudName = "kubernetes"
)

// Azure's management endpoint, of a cluster with a virtual node: a host of the lab's internet, which has a container group's interface and
// nothing else.
const (
	ManagementHost = "management"
	ManagementName = "management.azure.com"
)

// What AKS calls the virtual node, the version that it shows, Kubernetes' and the library's as in AKS, and who its connector is to the API.
const (
	VirtualNode        = "virtual-node-aci-linux"
	VirtualNodeVersion = "v" + KubernetesVersion + "-vk-v1.12.0"
	ConnectorAccount   = "system:serviceaccount:kube-system:aci-connector-linux"
)

// ManagementAddress is one of those that the internet keeps for services of its own (198.51.100.2 to .9).
var ManagementAddress = netip.MustParseAddr("198.51.100.2")

// Network returns Azure's side of the cluster before the first Service.
func Network(c *cluster.Cluster) (vnet.Network, error) {
	n := vnet.Network{
		Subscription:      c.Spec.Azure.Subscription,
		ResourceGroup:     c.Spec.Azure.ResourceGroup,
		NodeResourceGroup: c.NodeResourceGroup(),
		Location:          c.Spec.Azure.Location,
		DefaultOutbound:   vnet.DefaultOutboundAddress,
		PublicAddresses:   c.Frontends(),
		Hosts:             []vnet.Host{{Name: ControlPlaneHost, Address: vnet.APIServerAddress}},
	}
	if c.Spec.Network.IsOverlay() {
		n.Overlay = c.Spec.Network.PodCIDR
	}
	for _, h := range c.Spec.Internet.Hosts {
		n.Hosts = append(n.Hosts, vnet.Host{Name: h.Name, Address: h.Address})
	}
	addVNets(&n, c)
	n.SecurityGroups = securityGroupsOf(c)
	n.Hosts = append(n.Hosts, vnet.Host{Name: ManagementHost, Address: ManagementAddress})
	if c.Spec.VirtualNode.Enabled {
		n.VNets = append(n.VNets, vnet.ContainerHosts(cluster.ContainerHosts))
	}
	if err := addNodes(&n, c); err != nil {
		return n, err
	}
	return n, addVMs(&n, c)
}

func addVNets(n *vnet.Network, c *cluster.Cluster) {
	podTable, podSubnet, kubenet := c.PodRouteTable()
	for _, v := range c.Spec.Azure.VNets {
		network := vnet.VNet{Name: v.Name, ResourceGroup: c.Spec.Azure.ResourceGroup, AddressPrefixes: v.AddressPrefixes}
		for _, s := range v.Subnets {
			table := s.RouteTable
			if kubenet && v.Name+"/"+s.Name == podSubnet {
				table = podTable
			}
			network.Subnets = append(network.Subnets,
				vnet.Subnet{Name: s.Name, Prefix: s.Prefix, RouteTable: table, SecurityGroup: s.NetworkSecurityGroup,
					NATGateway: natGatewayOf(c, v.Name, s), Private: !c.HasDefaultOutbound(s)})
		}
		for _, remote := range v.Peerings {
			network.Peerings = append(network.Peerings, vnet.Peering{Name: v.Name + "-to-" + remote, RemoteVNet: remote})
		}
		n.VNets = append(n.VNets, network)
	}
	for _, t := range c.Spec.Azure.RouteTables {
		table := vnet.RouteTable{Name: t.Name}
		for _, r := range t.Routes {
			table.Routes = append(table.Routes, vnet.UserRoute{Name: r.Name, Prefix: r.Prefix, NextHopType: string(r.NextHopType),
				NextHop: r.NextHopAddress})
		}
		n.RouteTables = append(n.RouteTables, table)
	}
	if _, there := n.RouteTable(podTable); kubenet && !there {
		n.RouteTables = append(n.RouteTables, vnet.RouteTable{Name: podTable})
	}
}

// addNodes gives the nodes that have none a NIC, and those of the load balancer's pools a place there.
func addNodes(n *vnet.Network, c *cluster.Cluster) error {
	for _, node := range c.Nodes() {
		if _, ok := n.NIC(node.NIC); ok {
			continue
		}
		if err := addNode(n, c, node); err != nil {
			return err
		}
	}
	if err := setOutbound(n, c); err != nil {
		return err
	}
	lb, there := n.LoadBalancer(CloudName)
	if !there {
		return nil
	}
	for _, node := range c.Nodes() {
		nic, _ := n.NIC(node.NIC)
		ref := vnet.IPConfigRef{NIC: nic.Name, IPConfig: nic.Primary().Name}
		for i := range lb.BackendPools {
			if pool := &lb.BackendPools[i]; !slices.Contains(pool.Members, ref) {
				pool.Members = append(pool.Members, ref)
			}
		}
	}
	return nil
}

func newBalancer(c *cluster.Cluster) vnet.LoadBalancer {
	lb := vnet.LoadBalancer{Name: CloudName, SKU: vnet.SKUBasic, BackendPools: []vnet.BackendPool{{Name: CloudName}}}
	if c.Spec.LoadBalancer.SKU == cluster.SKUStandard {
		lb.SKU = vnet.SKUStandard
		lb.BackendPools = append(lb.BackendPools, vnet.BackendPool{Name: outboundPool})
	}
	return lb
}

func addNode(n *vnet.Network, c *cluster.Cluster, node cluster.Node) error {
	subnet, err := SubnetName(c, node)
	if err != nil {
		return err
	}
	if _, err := n.AllocateNICAt(node.Name, node.VNet, subnet, node.Address, 1+len(node.PodAddresses)); err != nil {
		return err
	}
	last := &n.NICs[len(n.NICs)-1]
	last.Name, last.IPForwarding = node.NIC, c.Spec.Network.Plugin != cluster.PluginAzure
	last.SecurityGroup = c.NodeSecurityGroup()
	if c.Spec.Network.IsOverlay() {
		if err := n.AllocateOverlay(node.NIC, cluster.NodePodBits); err != nil {
			return err
		}
	}
	return nil
}

// SubnetName returns the name of a node's subnet.
func SubnetName(c *cluster.Cluster, node cluster.Node) (string, error) {
	for _, v := range c.Spec.Azure.VNets {
		for _, s := range v.Subnets {
			if v.Name == node.VNet && s.Prefix == node.Subnet {
				return s.Name, nil
			}
		}
	}
	return "", fmt.Errorf("node %s: no subnet %s in VNet %s", node.Name, node.Subnet, node.VNet)
}

func addVMs(n *vnet.Network, c *cluster.Cluster) error {
	for _, vm := range c.Spec.Azure.VMs {
		if err := addVM(n, c, vm); err != nil {
			return err
		}
	}
	return nil
}

func addVM(n *vnet.Network, c *cluster.Cluster, vm cluster.VM) error {
	v, s, err := c.FindSubnet(vm.Subnet)
	if err != nil {
		return fmt.Errorf("vm %s: %w", vm.Name, err)
	}
	if _, err := n.AllocateNICAt(vm.Name, v.Name, s.Name, vm.Address, 1); err != nil {
		return err
	}
	nic := &n.NICs[len(n.NICs)-1]
	nic.IPForwarding, nic.SecurityGroup = vm.IPForwarding, vm.NetworkSecurityGroup
	setVMPublicIP(n, c, vm.Name, nic)
	return nil
}

// setVMPublicIP gives a VM its public address if it is to have one.
func setVMPublicIP(n *vnet.Network, c *cluster.Cluster, vm string, nic *vnet.NIC) {
	if public, ok := c.VMPublicIP(vm); ok {
		ip := vnet.PublicIP{Name: publicIPOf(vm), Address: public}
		n.PublicIPs = append(n.PublicIPs, ip)
		nic.IPConfigs[0].PublicIP = ip.Name
	}
}

// publicIPOf returns the name of a VM's public address.
func publicIPOf(vm string) string { return vm + "-pip" }

// NICOf returns the name of a VM's NIC.
func NICOf(vm string) string { return vm + "-nic" }

// HalfPeerings returns the peerings that carry nothing because only one side has them.
func HalfPeerings(n vnet.Network) []string {
	var all []string
	for _, v := range n.VNets {
		for _, p := range v.Peerings {
			if !n.Peered(v.Name, p.RemoteVNet) {
				has := "has none"
				if p.Parted {
					has = "has none any more"
				}
				all = append(all, fmt.Sprintf("the peering of VNet %s with %s carries nothing: it is %s, and %s %s with %s; "+
					"give both a peering in cluster.yaml, and 'packetwalk up -f cluster.yaml' makes it",
					v.Name, p.RemoteVNet, n.PeeringState(v.Name, p), p.RemoteVNet, has, v.Name))
			}
		}
	}
	return all
}

// The name servers outside the cluster: Azure's, which machines in a virtual network ask, and the internet's, on its router.
var (
	AzureResolver    = vnet.ProbeSource
	InternetResolver = vnet.InternetRouter
)

// InternetNames returns the names of the internet, NAME=ADDRESS.
func InternetNames(c *cluster.Cluster) []string {
	var all []string
	for _, h := range c.Spec.Internet.Hosts {
		all = append(all, h.Name+"="+h.Address.String())
	}
	if c.Spec.VirtualNode.Enabled {
		all = append(all, ManagementName+"="+ManagementAddress.String())
	}
	return all
}
