package lab

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/azure/vnet"
)

// network is Azure's side as it is now.
func (l *lab) network() vnet.Network {
	n, _ := l.fabric.Snapshot()
	return n
}

// description is the cluster as it is, or is being made; nobody changes it in place.
func (l *lab) description() Description {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Description{Cluster: l.cluster, Changing: l.busy.Load()}
}

// A task is something that the lab does beside keeping up what there is; the text says what it means that it did not succeed.
type task string

const (
	taskChange task = "the last change of the cluster was not done to its end (made again, it does the rest)"
	taskAddons task = "the cluster's DNS or addons could not be installed (this is tried again)"
)

// tried notes how a task went, for the status.
func (l *lab) tried(t task, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		delete(l.undone, t)
		return nil
	}
	if l.undone == nil {
		l.undone = map[task]error{}
	}
	l.undone[t] = err
	return err
}

// work is what the status says of tasks. Held: l.mu.
func (l *lab) work() (problems, warnings []string) {
	for _, t := range slices.Sorted(maps.Keys(l.undone)) {
		problems = append(problems, fmt.Sprintf("%s: %s", t, oneLine(l.undone[t])))
	}
	if l.busy.Load() {
		warnings = append(warnings, "the cluster is being changed: not everything is as asked yet")
	}
	return problems, warnings
}

// oneLine is an error on one line, joined ones too.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// status is what `packetwalk status` prints.
func (l *lab) status() Status {
	outbound := l.outbound()
	problems, warnings := l.masqStatus()
	poolProblems, poolWarnings := l.poolStatus()
	virtual := l.virtualNodeProblems()
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Status{
		Name: l.dir.Name(), Ready: l.ready.Load(), Pid: l.pid, APIServer: l.server, Kubeconfig: l.dir.Kubeconfig(),
		Components: []Component{}, Nodes: []Node{}, Hosts: []Host{}, ContainerGroups: []ContainerGroup{}, Frontends: frontends(l.fabric.Snapshot()), Outbound: outbound,
	}
	for _, c := range l.components {
		s.Components = append(s.Components, c.component())
	}
	for _, n := range l.nodes {
		s.Nodes = append(s.Nodes, n.status())
	}
	for _, h := range slices.Concat(l.hosts, l.resolvers) {
		one := h.Host
		one.Pid = int(h.pid.Load())
		s.Hosts = append(s.Hosts, one)
	}
	if l.groups != nil {
		for _, g := range l.groups.Status() {
			s.ContainerGroups = append(s.ContainerGroups, ContainerGroup{g.Name, g.Address, g.State, g.Error, g.Ready, g.Containers, g.Proxy})
		}
	}
	undone, underWay := l.work()
	s.Problems = append(s.problems(), slices.Concat(problems, poolProblems, virtual, undone)...)
	s.Warnings = append(s.warnings(), slices.Concat(halfPeerings(l.network()), warnings, poolWarnings, underWay)...)
	return s
}

// halfPeerings are the peerings that carry nothing because only one side has them.
func halfPeerings(n vnet.Network) []string {
	var all []string
	for _, v := range n.VNets {
		for _, p := range v.Peerings {
			if !n.Peered(v.Name, p.RemoteVNet) {
				has := "has none"
				if p.Parted {
					has = "has none any more"
				}
				all = append(all, fmt.Sprintf("the peering of VNet %s with %s carries nothing: it is %s, and %s %s with %s",
					v.Name, p.RemoteVNet, n.PeeringState(v.Name, p), p.RemoteVNet, has, v.Name))
			}
		}
	}
	return all
}

// outbound is how far the nodes' outbound ports are used; none where the kernel does not tell.
func (l *lab) outbound() []Outbound {
	uses, err := l.fabric.PortUses()
	if err != nil {
		l.log.Warn("read the use of outbound ports", "err", err)
	}
	all := []Outbound{}
	for _, u := range uses {
		o := Outbound{Node: u.Machine, Ports: u.Ports, InUse: u.InUse}
		if f := u.Fullest; f.InUse > 0 {
			protocol := "tcp"
			if f.Protocol == unix.IPPROTO_UDP {
				protocol = "udp"
			}
			o.Fullest = &OutboundUse{Protocol: protocol, Destination: f.Destination.String(), InUse: f.InUse, Percent: 100 * f.InUse / u.Ports}
		}
		all = append(all, o)
	}
	return all
}

func (n *node) status() Node {
	s := Node{Name: n.Name, Address: n.Address.String()}
	if n.agent != nil {
		s.Agent = n.agent.component()
	}
	if n.kubelet != nil {
		k := n.kubelet.Status()
		s.Pods = k.Pods
		if k.Fault != nil {
			s.Error = oneLine(k.Fault)
		}
	}
	return s
}

// frontends are the load balancing rules with those of their back ends that are up.
func frontends(n vnet.Network, h vnet.Health) []Frontend {
	all := []Frontend{}
	for _, lb := range n.LoadBalancers {
		for _, rule := range lb.Rules {
			all = append(all, frontend(n, lb, rule, h))
		}
	}
	return all
}

func frontend(n vnet.Network, lb vnet.LoadBalancer, rule vnet.Rule, h vnet.Health) Frontend {
	f := Frontend{Rule: rule.Name, Port: rule.FrontendPort, Healthy: []string{}}
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
		if ok && (rule.Probe == "" || h[vnet.ProbeTarget{LoadBalancer: lb.Name, Probe: rule.Probe, Member: m}]) {
			f.Healthy = append(f.Healthy, nic.Machine)
		}
	}
	return f
}
