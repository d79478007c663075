// Package network is Azure's network as a component of a lab, over the fabric. It also says what of that network keeps a node from the API
// server.
package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/azure/fabric"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/lab/status"
)

// Network is Azure's side of the lab: the fabric and its network.
type Network struct {
	*lifecycle.Env
	*fabric.Fabric
	Pending *lifecycle.PendingChange
	Planned *cluster.Cluster // what the network was brought to last; a change that failed later is not in cluster
}

// Start takes the fabric over or makes it, and brings it to where a change led that was cut off. Where it cannot lead there, nothing of the
// change was begun, and it is dropped.
func (a *Network) Start(ctx context.Context) error {
	network, err := plan.Network(a.Cluster())
	if err != nil {
		return err
	}
	a.Fabric, err = fabric.New(fabric.Config{
		Dir: a.Dir.Path("netns"), Network: network, StateFile: a.Dir.FabricState(), Log: a.Log.With("part", "fabric"),
	})
	if err != nil {
		return err
	}
	if err := a.Fabric.Start(ctx); err != nil {
		return err
	}
	a.Planned = a.Cluster()
	if a.Pending.Source == nil {
		return nil
	}
	if err := a.Update(func(n *vnet.Network) error { return plan.Revise(n, a.Pending.From, a.Planned) }); err != nil {
		a.Log.Warn("a change that was cut off is left out", "file", a.Dir.NextClusterFile(), "err", err)
		a.Planned, a.Pending.Source = a.Pending.From, nil
		a.SetCluster(a.Pending.From)
		return os.Remove(a.Dir.NextClusterFile())
	}
	a.Log.Info("a change was cut off; the rest of it is done")
	return nil
}

// Check says whether the network can become what a cluster says.
func (a *Network) Check(to *cluster.Cluster) error {
	n := a.Current()
	return errors.Join(plan.Revise(&n, a.Planned, to), n.Validate())
}

// Change applies a cluster.yaml's change to the network.
func (a *Network) Change(_ context.Context, c lifecycle.Change) error {
	if err := a.Update(func(n *vnet.Network) error { return plan.Revise(n, a.Planned, c.To) }); err != nil {
		return err
	}
	a.Planned = c.To
	c.Progress(lifecycle.Step{Text: "network changed"})
	return nil
}

// Current returns Azure's present side.
func (a *Network) Current() vnet.Network {
	n, _ := a.Snapshot()
	return n
}

// MakeHost makes an internet host's namespace and wires it to the internet.
func (a *Network) MakeHost(name string) (*netns.Namespace, error) {
	ns, _, err := netns.Ensure(a.Dir.NetNS(name))
	if err != nil {
		return nil, err
	}
	return ns, a.AttachHost(name, ns)
}

// Stop closes the fabric.
func (a *Network) Stop() {
	if err := a.Close(); err != nil {
		a.Log.Warn("close the fabric", "err", err)
	}
}

// Report adds front ends, outbound addresses, and faults of the fabric.
func (a *Network) Report(s *status.Status) {
	n, health := a.Snapshot()
	s.Frontends, s.Outbound = Frontends(n, health), a.outbound()
	s.Warnings = append(s.Warnings, plan.HalfPeerings(n)...)
	if err := a.Fabric.Fault(); err != nil {
		s.Problems = append(s.Problems, "Azure's network does not follow: "+status.OneLine(err))
	}
	missing, err := a.Missing()
	if err != nil {
		missing = []string{"Azure's network cannot be compared with its plan: " + status.OneLine(err)}
	}
	for _, text := range missing {
		s.Problems = append(s.Problems, text+status.RepairedByUp(s.Name))
	}
}

// Repair makes again what the kernel lacks of Azure's network and returns what that was, in words.
func (a *Network) Repair(context.Context) ([]string, error) { return a.Fabric.Repair() }

// outbound returns how far the nodes' outbound ports are used; none where the kernel does not tell.
func (a *Network) outbound() []status.Outbound {
	uses, err := a.PortUses()
	if err != nil {
		a.Log.Warn("read the use of outbound ports", "err", err)
	}
	all := []status.Outbound{}
	for _, u := range uses {
		o := status.Outbound{Node: u.Machine, Ports: u.Ports, InUse: u.InUse}
		if u.Gateway != "" {
			o.Node = "NAT gateway " + u.Gateway
		}
		for _, f := range u.Frontends {
			o.Frontends = append(o.Frontends, status.OutboundFrontend{Address: f.Address, Ports: f.Ports})
		}
		if f := u.Fullest; f.InUse > 0 {
			protocol := "tcp"
			if f.Protocol == unix.IPPROTO_UDP {
				protocol = "udp"
			}
			o.Fullest = &status.OutboundUse{Protocol: protocol, Destination: f.Destination.String(), InUse: f.InUse, Percent: 100 * f.InUse / max(u.Ports, 1)}
		}
		all = append(all, o)
	}
	return all
}

