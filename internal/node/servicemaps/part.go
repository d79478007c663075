package servicemaps

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
	port     *service.Port
	slots    slots
	name     string // of the service port, in comments
	elements []item
	named    []namedItems // elements whose keys begin with a name of the service port
	shared   []*item      // those that other service ports may want, too
	fans     []fan
	// Without endpoints on this node, where the policy is Local.
	noLocalInternal, noLocalExternal bool
}

type namedItems struct {
	name
	elements []*item
}

// item is an element of a set; the value of one of setSources is the last address of the range.
type item struct {
	set, key string
	value    string
	comment  string
}

// newPart makes the part of a service port with its endpoints in their slots.
func (s *State) newPart(st *stored) *part {
	part := makePart(s.w, st.port, st.slots)
	for i := range part.elements {
		e := &part.elements[i]
		n, named := s.nameOf(e.set, e.key)
		if !named {
			part.shared = append(part.shared, e)
			continue
		}
		at := slices.IndexFunc(part.named, func(has namedItems) bool { return has.name == n })
		if at < 0 {
			at, part.named = len(part.named), append(part.named, namedItems{name: n})
		}
		part.named[at].elements = append(part.named[at].elements, e)
	}
	return part
}

// of are the elements of a name.
func (p *part) of(n name) []*item {
	for i := range p.named {
		if p.named[i].name == n {
			return p.named[i].elements
		}
	}
	return nil
}

func makePart(w *writer, p *service.Port, s slots) *part {
	part := &part{port: p, slots: s, name: comment(p), elements: make([]item, 0, 4+2*len(s[0])+len(s[1]))}
	reachable := len(p.ForCluster) > 0
	usesLocal := p.InternalPolicy == service.Local || p.ExternalPolicy == service.Local && p.External()
	internalOK := reachable && (p.InternalPolicy == service.Cluster || len(p.ForLocal) > 0)
	externalOK := reachable && (p.ExternalPolicy == service.Cluster || len(p.ForLocal) > 0)
	part.noLocalInternal, part.noLocalExternal = reachable && !internalOK, reachable && !externalOK

	part.add(setClusterIPs, addressField(p.ClusterIP), "")
	at := part.key(byAddress, p.ClusterIP)
	if internalOK {
		part.leadToFan(byAddress, internal, p.InternalPolicy, at)
		part.endpoints(byAddress, p.InternalPolicy, at)
	} else {
		part.refuse(byAddress, at)
	}
	for _, ip := range externalIPs(p) {
		part.external(byAddress, part.key(byAddress, ip), externalOK)
	}
	if p.NodePort != 0 {
		part.external(byNodePort, part.key(byNodePort, netip.Addr{}), externalOK)
	}
	if len(p.SourceRanges) > 0 {
		part.firewall(w)
	}
	if p.AffinitySeconds > 0 {
		part.remember()
	}
	part.hairpins(s[service.Cluster])
	if usesLocal {
		part.hairpins(s[service.Local])
	}
	return part
}

// comment is a service port's name as elements keep it.
func comment(p *service.Port) string {
	name := p.Name.String()
	return name[:min(len(name), nf.MaxComment)]
}

// externalIPs are the addresses beside the cluster IP, each once.
func externalIPs(p *service.Port) []netip.Addr {
	return slices.DeleteFunc(unique(p.ExternalIPs, p.LoadBalancerIPs), func(a netip.Addr) bool { return a == p.ClusterIP })
}

// hairpins are for endpoints that reach themselves.
func (p *part) hairpins(endpoints []netip.AddrPort) {
	for _, a := range endpoints {
		address := addressField(a.Addr())
		p.add(setHairpin, address+address, "")
	}
}

func unique(lists ...[]netip.Addr) []netip.Addr {
	all := slices.Concat(lists...)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

func (p *part) add(set, key, value string) {
	p.elements = append(p.elements, item{set: set, key: key, value: value})
}

// lead leads from a service port's key to a chain, and is signed.
func (p *part) lead(set, key, chain string) {
	p.elements = append(p.elements, item{set, key, chain, p.name})
}

// leadToFan leads to the chain of a policy, by its set where it has one.
func (p *part) leadToFan(at place, way way, policy service.Policy, key string) {
	name := p.fan(at, way, policy)
	if at == byAddress && p.port.AffinitySeconds == 0 {
		p.lead(name, key, "")
		return
	}
	p.lead(mapServices[at], key, name)
}

// key is how packets name the service port at a place.
func (p *part) key(at place, ip netip.Addr) string {
	if at == byNodePort {
		return protocolField(p.port.Protocol) + portField(p.port.NodePort)
	}
	return addressField(ip) + protocolField(p.port.Protocol) + portField(p.port.Port)
}

// fan is the name of the chain of a policy, which is made where it is not there.
func (p *part) fan(at place, way way, policy service.Policy) string {
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

// remember has clients stay where they are.
func (p *part) remember() {
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
	for _, e := range p.elements {
		for at, set := range mapServices {
			if e.set != set {
				continue
			}
			for _, a := range slices.SortedFunc(maps.Keys(chains), netip.AddrPort.Compare) {
				p.add(mapAffinity[at], e.key+endpointField(a), chains[a])
			}
		}
	}
}

func (p *part) endpoints(at place, policy service.Policy, key string) {
	for i, a := range p.slots[policy] {
		p.add(mapEndpoints[at][policy], key+slotField(i), endpointField(a))
	}
}

// refuse answers what finds no endpoint: refused if there is none at all, dropped if there is none here.
func (p *part) refuse(at place, key string) {
	set := setDropped[at]
	if len(p.port.ForCluster) == 0 {
		set = setRefused[at]
	}
	p.lead(set, key, "")
}

// external is one external way to the service port.
func (p *part) external(at place, key string, ok bool) {
	switch {
	case len(p.port.ForCluster) == 0:
	case p.port.ExternalPolicy == service.Cluster:
		p.leadToFan(at, external, service.Cluster, key)
		p.endpoints(at, service.Cluster, key)
	default:
		p.lead(mapServices[at], key, placePrefix[at]+chainDecide)
		p.lead(mapPolicies[at][service.Cluster], key, p.fan(at, plain, service.Cluster))
		p.endpoints(at, service.Cluster, key)
		if ok {
			p.lead(mapPolicies[at][service.Local], key, p.fan(at, plain, service.Local))
			p.endpoints(at, service.Local, key)
		}
	}
	if !ok {
		p.refuse(at, key)
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
		key := p.key(byAddress, ip)
		p.add(setFirewalled, key, "")
		for _, r := range ranges {
			p.add(setSources, key+addressField(r.Addr()), key+addressField(last(r)))
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

// last is a range's last address.
func last(r netip.Prefix) netip.Addr {
	b := r.Addr().AsSlice()
	for i := r.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
