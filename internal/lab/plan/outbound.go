package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/cluster"
)

// outboundPool and outboundRule are what AKS calls them on a Standard load balancer.
const (
	outboundPool = "aksOutboundBackendPool"
	outboundRule = "aksOutboundRule"
)

// setOutbound brings the ways to the internet to what a cluster says: the outbound rule, NAT gateways, and nodes' public addresses. The
// nodes have NICs by now.
func setOutbound(n *vnet.Network, c *cluster.Cluster) error {
	n.PrivateEndpoints = nil
	if t := c.Spec.OutboundType; t == cluster.OutboundNone || t == cluster.OutboundBlock {
		n.PrivateEndpoints = []netip.Addr{vnet.APIServerAddress}
	}
	set := []func(*vnet.Network, *cluster.Cluster) error{setBalancer, setGateways, setNodePublicIPs}
	if c.Spec.OutboundType != cluster.OutboundLoadBalancer { // what is new gets no address of what goes
		set = []func(*vnet.Network, *cluster.Cluster) error{setGateways, setNodePublicIPs, setBalancer}
	}
	for _, f := range set {
		if err := f(n, c); err != nil {
			return err
		}
	}
	return nil
}

// setBalancer makes the load balancer of outboundType loadBalancer and its outbound rule, or takes the rule away.
func setBalancer(n *vnet.Network, c *cluster.Cluster) error {
	if c.Spec.OutboundType != cluster.OutboundLoadBalancer {
		removeOutboundRule(n)
		return nil
	}
	lb, there := n.LoadBalancer(CloudName)
	if !there {
		n.LoadBalancers = append(n.LoadBalancers, newBalancer(c))
		lb, _ = n.LoadBalancer(CloudName)
	}
	if c.Spec.LoadBalancer.SKU != cluster.SKUStandard {
		return nil
	}
	if !slices.ContainsFunc(lb.BackendPools, func(p vnet.BackendPool) bool { return p.Name == outboundPool }) {
		lb.BackendPools = append(lb.BackendPools, vnet.BackendPool{Name: outboundPool})
	}
	return setOutboundRule(n, lb, c.Spec.LoadBalancer.Outbound)
}

// setOutboundRule makes the outbound rule of a Standard load balancer and its front ends, as AKS does, or brings them to other settings.
func setOutboundRule(n *vnet.Network, lb *vnet.LoadBalancer, o cluster.Outbound) error {
	rule := vnet.OutboundRule{
		Name: outboundRule, BackendPool: outboundPool, AllocatedOutboundPorts: o.Ports, IdleTimeoutMinutes: o.IdleTimeoutMinutes, TCPReset: true,
	}
	name := func(i int) string { return fmt.Sprintf("outbound-%d", i) }
	for i := 1; i <= o.ManagedIPs; i++ {
		rule.Frontends = append(rule.Frontends, name(i))
		if slices.ContainsFunc(lb.Frontends, func(f vnet.Frontend) bool { return f.Name == name(i) }) {
			continue
		}
		ip, err := n.AllocatePublicIP(name(i), netip.Addr{})
		if err != nil {
			return err
		}
		lb.Frontends = append(lb.Frontends, vnet.Frontend{Name: ip.Name, Address: ip.Address})
	}
	dropFrontends(n, lb, rule.Frontends)
	lb.OutboundRules = []vnet.OutboundRule{rule}
	return nil
}

// dropFrontends takes the front ends of the outbound rules away, except those that are kept.
func dropFrontends(n *vnet.Network, lb *vnet.LoadBalancer, kept []string) {
	for _, old := range lb.OutboundRules {
		for _, f := range old.Frontends {
			if !slices.Contains(kept, f) {
				lb.Frontends = slices.DeleteFunc(lb.Frontends, func(g vnet.Frontend) bool { return g.Name == f })
				n.ReleasePublicIP(f)
			}
		}
	}
}

