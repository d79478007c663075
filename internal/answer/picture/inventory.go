package picture

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/model/snapshot"
)

// inventory holds what there is to draw.
type inventory struct {
	internet, vms, others []machine
	subnets               []subnet // of nodes
	vmSubnets             []subnet
	frontends             []machine
	router, azure         *machine
	crowded               map[string]bool // nodes with many pods
}

// machine is a host, a folded group of pods, or a front end.
type machine struct {
	id      string
	kind    Kind
	title   string
	detail  string
	end     string
	facts   []Fact
	members []string
	pods    []machine // of a node
	subnet  netip.Prefix
	status  Status
}

// addStatus gives machines their states.
func (inv *inventory) addStatus(status map[string]Status) {
	add := func(m *machine, key string) {
		if s, ok := status[key]; ok {
			m.status = s
		}
	}
	for i := range inv.frontends {
		add(&inv.frontends[i], inv.frontends[i].title)
	}
	for _, subnets := range [][]subnet{inv.subnets, inv.vmSubnets} {
		for i := range subnets {
			for j := range subnets[i].machines {
				add(&subnets[i].machines[j], subnets[i].machines[j].id)
			}
		}
	}
}

// subnet holds the machines whose addresses have one prefix; the zero prefix where it is unknown.
type subnet struct {
	prefix   netip.Prefix
	machines []machine
}

const (
	fabricHost   = "fabric"
	internetHost = "internet"
	// mostPods limits the pods of a node that are drawn one by one. Beyond it they are folded by what controls them.
	mostPods = 12
	// mostFrontends limits the front ends that are drawn one by one.
	mostFrontends = 8
)

