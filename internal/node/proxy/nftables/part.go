//go:build linux

package nftables

import (
	"maps"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/node/service"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// slots are the endpoints of a service port in their places, by policy.
type slots [2][]netip.AddrPort

// part is what one service port needs of the table, beside what is always there.
type part struct {
	port  *service.Port
	slots slots
	name  string // of the service port, in comments
	named []elementsOfName
	// hairpins are the endpoints that may reach themselves. Other service ports may have the same.
	hairpins slots
	fans     []fan
	// Without endpoints on this node, where the policy is Local.
	noLocalInternal, noLocalExternal bool
}

// elementsOfName are the elements whose keys begin with a name of the service port.
type elementsOfName struct {
	name
	elements  []item
	endpoints []row
}

// row are the elements of a map of endpoints, of which there may be thousands: a slot each.
type row struct {
	set, key string
	slots    []netip.AddrPort
}

func (r *row) at(i int) item {
	return item{set: r.set, key: r.key + slotField(i), value: endpointField(r.slots[i])}
}

// others calls f for the elements of slots that have another endpoint, or none, in others.
func (r *row) others(others []netip.AddrPort, f func(*item)) {
	for i, a := range r.slots {
		if i >= len(others) || a != others[i] {
			e := r.at(i)
			f(&e)
		}
	}
}

// item is an element of a set; the value of one of setSources is the last address of the range.
type item struct {
	set, key string
	value    string
	comment  string
}

// of returns the elements of a name; none for a missing service port.
func (p *part) of(n name) elementsOfName {
	if p != nil {
		if at := slices.IndexFunc(p.named, func(has elementsOfName) bool { return has.name == n }); at >= 0 {
			return p.named[at]
		}
	}
	return elementsOfName{name: n}
}

// row returns the slots of a set.
func (n *elementsOfName) row(set string) (slots []netip.AddrPort) {
	for i := range n.endpoints {
		if n.endpoints[i].set == set {
			return n.endpoints[i].slots
		}
	}
	return nil
}

// newPart makes the part of a service port with its endpoints in their slots.
func (s *State) newPart(st *portRecord) *part {
	p := st.port
	part := &part{port: p, slots: st.slots, name: comment(p)}
	reachable := len(p.ForCluster) > 0
	internalOK := p.LeadsInside()
	externalOK := reachable && (p.ExternalPolicy == service.Cluster || len(p.ForLocal) > 0)
	part.noLocalInternal, part.noLocalExternal = reachable && !internalOK, reachable && !externalOK

	at := part.key(byAddress, p.ClusterIP)
	if internalOK {
		part.leadToFan(at, internal, p.InternalPolicy)
		part.endpoints(at, p.InternalPolicy)
	} else {
		part.addNoEndpoints(at)
	}
	for _, ip := range externalIPs(p) {
		part.external(part.key(byAddress, ip), externalOK)
	}
	if p.NodePort != 0 {
		part.external(part.key(byNodePort, netip.Addr{}), externalOK)
	}
	if len(p.SourceRanges) > 0 {
		part.firewall(s.w)
	}
	if p.AffinitySeconds > 0 {
		part.addAffinity()
	}
	part.hairpins[service.Cluster] = st.slots[service.Cluster]
	if p.InternalPolicy == service.Local || p.ExternalPolicy == service.Local && p.External() {
		part.hairpins[service.Local] = st.slots[service.Local]
	}
	return part
}

// shared returns the elements that other service ports may want, too, of which a part has others, or none, in its place.
func (p *part) shared(other *part) (all []item) {
	if p == nil {
		return nil
	}
	if other == nil {
		other = &part{port: &service.Port{}}
	}
	if p.port.ClusterIP != other.port.ClusterIP {
		all = append(all, item{set: setClusterIPs, key: addressField(p.port.ClusterIP)})
	}
	for policy, endpoints := range p.hairpins {
		others := other.hairpins[policy]
		for i, a := range endpoints {
			if i >= len(others) || a.Addr() != others[i].Addr() {
				address := addressField(a.Addr())
				all = append(all, item{set: setHairpin, key: address + address})
			}
		}
	}
	return all
}

// comment returns a service port's name as elements keep it.
func comment(p *service.Port) string {
	name := p.Name.String()
	return name[:min(len(name), nf.MaxComment)]
}

// items returns the elements of a name, made where there are none.
func (p *part) items(n name) *elementsOfName {
	at := slices.IndexFunc(p.named, func(has elementsOfName) bool { return has.name == n })
	if at < 0 {
		at, p.named = len(p.named), append(p.named, elementsOfName{name: n})
	}
	return &p.named[at]
}

func (p *part) add(n name, e item) {
	of := p.items(n)
	of.elements = append(of.elements, e)
}

// addDispatch adds an element that leads from a service port to a chain.
func (p *part) addDispatch(n name, set, chain string) { p.add(n, item{set, n.key, chain, p.name}) }

// leadToFan leads to the chain of a policy, by its set where it has one.
func (p *part) leadToFan(n name, way entryPath, policy service.Policy) {
	chain := p.fan(n.at, way, policy)
	if n.at == byAddress && p.port.AffinitySeconds == 0 {
		p.addDispatch(n, chain, "")
		return
	}
	p.addDispatch(n, mapServices[n.at], chain)
}

// key returns what selects the service port.
func (p *part) key(at matchKind, ip netip.Addr) name {
	if at == byNodePort {
		return name{at, protocolField(p.port.Protocol) + portField(p.port.NodePort)}
	}
	return name{at, addressField(ip) + protocolField(p.port.Protocol) + portField(p.port.Port)}
}

// fan returns the name of the chain of a policy, and makes the chain if it is missing.
func (p *part) fan(at matchKind, way entryPath, policy service.Policy) string {
	f := fan{at: at, way: way, policy: policy, of: len(p.slots[policy])}
	return p.want(f)
}

// want names a chain, which is made where it is not there.
func (p *part) want(f fan) string {
	if p.port.AffinitySeconds > 0 {
		f.sticky, f.seconds, f.protocol = stickyName(p.port), p.port.AffinitySeconds, p.port.Protocol
	}
	if !slices.Contains(p.fans, f) {
		p.fans = append(p.fans, f)
	}
	return f.chain()
}

// addAffinity adds the elements that keep a client at its endpoint.
func (p *part) addAffinity() {
	var uses [2]bool
	for _, f := range p.fans {
		uses[f.policy] = true
	}
	chains := map[netip.AddrPort]string{}
	for policy, endpoints := range p.slots {
		for _, a := range endpoints {
			if !uses[policy] || chains[a] != "" {
				continue
			}
			by := service.Policy(policy)
			if uses[1-policy] && slices.Contains(p.slots[1-policy], a) {
				by = bothPolicies
			}
			chains[a] = p.want(fan{way: remember, policy: by})
		}
	}
	for i := range p.named {
		n := &p.named[i]
		if !slices.ContainsFunc(n.elements, func(e item) bool { return e.set == mapServices[n.at] }) {
			continue
		}
		for _, a := range slices.SortedFunc(maps.Keys(chains), netip.AddrPort.Compare) {
			n.elements = append(n.elements, item{set: mapAffinity[n.at], key: n.key + endpointField(a), value: chains[a]})
		}
	}
}

func (p *part) endpoints(n name, policy service.Policy) {
	of := p.items(n)
	of.endpoints = append(of.endpoints, row{mapEndpoints[n.at][policy], n.key, p.slots[policy]})
}

// addNoEndpoints adds the elements of a service port without endpoints. They reject if there are none at all, and drop if only this node
// has none.
func (p *part) addNoEndpoints(n name) {
	set := setDropped[n.at]
	if len(p.port.ForCluster) == 0 {
		set = setRefused[n.at]
	}
	p.addDispatch(n, set, "")
}

// external adds the elements of one external way to the service port.
func (p *part) external(n name, ok bool) {
	switch {
	case len(p.port.ForCluster) == 0:
	case p.port.ExternalPolicy == service.Cluster:
		p.leadToFan(n, external, service.Cluster)
		p.endpoints(n, service.Cluster)
	default:
		p.addDispatch(n, mapServices[n.at], matchPrefix[n.at]+chainDecide)
		p.addDispatch(n, mapPolicies[n.at][service.Cluster], p.fan(n.at, plain, service.Cluster))
		p.endpoints(n, service.Cluster)
		if ok {
			p.addDispatch(n, mapPolicies[n.at][service.Local], p.fan(n.at, plain, service.Local))
			p.endpoints(n, service.Local)
		}
	}
	if !ok {
		p.addNoEndpoints(n)
	}
}

// firewall lets the source ranges in, and where they hold the node, what it sends to a load balancer's address that it holds itself, which
// has that address as its source.
func (p *part) firewall(w *writer) {
	ranges := slices.Clone(p.port.SourceRanges)
	if slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(w.NodeIP) }) {
		for _, ip := range p.port.LoadBalancerIPs {
			ranges = append(ranges, netip.PrefixFrom(ip, ip.BitLen()))
		}
	}
	ranges = widest(ranges)
	for _, ip := range unique(p.port.LoadBalancerIPs) {
		n := p.key(byAddress, ip)
		p.add(n, item{set: setFirewalled, key: n.key})
		for _, r := range ranges {
			p.add(n, item{set: setSources, key: n.key + addressField(r.Addr()), value: n.key + addressField(last(r))})
		}
	}
}

// widest leaves out ranges that others hold: the kernel takes none that overlap.
func widest(ranges []netip.Prefix) (out []netip.Prefix) {
	slices.SortFunc(ranges, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	for _, r := range ranges {
		if r = r.Masked(); !slices.ContainsFunc(out, func(o netip.Prefix) bool { return o.Overlaps(r) }) {
			out = append(out, r)
		}
	}
	return out
}

// last returns a range's last address.
func last(r netip.Prefix) netip.Addr {
	b := r.Addr().AsSlice()
	for i := r.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