// Frontends returns the load balancing rules with those of their back ends that are up.
func Frontends(n vnet.Network, h vnet.Health) []status.Frontend {
	all := []status.Frontend{}
	for _, lb := range n.LoadBalancers {
		for _, rule := range lb.Rules {
			all = append(all, frontend(n, lb, rule, h))
		}
	}
	return all
}

func frontend(n vnet.Network, lb vnet.LoadBalancer, rule vnet.Rule, h vnet.Health) status.Frontend {
	f := status.Frontend{Rule: rule.Name, Port: rule.FrontendPort, Healthy: []string{}}
	if i := slices.IndexFunc(lb.Frontends, func(f vnet.Frontend) bool { return f.Name == rule.Frontend }); i >= 0 {
		f.Address = lb.Frontends[i].Address.String()
	}
	i := slices.IndexFunc(lb.BackendPools, func(p vnet.BackendPool) bool { return p.Name == rule.BackendPool })
	if i < 0 {
		return f
	}
	f.Total = len(lb.BackendPools[i].Members)
	for _, m := range lb.BackendPools[i].Members {
		nic, ok := n.NIC(m.NIC)
		target := vnet.ProbeTarget{LoadBalancer: lb.Name, Probe: rule.Probe, Member: m}
		if ok && (rule.Probe == "" || h[target]) {
			f.Healthy = append(f.Healthy, nic.Machine)
		} else if d, denied := n.ProbeDenial(target); denied {
			if f.Denied == nil {
				f.Denied = map[string]string{}
			}
			f.Denied[nic.Machine] = d.String()
		} else if at, ok := probedAt(lb, rule.Probe, nic, m); ok {
			if f.Probed == nil {
				f.Probed = map[string]netip.AddrPort{}
			}
			f.Probed[nic.Machine] = at
		}
	}
	return f
}

// probedAt returns where a load balancer probes a member.
func probedAt(lb vnet.LoadBalancer, probe string, nic vnet.NIC, m vnet.IPConfigRef) (netip.AddrPort, bool) {
	p := slices.IndexFunc(lb.Probes, func(p vnet.Probe) bool { return p.Name == probe })
	c := slices.IndexFunc(nic.IPConfigs, func(c vnet.IPConfig) bool { return c.Name == m.IPConfig })
	if p < 0 || c < 0 {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(nic.IPConfigs[c].Address, lb.Probes[p].Port), true
}

// APIObstacles say what leads a NIC's packets for the API server elsewhere, or denies them: a user-defined route, a security rule.
func APIObstacles(n vnet.Network, name string) (all []string) {
	nic, ok := n.NIC(name)
	if !ok {
		return nil
	}
	server := netip.AddrPortFrom(vnet.APIServerAddress, controlplane.Port)
	decisions := n.Decide(nic, vnet.DirectionOutbound, vnet.SecurityFlow{
		Protocol: unix.IPPROTO_TCP, Source: netip.AddrPortFrom(nic.Primary().Address, ephemeralPort), Destination: server,
	})
	if i := len(decisions) - 1; i >= 0 && !decisions[i].Allowed() {
		all = append(all, fmt.Sprintf("%s its packets for the API server %s", decisions[i], server))
	}
	if route, _ := apiRoute(n, nic); route != "" {
		all = append(all, route)
	}
	return all
}

// apiRoute returns in words the user-defined route that leads a NIC's packets for the API server to another next hop than the internet, ""
// for none. isCut reports that they end there: nothing at the next hop forwards them.
func apiRoute(n vnet.Network, nic vnet.NIC) (route string, isCut bool) {
	server := netip.AddrPortFrom(vnet.APIServerAddress, controlplane.Port)
	subnet, _ := n.Subnet(nic.VNet, nic.Subnet)
	var by vnet.EffectiveRoute
	for _, r := range n.EffectiveRoutes(nic.VNet, subnet.RouteTable) {
		if r.Active && r.Prefix.Contains(server.Addr()) && (!by.Active || r.Prefix.Bits() >= by.Prefix.Bits()) {
			by = r
		}
	}
	if by.User == "" || by.NextHopType == vnet.NextHopInternet {
		return "", false
	}
	hop, isCut := by.NextHopType, true
	if by.NextHop.IsValid() {
		hop += " " + by.NextHop.String()
		_, forwards := n.Forwarder(nic.VNet, by.NextHop)
		isCut = !forwards
	}
	return fmt.Sprintf("route %s (%s) of route table %s leads its packets for the API server %s to next hop %s",
		by.User, by.Prefix, subnet.RouteTable, server, hop), isCut
}

// ephemeralPort stands for the source port of a kubelet's connection, which the kernel chooses.
const ephemeralPort = 32768

// Namespaces returns those of the fabric and of the internet.
func (a *Network) Namespaces() []*netns.Namespace {
	return []*netns.Namespace{a.Namespace(), a.Internet()}
}

// APICut says which route keeps a NIC's node from the API server; "" if none does. The API server learns that only when the node has been
// silent for 40 s.
func APICut(n vnet.Network, name string) string {
	nic, ok := n.NIC(name)
	if !ok {
		return ""
	}
	route, isCut := apiRoute(n, nic)
	if !isCut {
		return ""
	}
	return "cut off from the API server: " + route
}