// removeOutboundRule takes the outbound rule away with its pool and front ends, and the load balancer if no Service has a rule there.
func removeOutboundRule(n *vnet.Network) {
	lb, ok := n.LoadBalancer(CloudName)
	if !ok {
		return
	}
	dropFrontends(n, lb, nil)
	lb.OutboundRules = nil
	lb.BackendPools = slices.DeleteFunc(lb.BackendPools, func(p vnet.BackendPool) bool { return p.Name == outboundPool })
	if len(lb.Rules) == 0 {
		n.LoadBalancers = slices.DeleteFunc(n.LoadBalancers, func(lb vnet.LoadBalancer) bool { return lb.Name == CloudName })
	}
}

// setGateways makes the cluster's NAT gateways with their public addresses. Those that stay keep their addresses.
func setGateways(n *vnet.Network, c *cluster.Cluster) error {
	var want []cluster.NATGateway
	if name, managed := c.ManagedNATGateway(); managed {
		p := c.Spec.NATGateway
		want = append(want, cluster.NATGateway{Name: name, PublicIPs: p.ManagedIPs, IdleTimeoutMinutes: p.IdleTimeoutMinutes})
	}
	want = append(want, c.Spec.Azure.NATGateways...)
	var all []vnet.NATGateway
	kept := map[string]bool{}
	for _, w := range want {
		g := vnet.NATGateway{Name: w.Name, IdleTimeoutMinutes: w.IdleTimeoutMinutes}
		for i := 1; i <= w.PublicIPs; i++ {
			name := fmt.Sprintf("%s-ip-%d", w.Name, i)
			g.PublicIPs, kept[name] = append(g.PublicIPs, name), true
			if _, there := n.PublicIP(name); there {
				continue
			}
			if _, err := n.AllocatePublicIP(name, netip.Addr{}); err != nil {
				return err
			}
		}
		all = append(all, g)
	}
	for _, old := range n.NATGateways {
		for _, ip := range slices.Clone(old.PublicIPs) {
			if !kept[ip] {
				n.ReleasePublicIP(ip)
			}
		}
	}
	n.NATGateways = all
	return nil
}

// setNodePublicIPs gives the nodes of pools with public addresses theirs, and takes them from the others.
func setNodePublicIPs(n *vnet.Network, c *cluster.Cluster) error {
	has := map[string]bool{}
	for _, p := range c.Spec.NodePools {
		has[p.Name] = p.EnableNodePublicIP
	}
	for _, node := range c.Nodes() {
		name := publicIPOf(node.Name)
		i := slices.IndexFunc(n.NICs, func(nic vnet.NIC) bool { return nic.Name == node.NIC })
		if i < 0 {
			continue
		}
		if !has[node.Pool] {
			n.ReleasePublicIP(name)
			continue
		}
		if _, there := n.PublicIP(name); !there {
			if _, err := n.AllocatePublicIP(name, netip.Addr{}); err != nil {
				return err
			}
		}
		n.NICs[i].IPConfigs[0].PublicIP = name
	}
	return nil
}

// natGatewayOf returns the NAT gateway of a subnet: the one that cluster.yaml names, or AKS's for nodes.
func natGatewayOf(c *cluster.Cluster, vnetName string, s cluster.Subnet) string {
	if name, managed := c.ManagedNATGateway(); managed && c.IsNodeSubnet(vnetName, s) {
		return name
	}
	return s.NATGateway
}

// blockRules returns what AKS adds to the nodes' network security group with outboundType block. The lab's API server has an address of the
// internet, and stays allowed.
func blockRules(c *cluster.Cluster) []vnet.SecurityRule {
	if c.Spec.OutboundType != cluster.OutboundBlock {
		return nil
	}
	rule := func(name string, priority int, access, to string) vnet.SecurityRule {
		return vnet.SecurityRule{Name: name, Priority: priority, Direction: vnet.DirectionOutbound, Access: access, Protocol: vnet.Any,
			Destinations: []string{to}}
	}
	return []vnet.SecurityRule{
		rule("aks-allow-apiserver", vnet.MaxSecurityPriority-1, vnet.AccessAllow, vnet.APIServerAddress.String()),
		rule("aks-block-outbound", vnet.MaxSecurityPriority, vnet.AccessDeny, vnet.TagInternet),
	}
}
