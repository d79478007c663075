package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/cluster"
)

// change brings the running lab to another cluster.yaml, nothing of which needs a new cluster; say hears what is done, first that the change
// is possible. What it did before an error stays; the same file again does the rest. Held: nothing; one call at a time.
func (l *lab) change(ctx context.Context, source []byte, say func(Step)) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	l.busy.Store(true)
	defer l.busy.Store(false)
	if !l.ready.Load() {
		return fmt.Errorf("the lab is not ready yet")
	}
	to, err := l.dir.Parse(source)
	if err != nil {
		return err
	}
	from := l.cluster
	if err := refused(cluster.Compare(from, to)); err != nil {
		return err
	}
	if err := l.plan(source, to); err != nil {
		return err
	}
	return l.tried(taskChange, l.carryOut(ctx, source, from, to, say))
}

// carryOut does a change that is written down.
func (l *lab) carryOut(ctx context.Context, source []byte, from, to *cluster.Cluster, say func(Step)) error {
	if err := l.fabric.Update(func(n *vnet.Network) error { return revise(n, l.planned, to) }); err != nil {
		return err
	}
	l.planned = to
	say(Step{Text: "network changed"})
	if err := l.reviseHosts(ctx, to); err != nil {
		return err
	}
	if err := l.reviseResolvers(ctx, to); err != nil {
		return err
	}
	if err := l.reviseMasquerade(ctx, from, to); err != nil {
		return err
	}
	if err := l.reviseAddons(ctx, from, to); err != nil {
		return err
	}
	l.mu.Lock()
	l.cluster = to
	l.mu.Unlock()
	err := l.reviseNodes(ctx, to, say)
	if err := errors.Join(err, l.settle(source)); err != nil {
		return err
	}
	l.log.Info("the cluster was changed")
	return nil
}

// plan writes down what the lab is going to be, if Azure's side can become that.
func (l *lab) plan(source []byte, to *cluster.Cluster) error {
	try := l.network()
	if err := errors.Join(revise(&try, l.planned, to), try.Validate()); err != nil {
		return err
	}
	return writeCluster(l.dir.nextFile(), source)
}

// reviseHosts ends and makes VMs and internet hosts. One whose address or application is another one now is made anew.
func (l *lab) reviseHosts(ctx context.Context, to *cluster.Cluster) error {
	want := hostsOf(to)
	l.mu.Lock()
	var gone, stay []string
	for _, m := range l.hosts {
		i := slices.IndexFunc(want, func(h Host) bool { return h.Name == m.Name })
		if i < 0 || !m.sameMachine(want[i]) {
			gone = append(gone, m.Name)
			continue
		}
		m.PublicIP = want[i].PublicIP
		stay = append(stay, m.Name)
	}
	l.mu.Unlock()
	for _, name := range gone {
		if err := l.removeHost(ctx, name); err != nil {
			return err
		}
	}
	var g errgroup.Group
	for _, h := range want {
		if slices.Contains(stay, h.Name) {
			continue
		}
		if err := l.addHost(ctx, &g, h); err != nil {
			return err
		}
	}
	return g.Wait()
}

// sameMachine tells whether the host can become the other one without being made anew.
func (h Host) sameMachine(other Host) bool {
	other.PublicIP = h.PublicIP
	return h == other
}

// reviseMasquerade brings other nonMasqueradeCIDRs to the nodes: by the ip-masq-agent's ConfigMap, or by new agents that have them as flags.
func (l *lab) reviseMasquerade(ctx context.Context, from, to *cluster.Cluster) error {
	ranges := to.Spec.Network.NonMasqueradeCIDRs
	if age := to.Spec.Network.IPMasqAgent; age != cluster.IPMasqNone && !slices.Equal(from.Spec.Network.NonMasqueradeCIDRs, ranges) {
		config, err := masqConfigMap(age, ranges)
		if err == nil {
			err = putConfigMap(ctx, l.client, config)
		}
		if err != nil {
			return fmt.Errorf("change the ip-masq-agent's configuration: %w", err)
		}
	}
	for _, n := range l.nodes {
		c := l.agentCommand(to, n)
		if slices.Equal(c.args, l.agentCommand(from, n).args) {
			continue
		}
		if err := n.agent.s.Stop(); err != nil {
			return fmt.Errorf("stop the agent of %s: %w", n.Name, err)
		}
		if err := l.keepAgent(n, c); err != nil {
			return err
		}
	}
	return nil
}

