package arm

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"packetwalk.dev/internal/azure/vnet"
)

// Network returns the network that the resources describe, the inverse of NewResources. What no resource says comes from base: hosts, the
// NICs' machines and numbers, Azure's own networks. A public address without one in base gets the next free one.
func (r Resources) Network(base vnet.Network) (vnet.Network, error) {
	n := base.Clone()
	d := decoder{base: base, n: &n, names: map[string]string{}, members: map[string][]vnet.IPConfigRef{}}
	d.publicIPs(r.PublicIPAddresses)
	d.index(r)
	n.RouteTables = convert(r.RouteTables, d.routeTable)
	n.SecurityGroups = convert(r.SecurityGroups, d.securityGroup)
	n.NATGateways = convert(r.NATGateways, d.natGateway)
	n.VNets = inOrder(base.VNets, convert(r.VirtualNetworks, d.vnet), func(v vnet.VNet) string { return v.Name },
		func(v vnet.VNet) bool { return v.Platform })
	n.NICs = inOrder(base.NICs, convert(r.Interfaces, d.nic), func(nic vnet.NIC) string { return nic.Name }, isHidden(base))
	n.LoadBalancers = convert(r.LoadBalancers, d.loadBalancer)
	return n, d.err
}

// Visible returns a network without what is Azure's own: the networks that its services run on, and the NICs of container groups.
func Visible(n vnet.Network) vnet.Network {
	n.NICs = slices.DeleteFunc(slices.Clone(n.NICs), isHidden(n))
	n.VNets = slices.DeleteFunc(slices.Clone(n.VNets), func(v vnet.VNet) bool { return v.Platform })
	return n
}

func isHidden(n vnet.Network) func(vnet.NIC) bool {
	platform := map[string]bool{}
	for _, v := range n.VNets {
		platform[v.Name] = v.Platform
	}
	return func(nic vnet.NIC) bool { return nic.ContainerGroup || platform[nic.VNet] }
}