// take reads what there is to draw from a snapshot. The state of a host that was not read is not needed: its box has less to say.
// crowded holds the nodes that were crowded before. Their pods stay folded until there are far fewer.
func take(source snapshot.Source, open []string, crowded map[string]bool) inventory {
	inv := inventory{crowded: map[string]bool{}}
	objects := source.Objects()
	all := podsOfNodes(&objects)
	pods := map[string][]machine{}
	services := endpointServices(&objects)
	for name, on := range all {
		inv.crowded[name] = len(on) > mostPods || crowded[name] && len(on) > mostPods/2
		pods[name] = drawnPods(name, on, inv.crowded[name], open, services)
	}
	seen := map[string]bool{}
	var nodes []machine
	for i := range objects.Nodes {
		n := &objects.Nodes[i]
		seen["node/"+n.Name] = true
		nodes = append(nodes, node(source, n, pods[n.Name]))
	}
	for _, name := range slices.Sorted(maps.Keys(pods)) { // of nodes whose objects were not read
		if !seen["node/"+name] {
			seen["node/"+name] = true
			nodes = append(nodes, node(source, &snapshot.Node{Name: name}, pods[name]))
		}
	}
	for i := range objects.Pods {
		seen["pod/"+objects.Pods[i].Namespace+"/"+objects.Pods[i].Name] = true
	}
	for _, name := range source.Names() {
		if seen[name] {
			continue
		}
		m := host(source, name)
		switch kind, _, _ := strings.Cut(name, "/"); kind {
		case internetHost:
			if m.kind = Internet; name == internetHost {
				m.kind, m.title, m.detail = Router, "internet", "router"
				inv.router = &m
				continue
			}
			inv.internet = append(inv.internet, m)
		case fabricHost:
			m.kind, m.title, m.detail = Azure, "Azure", "load balancer, NSGs, routes"
			inv.azure = &m
		case "node":
			m.kind = Node
			nodes = append(nodes, m)
		case "vm", "container-group", "container-host":
			m.kind = VM
			inv.vms = append(inv.vms, m)
		case "controlplane", "management":
			m.kind = ControlPlane
			inv.internet = append(inv.internet, m)
		default:
			inv.others = append(inv.others, m)
		}
	}
	if inv.azure != nil {
		inv.frontends = frontends(&objects)
	}
	for _, all := range [][]machine{inv.internet, nodes, inv.vms, inv.others} {
		slices.SortFunc(all, func(a, b machine) int { return compareNames(a.id, b.id) })
	}
	slices.SortStableFunc(inv.internet, func(a, b machine) int { return cmp.Compare(b2i(a.kind != Internet), b2i(b.kind != Internet)) })
	inv.subnets, inv.vmSubnets = bySubnet(nodes), bySubnet(slices.Concat(inv.vms, inv.others))
	return inv
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// compareNames orders names as people do: "node-2" comes before "node-10".
func compareNames(a, b string) int {
	for a != "" && b != "" {
		if isDigit(a[0]) && isDigit(b[0]) {
			x, y := digits(a), digits(b)
			p, q := strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
			if c := cmp.Or(cmp.Compare(len(p), len(q)), cmp.Compare(p, q), cmp.Compare(len(x), len(y))); c != 0 {
				return c
			}
			a, b = a[len(x):], b[len(y):]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func digits(s string) string {
	n := 0
	for n < len(s) && isDigit(s[n]) {
		n++
	}
	return s[:n]
}

func bySubnet(machines []machine) []subnet {
	var all []subnet
	for _, m := range machines {
		i := slices.IndexFunc(all, func(s subnet) bool { return s.prefix == m.subnet })
		if i < 0 {
			i, all = len(all), append(all, subnet{prefix: m.subnet})
		}
		all[i].machines = append(all[i].machines, m)
	}
	slices.SortStableFunc(all, func(a, b subnet) int {
		return cmp.Or(cmp.Compare(b2i(!a.prefix.IsValid()), b2i(!b.prefix.IsValid())), a.prefix.Addr().Compare(b.prefix.Addr()),
			cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
	})
	return all
}

// host returns a host of the snapshot that Kubernetes does not know.
func host(source snapshot.Source, name string) machine {
	kind, rest, cut := strings.Cut(name, "/")
	if !cut {
		rest = kind
	}
	m := machine{id: name, kind: Machine, title: termsafe.Text(rest)}
	if slices.Contains([]string{"node", "vm", "internet", "netns"}, kind) && cut {
		m.end = name
	}
	h, err := snapshot.Outline(source, name)
	if err != nil || h.FIB == nil {
		m.facts = append(m.facts, Fact{"state", "not read"})
		return m
	}
	m.addresses(h, nil)
	return m
}

// addresses adds the addresses of a machine and its subnet: that of the address by which Azure or Kubernetes knows it, else the first.
func (m *machine) addresses(h *snapshot.Host, known []netip.Addr) {
	first := netip.Prefix{}
	for _, a := range h.FIB.Addresses {
		if a.Scope != "global" || a.Prefix.Addr().IsLinkLocalUnicast() {
			continue
		}
		m.facts = append(m.facts, Fact{"address", fmt.Sprintf("%s on %s", a.Prefix, termsafe.Text(a.Link))})
		peer, _ := h.Peer(a.Link)
		best := peer.Host == fabricHost || slices.Contains(known, a.Prefix.Addr())
		if !first.IsValid() || best && a.Prefix.Addr().Is4() && !m.subnet.IsValid() {
			first = a.Prefix
			if best {
				m.subnet = a.Prefix.Masked()
			}
		}
	}
	if !first.IsValid() {
		return
	}
	m.detail = first.Addr().String()
	if !m.subnet.IsValid() {
		m.subnet = first.Masked()
	}
	if m.subnet.IsSingleIP() {
		m.subnet = netip.Prefix{}
	}
}

func node(source snapshot.Source, n *snapshot.Node, pods []machine) machine {
	m := machine{id: "node/" + n.Name, kind: Node, title: termsafe.Text(n.Name), end: "node/" + n.Name, pods: pods}
	for i, a := range n.IPs {
		if i == 0 {
			m.detail = a.String()
		}
	}
	if h, err := snapshot.Outline(source, m.id); err == nil && h.FIB != nil {
		address := m.detail
		m.addresses(h, n.IPs)
		m.detail = cmp.Or(address, m.detail)
	} else {
		for _, a := range n.IPs {
			m.facts = append(m.facts, Fact{"address", a.String()})
		}
		m.facts = append(m.facts, Fact{"state", "not read"})
	}
	for _, p := range n.PodCIDRs {
		m.facts = append(m.facts, Fact{"pods", p.String()})
	}
	return m
}

// podsOfNodes returns the pods of each node that have addresses of their own.
func podsOfNodes(objects *snapshot.Objects) map[string][]*snapshot.Pod {
	all := map[string][]*snapshot.Pod{}
	for i := range objects.Pods {
		if p := &objects.Pods[i]; !p.HostNetwork && p.Node != "" {
			all[p.Node] = append(all[p.Node], p)
		}
	}
	return all
}

// drawnPods returns a node's pods as they are drawn. Pods of system namespaces are folded, and those of a crowded node.
func drawnPods(node string, pods []*snapshot.Pod, crowded bool, open []string, services map[netip.Addr][]string) []machine {
	groups := map[string][]machine{}
	for _, p := range pods {
		key := groupOf(p, crowded)
		if key != "" {
			key = "group/" + node + "/" + key
		}
		groups[key] = append(groups[key], pod(p, services))
	}
	var drawn []machine
	for key, members := range groups {
		slices.SortFunc(members, func(a, b machine) int { return compareNames(a.id, b.id) })
		if key == "" || len(members) == 1 || slices.Contains(open, key) {
			drawn = append(drawn, members...)
			continue
		}
		drawn = append(drawn, group(key, members))
	}
	slices.SortFunc(drawn, func(a, b machine) int {
		return cmp.Or(cmp.Compare(b2i(a.kind == Group), b2i(b.kind == Group)), compareNames(a.id, b.id))
	})
	return drawn
}

// systemNamespaces have pods that few walks are about.
var systemNamespaces = []string{"calico-system", "gatekeeper-system", "kube-system", "tigera-operator"}

// groupOf names the group that a pod may be folded into; "" for none.
func groupOf(p *snapshot.Pod, crowded bool) string {
	switch {
	case slices.Contains(systemNamespaces, p.Namespace):
		return p.Namespace
	case !crowded:
		return ""
	case p.Controller != nil && p.Controller.Name != "":
		return p.Namespace + "/" + p.Controller.Name
	}
	return p.Namespace
}

func group(id string, members []machine) machine {
	_, name, _ := strings.Cut(strings.TrimPrefix(id, "group/"), "/")
	m := machine{id: id, kind: Group, title: termsafe.Text(name), detail: fmt.Sprintf("%d pods", len(members))}
	for _, p := range members {
		m.members = append(m.members, p.id)
		m.facts = append(m.facts, Fact{"pod", p.title + "  " + p.detail})
	}
	return m
}

func pod(p *snapshot.Pod, services map[netip.Addr][]string) machine {
	id := "pod/" + p.Namespace + "/" + p.Name
	m := machine{id: id, kind: Pod, title: termsafe.Text(p.Name), end: id, detail: "no address"}
	m.facts = append(m.facts, Fact{"namespace", termsafe.Text(p.Namespace)})
	for i, a := range p.IPs {
		if i == 0 {
			m.detail = a.String()
		}
		m.facts = append(m.facts, Fact{"address", a.String()})
		for _, s := range services[a] {
			m.facts = append(m.facts, Fact{"service", termsafe.Text(s)})
		}
	}
	m.facts = append(m.facts, Fact{"node", termsafe.Text(p.Node)})
	if p.Controller != nil && p.Controller.Name != "" {
		m.facts = append(m.facts, Fact{"managed by", termsafe.Text(p.Controller.Kind + " " + p.Controller.Name)})
	}
	for _, key := range slices.Sorted(maps.Keys(p.Labels)) {
		m.facts = append(m.facts, Fact{"label", termsafe.Text(key + "=" + p.Labels[key])})
	}
	if p.Sandbox != "" {
		m.facts = append(m.facts, Fact{"sandbox", termsafe.Text(p.Sandbox)})
	}
	return m
}

// endpointServices returns the Services that each address is an endpoint of.
func endpointServices(objects *snapshot.Objects) map[netip.Addr][]string {
	all := map[netip.Addr][]string{}
	for i := range objects.Services {
		s := &objects.Services[i]
		name := s.Namespace + "/" + s.Name
		for _, p := range s.Ports {
			for _, e := range p.Endpoints {
				if !slices.Contains(all[e.Addr()], name) {
					all[e.Addr()] = append(all[e.Addr()], name)
				}
			}
		}
	}
	return all
}

// frontends returns the public addresses of Services, by the names of these.
func frontends(objects *snapshot.Objects) []machine {
	var all []machine
	for i := range objects.Services {
		s := &objects.Services[i]
		var ports []string
		var endpoints int
		for _, p := range s.Ports {
			ports = append(ports, fmt.Sprintf("%d/%s", p.Port, strings.ToLower(p.Protocol.String())))
			endpoints = max(endpoints, len(p.Endpoints))
		}
		policy := "Cluster"
		if s.Local {
			policy = "Local"
		}
		name := s.Namespace + "/" + s.Name
		for _, a := range s.External {
			all = append(all, machine{
				id: fmt.Sprintf("frontend/%s/%s", name, a), kind: Frontend, title: a.String(), detail: termsafe.Text(name), end: "svc/" + name,
				facts: []Fact{
					{"service", termsafe.Text(name)}, {"address", a.String()}, {"ports", strings.Join(ports, ", ")},
					{"externalTrafficPolicy", policy}, {"endpoints", fmt.Sprint(endpoints)},
				},
			})
		}
	}
	slices.SortFunc(all, func(a, b machine) int { return compareNames(a.id, b.id) })
	if len(all) > mostFrontends {
		rest := all[mostFrontends-1:]
		more := machine{id: "frontend", kind: Frontend, title: fmt.Sprintf("%d more addresses", len(rest))}
		for _, f := range rest {
			more.facts = append(more.facts, Fact{"address", f.title + "  " + f.detail})
		}
		all = append(all[:mostFrontends-1:mostFrontends-1], more)
	}
	return all
}