// revise brings a network from what one cluster says to what another says. What neither says stays: Services' front ends, the route
// controller's routes; and the NICs of nodes that are to leave, which go with them.
func revise(n *vnet.Network, from, to *cluster.Cluster) error {
	before, err := networkOf(from)
	if err != nil {
		return err
	}
	after, err := networkOf(to)
	if err != nil {
		return err
	}
	reviseVNets(n, before, after)
	if err := addNodes(n, to); err != nil {
		return err
	}
	if err := reviseTables(n, before, after); err != nil {
		return err
	}
	reviseSecurity(n, before, after)
	if err := reviseVMs(n, from, to); err != nil {
		return err
	}
	n.Hosts = after.Hosts
	return reviseBalancer(n, to)
}

// reviseVNets takes the VNets as they are to be, but for the route tables that somebody else gave to subnets.
func reviseVNets(n *vnet.Network, before, after vnet.Network) {
	for i := range after.VNets {
		v := &after.VNets[i]
		for j := range v.Subnets {
			s := &v.Subnets[j]
			was, _ := before.Subnet(v.Name, s.Name)
			if is, ok := n.Subnet(v.Name, s.Name); ok && was.RouteTable == s.RouteTable {
				s.RouteTable = is.RouteTable
			}
		}
		for j := range v.Peerings {
			p := &v.Peerings[j]
			p.Parted = !after.Peered(v.Name, p.RemoteVNet) && wasConnected(n, v.Name, p.RemoteVNet)
		}
	}
	n.VNets = after.VNets
}

// wasConnected tells whether a virtual network's side of a peering has had the other one beside it.
func wasConnected(n *vnet.Network, from, to string) bool {
	return n.Peered(from, to) || slices.ContainsFunc(n.VNets, func(v vnet.VNet) bool {
		return v.Name == from && slices.ContainsFunc(v.Peerings, func(p vnet.Peering) bool { return p.RemoteVNet == to && p.Parted })
	})
}

// reviseTables changes the routes that are cluster.yaml's.
func reviseTables(n *vnet.Network, before, after vnet.Network) error {
	for _, t := range before.RouteTables {
		now, stays := after.RouteTable(t.Name)
		if !stays {
			n.RouteTables = slices.DeleteFunc(n.RouteTables, func(o vnet.RouteTable) bool { return o.Name == t.Name })
			continue
		}
		for _, r := range t.Routes {
			if !slices.ContainsFunc(now.Routes, func(o vnet.UserRoute) bool { return o.Name == r.Name }) {
				n.DeleteRoute(t.Name, r.Name)
			}
		}
	}
	for _, t := range after.RouteTables {
		if _, ok := n.RouteTable(t.Name); !ok {
			n.RouteTables = append(n.RouteTables, vnet.RouteTable{Name: t.Name})
		}
		for _, r := range t.Routes {
			if err := n.SetRoute(t.Name, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// reviseVMs gives VMs NICs and public addresses, and takes them from those that are gone. A NIC whose place is another one is a new NIC.
func reviseVMs(n *vnet.Network, from, to *cluster.Cluster) error {
	for _, vm := range from.Spec.Azure.VMs {
		i := slices.IndexFunc(to.Spec.Azure.VMs, func(o cluster.VM) bool { return o.Name == vm.Name })
		if i < 0 || to.Spec.Azure.VMs[i].Subnet != vm.Subnet || to.Spec.Azure.VMs[i].Address != vm.Address {
			n.ReleasePublicIP(publicIPOf(vm.Name))
			n.ReleaseNIC(nicOf(vm.Name))
		}
	}
	for _, vm := range to.Spec.Azure.VMs {
		n.ReleasePublicIP(publicIPOf(vm.Name)) // all of them first: they may change places
	}
	for _, vm := range to.Spec.Azure.VMs {
		i := slices.IndexFunc(n.NICs, func(nic vnet.NIC) bool { return nic.Name == nicOf(vm.Name) })
		if i < 0 {
			if err := addVM(n, to, vm); err != nil {
				return err
			}
			continue
		}
		n.NICs[i].IPForwarding, n.NICs[i].SecurityGroup = vm.IPForwarding, vm.NetworkSecurityGroup
		setVMPublicIP(n, to, vm.Name, &n.NICs[i])
	}
	return nil
}

// reviseBalancer changes the front ends that Services get from now on, and the outbound rule.
func reviseBalancer(n *vnet.Network, to *cluster.Cluster) error {
	n.PublicAddresses = to.Frontends()
	for i := range n.LoadBalancers {
		for _, f := range n.LoadBalancers[i].Frontends {
			if !slices.Contains(n.PublicAddresses, f.Address) {
				return fmt.Errorf("spec.loadBalancer.frontends: %s is in use by a front end; delete its Service first ('packetwalk kubectl get svc -A' names it), "+
					"or leave the address in", f.Address)
			}
		}
	}
	if lb, ok := n.LoadBalancer(cloudName); ok && to.Spec.LoadBalancer.SKU == cluster.SKUStandard {
		return setOutbound(n, lb, to.Spec.LoadBalancer.Outbound)
	}
	return nil
}