// A decoder turns resources into parts of a network. It keeps the first error.
type decoder struct {
	base    vnet.Network
	n       *vnet.Network
	names   map[string]string             // of what others refer to, by id in lower case
	members map[string][]vnet.IPConfigRef // that NICs name, by the id of a pool in lower case
	err     error
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// convert converts the resources of a kind; nil for none.
func convert[R, T any](resources []*R, one func(R) T) (all []T) {
	for _, r := range resources {
		if r != nil {
			all = append(all, one(*r))
		}
	}
	return all
}

// inOrder returns the new elements in the order of the old ones of the same name, and the others behind them. Hidden old ones stay.
func inOrder[T any](before, after []T, name func(T) string, hidden func(T) bool) (all []T) {
	rest := slices.Clone(after)
	for _, old := range before {
		if hidden(old) {
			all = append(all, old)
			continue
		}
		if i := slices.IndexFunc(rest, func(t T) bool { return name(t) == name(old) }); i >= 0 {
			all, rest = append(all, rest[i]), slices.Delete(rest, i, i+1)
		}
	}
	return append(all, rest...)
}

// value returns what a pointer points to; zero for nil.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// index notes the ids that references may name.
func (d *decoder) index(r Resources) {
	add := func(id *string, name string) { d.names[strings.ToLower(value(id))] = name }
	for _, p := range r.PublicIPAddresses {
		add(p.ID, value(p.Name))
	}
	for _, t := range r.RouteTables {
		add(t.ID, value(t.Name))
	}
	for _, g := range r.SecurityGroups {
		add(g.ID, value(g.Name))
	}
	for _, g := range r.NATGateways {
		add(g.ID, value(g.Name))
	}
	for _, v := range r.VirtualNetworks {
		add(v.ID, value(v.Name))
		for _, s := range value(v.Properties).Subnets {
			name := value(value(s).Name)
			add(new(value(v.ID)+"/subnets/"+name), value(v.Name)+"/"+name)
		}
	}
	for _, lb := range r.LoadBalancers {
		for _, p := range value(lb.Properties).BackendAddressPools {
			name := value(value(p).Name)
			add(new(value(lb.ID)+"/backendAddressPools/"+name), name)
		}
	}
}

// ref returns the name of what an id refers to, "" for no id.
func (d *decoder) ref(from string, id *string) string {
	if value(id) == "" {
		return ""
	}
	name, ok := d.names[strings.ToLower(*id)]
	if !ok {
		d.fail(badRequest("InvalidResourceReference", "Resource %s referenced by resource %s was not found. Please make sure that the "+
			"referenced resource exists, and that both resources are in the same region.", *id, from))
	}
	return name
}

// child returns the name of a part of the same resource that an id refers to. A load balancer's parts refer to each other before they exist.
func (d *decoder) child(from, kind string, id *string) string {
	if value(id) == "" {
		return ""
	}
	path := strings.Split(*id, "/")
	if len(path) < 2 || !strings.EqualFold(path[len(path)-2], kind) {
		d.fail(badRequest("InvalidRequestFormat", "Cannot parse the request: %s of %s does not identify one of %s.", *id, from, kind))
	}
	return path[len(path)-1]
}

func subID(s *armnetwork.SubResource) *string { return value(s).ID }

func (d *decoder) prefix(of string, s *string) netip.Prefix {
	p, err := netip.ParsePrefix(value(s))
	if err != nil {
		d.fail(badRequest("InvalidAddressPrefixFormat", "Address prefix %s of resource %s is not formatted correctly.", value(s), of))
	}
	return p
}

// publicIPs keeps the addresses that there are, and allocates those of new resources.
func (d *decoder) publicIPs(resources []*armnetwork.PublicIPAddress) {
	known := map[string]publicAddress{}
	for _, p := range newBuilder(d.base).publicIPs() {
		known[p.name] = p
	}
	d.n.PublicIPs = nil
	var created []string
	for _, r := range resources {
		name := value(r.Name)
		if old, ok := d.base.PublicIP(name); ok {
			d.n.PublicIPs = append(d.n.PublicIPs, old)
		} else if _, ok := known[name]; !ok { // else a front end's that has no resource in the network
			created = append(created, name)
		}
		if value(value(r.Properties).PublicIPAddressVersion) == armnetwork.IPVersionIPv6 {
			d.fail(unsupported("public IPv6 addresses"))
		}
	}
	for _, name := range created {
		if _, err := d.n.AllocatePublicIP(name, netip.Addr{}); err != nil {
			d.fail(badRequest("PublicIPCountLimitReached", "Cannot create public IP address %s: %v.", name, err))
		}
	}
}

// publicAddress returns the address of a public IP resource.
func (d *decoder) publicAddress(name string) netip.Addr {
	if p, ok := d.n.PublicIP(name); ok {
		return p.Address
	}
	for _, p := range newBuilder(d.base).publicIPs() {
		if p.name == name {
			return p.address
		}
	}
	return netip.Addr{}
}

func (d *decoder) routeTable(r armnetwork.RouteTable) vnet.RouteTable {
	return vnet.RouteTable{Name: value(r.Name), Routes: convert(value(r.Properties).Routes, func(r armnetwork.Route) vnet.UserRoute {
		p := value(r.Properties)
		route := vnet.UserRoute{Name: value(r.Name), Prefix: d.prefix(value(r.Name), p.AddressPrefix),
			NextHopType: string(value(p.NextHopType))}
		if hop := value(p.NextHopIPAddress); hop != "" {
			var err error
			if route.NextHop, err = netip.ParseAddr(hop); err != nil {
				d.fail(badRequest("InvalidNextHopIpAddress", "Next hop IP address %s of route %s is not valid.", hop, value(r.Name)))
			}
		}
		return route
	})}
}

func (d *decoder) vnet(r armnetwork.VirtualNetwork) vnet.VNet {
	name, p := value(r.Name), value(r.Properties)
	old, _ := find(d.base.VNets, func(v vnet.VNet) bool { return v.Name == name })
	v := vnet.VNet{Name: name, ResourceGroup: old.ResourceGroup}
	if group := groupOf(value(r.ID)); group != "" && !strings.EqualFold(newBuilder(d.base).groupOf(v), group) {
		v.ResourceGroup = group
	}
	for _, a := range value(p.AddressSpace).AddressPrefixes {
		v.AddressPrefixes = append(v.AddressPrefixes, d.prefix(name, a))
	}
	v.Subnets = convert(p.Subnets, func(r armnetwork.Subnet) vnet.Subnet {
		p, at := value(r.Properties), name+"/"+value(r.Name)
		prefix := p.AddressPrefix
		if prefix == nil && len(p.AddressPrefixes) == 1 {
			prefix = p.AddressPrefixes[0]
		}
		return vnet.Subnet{Name: value(r.Name), Prefix: d.prefix(at, prefix), RouteTable: d.ref(at, value(p.RouteTable).ID),
			SecurityGroup: d.ref(at, value(p.NetworkSecurityGroup).ID), NATGateway: d.ref(at, subID(p.NatGateway)),
			Private: p.DefaultOutboundAccess != nil && !*p.DefaultOutboundAccess}
	})
	v.Peerings = convert(p.VirtualNetworkPeerings, func(r armnetwork.VirtualNetworkPeering) vnet.Peering {
		peering := vnet.Peering{Name: value(r.Name), RemoteVNet: d.ref(name+"/"+value(r.Name), subID(value(r.Properties).RemoteVirtualNetwork))}
		before, _ := find(old.Peerings, func(o vnet.Peering) bool { return o.Name == peering.Name && o.RemoteVNet == peering.RemoteVNet })
		peering.Parted = before.Parted
		return peering
	})
	return v
}

func (d *decoder) nic(r armnetwork.Interface) vnet.NIC {
	p := value(r.Properties)
	nic, ok := d.base.NIC(value(r.Name))
	if !ok {
		d.fail(badRequest("OperationNotAllowed", "The lab's network interfaces are those of its machines: add the machine to cluster.yaml."))
		return nic
	}
	nic.IPForwarding, nic.SecurityGroup = value(p.EnableIPForwarding), d.ref(nic.Name, value(p.NetworkSecurityGroup).ID)
	before := nic.IPConfigs
	nic.IPConfigs = nil
	for _, c := range p.IPConfigurations {
		nic.IPConfigs = append(nic.IPConfigs, d.ipConfig(&nic, before, value(c)))
	}
	return nic
}

func (d *decoder) ipConfig(nic *vnet.NIC, before []vnet.IPConfig, r armnetwork.InterfaceIPConfiguration) vnet.IPConfig {
	p := value(r.Properties)
	c, _ := find(before, func(c vnet.IPConfig) bool { return c.Name == value(r.Name) })
	c.Name, c.Primary = value(r.Name), value(p.Primary)
	if a := value(p.PrivateIPAddress); a != "" || !c.Address.IsValid() {
		var err error
		if c.Address, err = netip.ParseAddr(a); err != nil {
			d.fail(badRequest("InvalidPrivateIPAddress", "Private IP address %q of %s/%s is not valid; a new IP configuration needs one.", a,
				nic.Name, c.Name))
		}
	}
	if id := value(p.Subnet).ID; id != nil {
		nic.VNet, nic.Subnet, _ = strings.Cut(d.ref(nic.Name, id), "/")
	}
	c.PublicIP = d.ref(nic.Name, value(p.PublicIPAddress).ID)
	for _, pool := range p.LoadBalancerBackendAddressPools {
		if d.ref(nic.Name, value(pool).ID) != "" {
			id := strings.ToLower(*pool.ID)
			d.members[id] = append(d.members[id], vnet.IPConfigRef{NIC: nic.Name, IPConfig: c.Name})
		}
	}
	return c
}

func (d *decoder) loadBalancer(r armnetwork.LoadBalancer) vnet.LoadBalancer {
	p, name, id := value(r.Properties), value(r.Name), r.ID
	lb := vnet.LoadBalancer{Name: name, SKU: string(value(value(r.SKU).Name))}
	if len(p.InboundNatRules)+len(p.InboundNatPools) > 0 {
		d.fail(unsupported("inbound NAT rules and pools"))
	}
	lb.Frontends = convert(p.FrontendIPConfigurations,
		func(r armnetwork.FrontendIPConfiguration) vnet.Frontend { return d.frontend(name, r) })
	lb.BackendPools = convert(p.BackendAddressPools, func(r armnetwork.BackendAddressPool) vnet.BackendPool { return d.pool(value(id), r) })
	lb.Rules = convert(p.LoadBalancingRules, d.rule)
	lb.Probes = convert(p.Probes, d.probe)
	lb.OutboundRules = convert(p.OutboundRules, d.outboundRule)
	return lb
}

// frontend returns a front end with its address: a public IP resource's, or one of a subnet. That is the one that the resource names, or
// has already, or the next free one.
func (d *decoder) frontend(lb string, r armnetwork.FrontendIPConfiguration) vnet.Frontend {
	f, p := vnet.Frontend{Name: value(r.Name)}, value(r.Properties)
	if p.PublicIPAddress != nil {
		f.Address = d.publicAddress(d.ref(f.Name, p.PublicIPAddress.ID))
		return f
	}
	if p.Subnet == nil {
		d.fail(unsupported("front ends of public IP prefixes and gateways"))
		return f
	}
	f.VNet, f.Subnet, _ = strings.Cut(d.ref(f.Name, p.Subnet.ID), "/")
	var want netip.Addr
	if a := value(p.PrivateIPAddress); a != "" {
		var err error
		if want, err = netip.ParseAddr(a); err != nil {
			d.fail(badRequest("InvalidPrivateIPAddress", "Private IP address %q of %s is not valid.", a, f.Name))
		}
	}
	if old, ok := d.base.LoadBalancer(lb); ok {
		before, _ := find(old.Frontends, func(o vnet.Frontend) bool { return o.Name == f.Name && o.VNet == f.VNet && o.Subnet == f.Subnet })
		if before.Address.IsValid() && (!want.IsValid() || want == before.Address) {
			return before
		}
	}
	var err error
	if f.Address, err = d.n.AllocateFrontend(f.VNet, f.Subnet, want); err != nil && d.err == nil {
		d.fail(badRequest("PrivateIPAddressNotAvailable", "Cannot give front end %s an address: %v.", f.Name, err))
	}
	d.n.LoadBalancers = append(d.n.LoadBalancers, vnet.LoadBalancer{Frontends: []vnet.Frontend{f}}) // keeps the address from the next one
	return f
}

func (d *decoder) natGateway(r armnetwork.NatGateway) vnet.NATGateway {
	p := value(r.Properties)
	if len(p.PublicIPPrefixes) > 0 {
		d.fail(unsupported("public IP prefixes"))
	}
	g := vnet.NATGateway{Name: value(r.Name), IdleTimeoutMinutes: int(value(p.IdleTimeoutInMinutes))}
	if g.IdleTimeoutMinutes == 0 {
		g.IdleTimeoutMinutes = defaultIdleMinutes
	}
	for _, ip := range p.PublicIPAddresses {
		g.PublicIPs = append(g.PublicIPs, d.ref(g.Name, subID(ip)))
	}
	return g
}

// pool has the members that NICs name, in the order of the pool's own list and then of the NICs.
func (d *decoder) pool(lbID string, r armnetwork.BackendAddressPool) vnet.BackendPool {
	pool := vnet.BackendPool{Name: value(r.Name)}
	if len(value(r.Properties).LoadBalancerBackendAddresses) > 0 && len(value(r.Properties).BackendIPConfigurations) == 0 {
		d.fail(unsupported("back-end pools of IP addresses"))
	}
	b := newBuilder(*d.n)
	rest := slices.Clone(d.members[strings.ToLower(lbID+"/backendAddressPools/"+pool.Name)])
	for _, c := range value(r.Properties).BackendIPConfigurations {
		id := value(value(c).ID)
		if i := slices.IndexFunc(rest, func(m vnet.IPConfigRef) bool { return strings.EqualFold(*b.ipConfigID(m), id) }); i >= 0 {
			pool.Members, rest = append(pool.Members, rest[i]), slices.Delete(rest, i, i+1)
		}
	}
	pool.Members = append(pool.Members, rest...)
	return pool
}

func (d *decoder) rule(r armnetwork.LoadBalancingRule) vnet.Rule {
	p, name := value(r.Properties), value(r.Name)
	rule := vnet.Rule{
		Name: name, Frontend: d.child(name, "frontendIPConfigurations", subID(p.FrontendIPConfiguration)),
		BackendPool: d.child(name, "backendAddressPools", subID(p.BackendAddressPool)), Probe: d.child(name, "probes", subID(p.Probe)),
		Protocol: string(value(p.Protocol)), FrontendPort: d.port(name, p.FrontendPort), BackendPort: d.port(name, p.BackendPort),
		FloatingIP: value(p.EnableFloatingIP), IdleTimeoutMinutes: int(value(p.IdleTimeoutInMinutes)),
		LoadDistribution: string(value(p.LoadDistribution)), TCPReset: value(p.EnableTCPReset),
		DisableOutboundSNAT: value(p.DisableOutboundSnat),
	}
	if rule.IdleTimeoutMinutes == 0 {
		rule.IdleTimeoutMinutes = defaultIdleMinutes
	}
	if rule.LoadDistribution == "" {
		rule.LoadDistribution = vnet.DistributionDefault
	}
	switch {
	case rule.Protocol == string(armnetwork.TransportProtocolAll):
		d.fail(unsupported("high-availability ports (protocol All)"))
	case rule.ChosenBy() == "":
		d.fail(unsupported(fmt.Sprintf("load distribution %q", rule.LoadDistribution)))
	case rule.IdleTimeoutMinutes < defaultIdleMinutes || rule.IdleTimeoutMinutes > maxIdleMinutes:
		d.fail(badRequest("InvalidIdleTimeoutInMinutes", "Idle timeout %d of load balancing rule %s is not between %d and %d minutes.",
			rule.IdleTimeoutMinutes, name, defaultIdleMinutes, maxIdleMinutes))
	}
	return rule
}

// The idle timeout of rules that name none, which is also the shortest, and the longest. Both are in minutes.
const (
	defaultIdleMinutes = 4
	maxIdleMinutes     = 100
)

func (d *decoder) port(of string, p *int32) uint16 {
	if port := value(p); port >= 0 && port <= 0xffff {
		return uint16(port)
	}
	d.fail(badRequest("InvalidPortRange", "Port %d of %s is not between 0 and 65535.", *p, of))
	return 0
}

func (d *decoder) probe(r armnetwork.Probe) vnet.Probe {
	p := value(r.Properties)
	count := p.ProbeThreshold // which the later versions of the interface count by
	if value(count) == 0 {
		count = p.NumberOfProbes
	}
	if path := value(p.RequestPath); path != "" && (len(path) > maxRequestPath || !requestPath.MatchString(path)) {
		d.fail(badRequest("InvalidProbeRequestPath", "Request path %q of probe %s is invalid.", path, value(r.Name)))
	}
	return vnet.Probe{Name: value(r.Name), Protocol: string(value(p.Protocol)), Port: d.port(value(r.Name), p.Port),
		RequestPath: value(p.RequestPath), IntervalSeconds: int(value(p.IntervalInSeconds)), Count: max(1, int(value(count)))}
}

// maxRequestPath is the most bytes that a probe's path has, far above what Azure takes.
const maxRequestPath = 2048

// requestPath matches paths without spaces and control characters.
var requestPath = regexp.MustCompile(`^/[!-~]*$`)

func (d *decoder) outboundRule(r armnetwork.OutboundRule) vnet.OutboundRule {
	p, name := value(r.Properties), value(r.Name)
	rule := vnet.OutboundRule{Name: name, BackendPool: d.child(name, "backendAddressPools", subID(p.BackendAddressPool)),
		AllocatedOutboundPorts: int(value(p.AllocatedOutboundPorts)), IdleTimeoutMinutes: int(value(p.IdleTimeoutInMinutes)),
		TCPReset: value(p.EnableTCPReset)}
	for _, f := range p.FrontendIPConfigurations {
		rule.Frontends = append(rule.Frontends, d.child(name, "frontendIPConfigurations", subID(f)))
	}
	if protocol := value(p.Protocol); protocol != armnetwork.LoadBalancerOutboundRuleProtocolAll {
		rule.Protocol = string(protocol)
	}
	return rule
}

func (d *decoder) securityGroup(r armnetwork.SecurityGroup) vnet.SecurityGroup {
	return vnet.SecurityGroup{Name: value(r.Name), Rules: convert(value(r.Properties).SecurityRules, d.securityRule)}
}

func (d *decoder) securityRule(r armnetwork.SecurityRule) vnet.SecurityRule {
	p := value(r.Properties)
	if len(p.SourceApplicationSecurityGroups)+len(p.DestinationApplicationSecurityGroups) > 0 {
		d.fail(unsupported("application security groups"))
	}
	return vnet.SecurityRule{
		Name: value(r.Name), Priority: int(value(p.Priority)), Direction: string(value(p.Direction)), Access: string(value(p.Access)),
		Protocol: string(value(p.Protocol)),
		Sources:  words(p.SourceAddressPrefix, p.SourceAddressPrefixes), Destinations: words(p.DestinationAddressPrefix, p.DestinationAddressPrefixes),
		SourcePorts: d.ports(value(r.Name), p.SourcePortRange, p.SourcePortRanges), DestinationPorts: d.ports(value(r.Name), p.DestinationPortRange, p.DestinationPortRanges),
	}
}

// words joins a singular and a plural field, of which a rule has one. Nil means everything.
func words(one *string, more []*string) (all []string) {
	for _, w := range append([]*string{one}, more...) {
		switch s := value(w); s {
		case "":
		case vnet.Any:
			return nil
		default:
			all = append(all, s)
		}
	}
	return all
}

func (d *decoder) ports(of string, one *string, more []*string) (all []vnet.PortRange) {
	for _, w := range words(one, more) {
		r, err := vnet.ParsePortRange(w)
		if err != nil {
			d.fail(badRequest("SecurityRuleInvalidPortRange", "Security rule %s has an invalid port range: %v.", of, err))
		}
		all = append(all, r)
	}
	return all
}

// find returns the first element that matches.
func find[T any](list []T, matches func(T) bool) (found T, ok bool) {
	if i := slices.IndexFunc(list, matches); i >= 0 {
		return list[i], true
	}
	return found, false
}

// groupOf returns the resource group that an id names.
func groupOf(id string) string {
	path := strings.Split(id, "/")
	for i := range path {
		if strings.EqualFold(path[i], "resourceGroups") && i+1 < len(path) {
			return path[i+1]
		}
	}
	return ""
}
