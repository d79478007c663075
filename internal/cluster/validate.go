package cluster

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// MaxPoolNodes is the most nodes that a pool can have in the lab (spec.nodePools[].count).
const MaxPoolNodes = 100

// Bounds of a node pool. maxPods is AKS's own range for Azure CNI.
const (
	maxPools   = 10
	minMaxPods = 10
	maxMaxPods = 250
)

// Bounds of the outbound rule of a Standard load balancer: Azure's ports of an address, and as many addresses as its rules take.
const (
	maxManagedIPs = 16
	portsPerIP    = 64000
)

// maxMasqRanges is the most ranges of an ip-masq-agent's file (its cidrLimit).
const maxMasqRanges = 64

// maxHostName is the most characters of an internet host's name: a link's name is made of it, and Linux allows those 15.
const maxHostName = 11

var (
	clusterName   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?$`)
	poolName      = regexp.MustCompile(`^[a-z][a-z0-9]{0,11}$`)
	azureName     = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,62}[A-Za-z0-9_])?$`)
	resourceGroup = regexp.MustCompile(`^[A-Za-z0-9_.()-]{0,89}[A-Za-z0-9_()-]$`)
	location      = regexp.MustCompile(`^[a-z0-9]{1,40}$`)
	subscription  = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	vmSize        = regexp.MustCompile(`^[A-Za-z0-9_]{1,60}$`)
	dnsLabel      = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// hostNames are what the lab calls hosts of its own and components in "ssh" and "logs", and its folders beside theirs.
var hostNames = []string{
	"fabric", "internet", "controlplane", "lab", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "azure-dns", "internet-dns", "management", "localhost",
	"pods", "groups", "group-hosts",
}

// special are the ranges that no VNet, service or pod may overlap, and why.
var special = []struct {
	prefix netip.Prefix
	what   string
}{
	{InternetRange, "the range of the lab's internet hosts"},
	{PublicPool, "the lab's pool of public addresses"},
	{wireServer, "the address of Azure's platform"},
	{netip.MustParsePrefix("169.254.0.0/16"), "the link-local range"},
	{netip.MustParsePrefix("127.0.0.0/8"), "the loopback range"},
	{netip.MustParsePrefix("0.0.0.0/8"), "the range of \"this network\""},
	{netip.MustParsePrefix("224.0.0.0/3"), "the multicast and reserved range"},
}

// Validate gives everything that is wrong with c, defaults filled in. With apps given, the application of a VM or an internet host must be
// one of them.
func (c *Cluster) Validate(apps ...string) Errors {
	v := &validator{c: c, apps: apps}
	v.header()
	v.network()
	v.azure()
	v.pools()
	v.ranges()
	v.machines()
	v.unbuilt()
	v.virtualNode()
	return v.errs
}

type validator struct {
	c    *Cluster
	apps []string
	errs Errors
}

func (v *validator) header() {
	c := v.c
	if c.APIVersion != APIVersion {
		v.errs.add("apiVersion", "write "+APIVersion, "unknown version %q", c.APIVersion)
	}
	if c.Kind != Kind {
		v.errs.add("kind", "write "+Kind, "unknown kind %q", c.Kind)
	}
	v.name("metadata.name", c.Metadata.Name, clusterName, "1 to 63 letters, digits, - and _, a letter or digit at both ends")
	if k := c.Spec.KubernetesVersion; k != SupportedKubernetes {
		v.errs.add("spec.kubernetesVersion", "write \""+SupportedKubernetes+"\", or leave it out; spec.serviceProxy.rules chooses the rule set of an older version",
			"the control plane is that of %s, not %s", SupportedKubernetes, k)
	}
}

// name checks s against a pattern.
func (v *validator) name(path, s string, pattern *regexp.Regexp, rule string) {
	switch {
	case s == "":
		v.errs.add(path, "write "+rule, "missing")
	case !pattern.MatchString(s):
		v.errs.add(path, "write "+rule, "%q is not possible", s)
	}
}

// choice checks that value is one of the known ones, and that this version builds it.
func choice[T ~string](v *validator, path string, value T, built, later []T) {
	switch {
	case slices.Contains(built, value):
	case slices.Contains(later, value):
		today := "leave it out today"
		if len(built) > 0 {
			today = "write " + list(built, " or ") + " today"
		}
		v.errs.add(path, today, "%s is not built yet", value)
	default:
		var known, say []string
		for _, k := range built {
			known = append(known, string(k))
		}
		if len(built) > 0 {
			say = append(say, "this version has "+list(built, ", "))
		}
		if len(later) > 0 {
			say = append(say, "not built yet: "+list(later, ", "))
		}
		remedy := "leave it out today"
		if len(built) > 0 {
			remedy = suggest(string(value), known, "write one of ")
		}
		if len(built) == 1 {
			remedy = "write " + known[0]
		}
		v.errs.add(path, remedy, "unknown value %q; %s", value, strings.Join(say, "; "))
	}
}

func list[T ~string](words []T, sep string) string {
	var s []string
	for _, w := range words {
		s = append(s, string(w))
	}
	return strings.Join(s, sep)
}

func (v *validator) network() {
	n, path := v.c.Spec.Network, "spec.network"
	choice(v, path+".plugin", n.Plugin, []Plugin{PluginAzure, PluginKubenet}, nil)
	if n.Plugin == PluginAzure {
		choice(v, path+".mode", n.Mode, []Mode{ModeBridge, ModeTransparent}, nil)
	} else if n.Plugin == PluginKubenet && n.Mode != "" {
		v.errs.add(path+".mode", "leave it out", "only plugin azure has modes")
	}
	choice(v, path+".policy", n.Policy, []Policy{PolicyNone, PolicyCalico}, nil)
	if n.Policy == PolicyCalico && n.Plugin == PluginKubenet {
		v.errs.add(path+".policy", "write none, or plugin azure, today", "calico with plugin kubenet is not built yet")
	}
	if n.Plugin == PluginAzure && n.PodCIDR.IsValid() {
		v.errs.add(path+".podCIDR", "leave it out", "with plugin azure pods get addresses of their node pool's subnet")
	}
	if v.prefix(path+".serviceCIDR", n.ServiceCIDR, 12, 28) {
		v.dnsServiceIP(path+".dnsServiceIP", n.DNSServiceIP, n.ServiceCIDR)
	}
	choice(v, path+".ipMasqAgent", n.IPMasqAgent, []IPMasqAgent{IPMasqNone, IPMasqV1, IPMasqV2}, nil)
	if k := len(n.NonMasqueradeCIDRs); n.IPMasqAgent != IPMasqNone && k > maxMasqRanges {
		v.errs.add(path+".nonMasqueradeCIDRs", fmt.Sprintf("write at most %d, or shorter prefixes that hold several", maxMasqRanges),
			"%d ranges, more than the ip-masq-agent takes", k)
	}
	for i, p := range n.NonMasqueradeCIDRs {
		at := fmt.Sprintf("%s.nonMasqueradeCIDRs[%d]", path, i)
		v.prefix(at, p, 0, 32)
		if j := slices.Index(n.NonMasqueradeCIDRs, p); j < i {
			v.errs.add(at, "remove it", "the same as nonMasqueradeCIDRs[%d]", j)
		}
	}
	if k := len(n.NonMasqueradeCIDRs); n.Plugin == PluginKubenet && n.IPMasqAgent == IPMasqNone && k != 1 {
		v.errs.add(path+".nonMasqueradeCIDRs", "write one range, 0.0.0.0/0 for every destination, or ipMasqAgent: v2", "kubenet has one, kubelet's --non-masquerade-cidr, not %d", k)
	}
	choice(v, "spec.serviceProxy.backend", v.c.Spec.ServiceProxy.Backend, []Backend{BackendIPTables}, []Backend{BackendNFTables})
	choice(v, "spec.serviceProxy.rules", v.c.Spec.ServiceProxy.Rules, []Rules{RulesCurrent, Rules111, Rules112, Rules119}, nil)
	choice(v, "spec.loadBalancer.sku", v.c.Spec.LoadBalancer.SKU, []SKU{SKUBasic, SKUStandard}, nil)
	v.frontends()
	v.outbound()
}

// outbound checks the outbound rule of a Standard load balancer.
func (v *validator) outbound() {
	lb, path := v.c.Spec.LoadBalancer, "spec.loadBalancer.outbound"
	o := lb.Outbound
	if lb.SKU != SKUStandard {
		if o != (Outbound{}) {
			v.errs.add(path, "leave it out, or write sku: standard", "only a Standard load balancer has outbound rules")
		}
		return
	}
	v.number(path+".managedIPs", o.ManagedIPs, 1, min(maxManagedIPs, len(v.c.Frontends())))
	v.number(path+".idleTimeoutMinutes", o.IdleTimeoutMinutes, 4, 120)
	if o.Ports == 0 || !v.c.countable() || o.ManagedIPs < 1 {
		return
	}
	nodes := 0
	for _, p := range v.c.Spec.NodePools {
		nodes += p.Count
	}
	most := min(portsPerIP, portsPerIP*o.ManagedIPs/nodes/8*8)
	if o.Ports < 0 || o.Ports%8 != 0 || o.Ports > most {
		v.errs.add(path+".ports", fmt.Sprintf("write a multiple of 8 up to %d, or more managedIPs", most), "%d is not possible with %d nodes and %d addresses of %d ports",
			o.Ports, nodes, o.ManagedIPs, portsPerIP)
	}
}

func (v *validator) dnsServiceIP(path string, a netip.Addr, services netip.Prefix) {
	remedy := fmt.Sprintf("write %s, or leave it out", nth(services, 10))
	switch {
	case !a.IsValid():
		v.errs.add(path, remedy, "missing")
	case !services.Contains(a):
		v.errs.add(path, remedy, "%s is not in spec.network.serviceCIDR, %s", a, services)
	case a == services.Addr() || a == last(services):
		v.errs.add(path, remedy, "%s is an end of spec.network.serviceCIDR, %s", a, services)
	case a == nth(services, 1):
		v.errs.add(path, remedy, "%s, the first address of spec.network.serviceCIDR, is the service kubernetes's", a)
	}
}

func (v *validator) frontends() {
	f := v.c.Spec.LoadBalancer.Frontends
	for i, a := range f {
		at := fmt.Sprintf("spec.loadBalancer.frontends[%d]", i)
		if a.Compare(firstFrontend) < 0 || a.Compare(lastFrontend) > 0 {
			v.errs.add(at, fmt.Sprintf("write one from %s to %s", firstFrontend, lastFrontend), "%s is not an address for front ends", a)
		} else if j := slices.Index(f, a); j < i {
			v.errs.add(at, "remove it", "the same as frontends[%d]", j)
		}
	}
}

// prefix checks one range by itself, and says whether it can be compared with others.
func (v *validator) prefix(path string, p netip.Prefix, shortest, longest int) bool {
	switch {
	case !p.IsValid():
		v.errs.add(path, "write a range such as 10.13.0.0/16", "missing")
	case !p.Addr().Is4():
		v.errs.add(path, "write an IPv4 range", "%s: IPv6 is not built yet", p)
	case p.Masked() != p:
		v.errs.add(path, "write "+p.Masked().String(), "%s is not aligned: it has bits set after the first %d", p, p.Bits())
	case p.Bits() < shortest || p.Bits() > longest:
		v.errs.add(path, fmt.Sprintf("write a range of /%d to /%d", shortest, longest), "%s has a length that is not possible here", p)
	default:
		return true
	}
	return false
}

func (v *validator) azure() {
	a := v.c.Spec.Azure
	v.name("spec.azure.subscription", a.Subscription, subscription, "a UUID in lower case")
	v.name("spec.azure.resourceGroup", a.ResourceGroup, resourceGroup, "1 to 90 letters, digits, -, _, (, ) and ., no . at the end")
	v.name("spec.azure.location", a.Location, location, "a region's short name, such as westeurope")
	if len(a.VNets) == 0 {
		v.errs.add("spec.azure.vnets", "leave the field out for the default", "a cluster needs a VNet")
	}
	names := map[string]string{}
	for i, n := range a.VNets {
		at := fmt.Sprintf("spec.azure.vnets[%d]", i)
		v.azureName(at+".name", n.Name, names)
		v.vnet(at, n)
	}
	v.peerings()
	v.routeTables()
	v.securityGroups()
}

// peerings checks that they name other VNets. One that only one side has is possible in Azure too, and carries nothing.
func (v *validator) peerings() {
	var names []string
	for _, n := range v.c.Spec.Azure.VNets {
		names = append(names, n.Name)
	}
	for i, n := range v.c.Spec.Azure.VNets {
		for j, remote := range n.Peerings {
			at := fmt.Sprintf("spec.azure.vnets[%d].peerings[%d]", i, j)
			switch first := slices.Index(n.Peerings, remote); {
			case remote == n.Name:
				v.errs.add(at, "write another VNet's name", "a VNet has no peering with itself")
			case !slices.Contains(names, remote):
				v.errs.add(at, suggest(remote, names, "write one of "), "no VNet %q in spec.azure.vnets", remote)
			case first < j:
				v.errs.add(at, "remove it", "the same as peerings[%d]", first)
			}
		}
	}
}

// routeTables checks the tables and that the subnets name some of them. A next hop that no VM has is no error, as in Azure: what the route
// leads to is dropped.
func (v *validator) routeTables() {
	names := map[string]string{}
	var known []string
	for i, t := range v.c.Spec.Azure.RouteTables {
		at := fmt.Sprintf("spec.azure.routeTables[%d]", i)
		v.azureName(at+".name", t.Name, names)
		known = append(known, t.Name)
		routes := map[string]string{}
		for j, r := range t.Routes {
			route := fmt.Sprintf("%s.routes[%d]", at, j)
			v.azureName(route+".name", r.Name, routes)
			v.route(route, r)
			if k := slices.IndexFunc(t.Routes, func(o Route) bool { return o.Prefix == r.Prefix }); k < j && r.Prefix.IsValid() {
				v.errs.add(route+".prefix", "write another prefix, or remove one of them", "%s is the prefix of routes[%d] too", r.Prefix, k)
			}
		}
	}
	for i, n := range v.c.Spec.Azure.VNets {
		for j, s := range n.Subnets {
			if at := fmt.Sprintf("spec.azure.vnets[%d].subnets[%d].routeTable", i, j); s.RouteTable != "" && !slices.Contains(known, s.RouteTable) {
				v.errs.add(at, suggest(s.RouteTable, known, "add it to spec.azure.routeTables; there are: "), "no route table %q", s.RouteTable)
			}
		}
	}
}

func (v *validator) route(at string, r Route) {
	v.prefix(at+".prefix", r.Prefix, 0, 32)
	choice(v, at+".nextHopType", r.NextHopType, []NextHopType{NextHopAppliance, NextHopVNetLocal, NextHopInternet, NextHopNone}, nil)
	switch appliance := r.NextHopType == NextHopAppliance; {
	case appliance && !r.NextHopAddress.Is4():
		v.errs.add(at+".nextHopAddress", "write the address of a VM with ipForwarding: true", "missing")
	case !appliance && r.NextHopAddress.IsValid():
		v.errs.add(at+".nextHopAddress", "leave it out, or write nextHopType: "+string(NextHopAppliance), "only a %s has an address", NextHopAppliance)
	}
}

// azureName checks a resource's name, and that no other of its kind has it: Azure's names know no case.
func (v *validator) azureName(path, name string, taken map[string]string) {
	v.name(path, name, azureName, "1 to 64 letters, digits, -, _ and ., a letter or digit first")
	v.unique(path, strings.ToLower(name), taken)
}

func (v *validator) unique(path, name string, taken map[string]string) {
	if first, ok := taken[name]; ok && name != "" {
		v.errs.add(path, "write another name", "%q is already the name of %s", name, strings.TrimSuffix(first, ".name"))
		return
	}
	taken[name] = path
}

func (v *validator) vnet(at string, n VNet) {
	if len(n.AddressPrefixes) == 0 {
		v.errs.add(at+".addressPrefixes", "write at least one range, such as 10.13.0.0/16", "missing")
	}
	if len(n.Subnets) == 0 {
		v.errs.add(at+".subnets", "write at least one subnet", "missing")
	}
	names := map[string]string{}
	for i, s := range n.Subnets {
		sub := fmt.Sprintf("%s.subnets[%d]", at, i)
		v.azureName(sub+".name", s.Name, names)
		if v.prefix(sub+".prefix", s.Prefix, 8, 29) {
			v.subnet(sub+".prefix", s.Prefix, n, i, at)
		}
	}
}

// subnet checks that a subnet lies in its VNet and off the subnets before it.
func (v *validator) subnet(path string, p netip.Prefix, n VNet, index int, at string) {
	in := func(q netip.Prefix) bool { return q.IsValid() && q.Bits() <= p.Bits() && q.Contains(p.Addr()) }
	if !slices.ContainsFunc(n.AddressPrefixes, in) && len(n.AddressPrefixes) > 0 {
		var all []string
		for _, q := range n.AddressPrefixes {
			all = append(all, q.String())
		}
		v.errs.add(path, "write a range within one of them, or add one that holds it", "%s lies outside its VNet's addressPrefixes, %s", p, strings.Join(all, ", "))
	}
	for j, other := range n.Subnets[:index] {
		if usable(other.Prefix) && p.Overlaps(other.Prefix) {
			v.errs.add(path, "write a range that is free", "%s overlaps %s.subnets[%d], %s", p, at, j, other.Prefix)
		}
	}
}

func usable(p netip.Prefix) bool { return p.IsValid() && p.Addr().Is4() && p.Masked() == p }

func (v *validator) pools() {
	c := v.c
	if len(c.Spec.NodePools) == 0 || len(c.Spec.NodePools) > maxPools {
		v.errs.add("spec.nodePools", fmt.Sprintf("write 1 to %d pools, or leave the field out", maxPools), "%d node pools", len(c.Spec.NodePools))
	}
	names := map[string]string{}
	for i, p := range c.Spec.NodePools {
		at := fmt.Sprintf("spec.nodePools[%d]", i)
		v.name(at+".name", p.Name, poolName, "1 to 12 lower-case letters and digits, a letter first")
		v.unique(at+".name", p.Name, names)
		v.number(at+".count", p.Count, 1, MaxPoolNodes)
		v.number(at+".maxPods", p.MaxPods, minMaxPods, maxMaxPods)
		v.name(at+".vmSize", p.VMSize, vmSize, "a size's name, such as Standard_B2ms")
		v.subnetRef(at+".vnetSubnet", p.VNetSubnet)
		if first := c.Spec.NodePools[0].VNetSubnet; p.VNetSubnet != first {
			v.errs.add(at+".vnetSubnet", "write "+first+" today", "node pools in different subnets are not built yet")
		}
	}
	if c.countable() {
		v.capacity()
		v.podCapacity()
	}
}

// podCapacity checks that each node gets its part of kubenet's range of pods.
func (v *validator) podCapacity() {
	n := v.c.Spec.Network
	if n.Plugin != PluginKubenet || !usable(n.PodCIDR) || n.PodCIDR.Bits() > NodePodBits {
		return
	}
	nodes := 0
	for _, p := range v.c.Spec.NodePools {
		nodes += p.Count
	}
	if most := 1 << (NodePodBits - n.PodCIDR.Bits()); nodes > most {
		v.errs.add("spec.network.podCIDR", fmt.Sprintf("write a range of /%d or shorter, or fewer nodes", NodePodBits-(32-lengthFor(nodes))),
			"%s has a /%d for each of %d nodes and there are %d", n.PodCIDR, NodePodBits, most, nodes)
	}
}

func (v *validator) number(path string, n, least, most int) {
	if n < least || n > most {
		v.errs.add(path, fmt.Sprintf("write a number from %d to %d", least, most), "%d is not possible", n)
	}
}

func (v *validator) subnetRef(path, ref string) {
	if _, _, ok := v.c.findSubnet(ref); ok {
		return
	}
	var known []string
	for _, n := range v.c.Spec.Azure.VNets {
		for _, s := range n.Subnets {
			if ref := n.Name + "/" + s.Name; !slices.Contains(known, ref) {
				known = append(known, ref)
			}
		}
	}
	if len(known) > 0 {
		v.errs.add(path, suggest(ref, known, "write one of "), "no subnet %q in spec.azure.vnets", ref)
	}
}

// capacity checks that each subnet holds its nodes, their pods and the addresses that Azure keeps.
func (v *validator) capacity() {
	c, used := v.c, map[string]int{}
	for i, p := range c.Spec.NodePools {
		used[p.VNetSubnet] += p.Count * c.addressesPerNode(p)
		_, s, ok := c.findSubnet(p.VNetSubnet)
		need := used[p.VNetSubnet] + reserved
		if !ok || !usable(s.Prefix) || need <= size(s.Prefix) {
			continue
		}
		v.errs.add(fmt.Sprintf("spec.nodePools[%d].count", i),
			fmt.Sprintf("give the subnet a prefix of /%d or shorter, or write fewer nodes or a smaller maxPods", lengthFor(need)),
			"subnet %s, %s, has %d addresses and %d are needed: %d of nodes and pods (nodes × (1 + maxPods)) and %d that Azure keeps",
			p.VNetSubnet, s.Prefix, size(s.Prefix), need, need-reserved, reserved)
		return
	}
	if c.countable() {
		v.rowsFit()
	}
}

// rowsFit checks that each node finds its addresses in a row beside the machines that are there already.
func (v *validator) rowsFit() {
	for _, r := range v.c.layout() {
		if p := v.c.Spec.NodePools[r.pool]; !r.fits && usable(r.subnet.Prefix) {
			v.errs.add(fmt.Sprintf("spec.nodePools[%d].count", r.pool), "write fewer nodes, or take away machines of that subnet first",
				"subnet %s, %s, has no %d free addresses in a row for node %d of pool %s beside what is there", p.VNetSubnet, r.subnet.Prefix, v.c.addressesPerNode(p), r.index, p.Name)
			return
		}
	}
}

// namedRange is a range and where it stands.
type namedRange struct {
	path   string
	prefix netip.Prefix
}

// ranges checks that VNets, services and pods lie apart from each other and from the special ranges.
func (v *validator) ranges() {
	var all []namedRange
	for i, n := range v.c.Spec.Azure.VNets {
		for j, p := range n.AddressPrefixes {
			at := fmt.Sprintf("spec.azure.vnets[%d].addressPrefixes[%d]", i, j)
			if v.prefix(at, p, 8, 29) {
				all = append(all, namedRange{at, p})
			}
		}
	}
	n := v.c.Spec.Network
	if usable(n.ServiceCIDR) {
		all = append(all, namedRange{"spec.network.serviceCIDR", n.ServiceCIDR})
	}
	if n.Plugin == PluginKubenet && v.prefix("spec.network.podCIDR", n.PodCIDR, 8, NodePodBits) {
		all = append(all, namedRange{"spec.network.podCIDR", n.PodCIDR})
	}
	for i, r := range all {
		for _, s := range special {
			if r.prefix.Overlaps(s.prefix) {
				v.errs.add(r.path, "write a private range (RFC 1918)", "%s overlaps %s, %s", r.prefix, s.prefix, s.what)
			}
		}
		for _, other := range all[:i] {
			if r.prefix.Overlaps(other.prefix) {
				v.errs.add(r.path, "write a range that is free", "%s overlaps %s, %s", r.prefix, other.path, other.prefix)
			}
		}
	}
}

// machines checks the VMs and the internet's hosts.
func (v *validator) machines() {
	names := map[string]string{}
	for _, n := range hostNames {
		names[n] = "a part of the lab"
	}
	if v.c.countable() {
		for _, n := range v.c.Nodes() {
			names[n.Name] = "a node"
		}
	}
	v.vms(names)
	addrs := map[netip.Addr]string{}
	for i, h := range v.c.Spec.Internet.Hosts {
		at := fmt.Sprintf("spec.internet.hosts[%d]", i)
		v.hostName(at+".name", h.Name)
		v.unique(at+".name", h.Name, names)
		v.app(at+".app", h.App)
		v.internetAddress(at, h.Address, addrs)
	}
}

func (v *validator) vms(names map[string]string) {
	addrs := map[netip.Addr]string{}
	public := 0
	for i, vm := range v.c.Spec.Azure.VMs {
		at := fmt.Sprintf("spec.azure.vms[%d]", i)
		v.name(at+".name", vm.Name, dnsLabel, "1 to 63 lower-case letters, digits and -, a letter or digit at both ends")
		v.unique(at+".name", vm.Name, names)
		v.app(at+".app", vm.App)
		v.subnetRef(at+".subnet", vm.Subnet)
		if _, s, ok := v.c.findSubnet(vm.Subnet); ok && usable(s.Prefix) {
			v.vmAddress(at+".address", vm, s.Prefix)
			v.uniqueAddress(at+".address", vm.Address, addrs)
		}
		if vm.PublicIP {
			public++
		}
		if most := int(lastVMPublicIP.As4()[3]-firstVMPublicIP.As4()[3]) + 1; vm.PublicIP && public > most {
			v.errs.add(at+".publicIP", "leave it out", "there are %d public addresses for VMs, %s to %s", most, firstVMPublicIP, lastVMPublicIP)
		}
	}
}

func (v *validator) vmAddress(path string, vm VM, subnet netip.Prefix) {
	first, end := nth(subnet, reservedFirst), last(subnet)
	remedy := fmt.Sprintf("write one from %s to %s, or leave it out", first, end.Prev())
	switch a := vm.Address; {
	case !a.IsValid():
		v.errs.add(path, "give the subnet a shorter prefix", "subnet %s, %s, has no free address", vm.Subnet, subnet)
	case !subnet.Contains(a):
		v.errs.add(path, remedy, "%s is not in subnet %s, %s", a, vm.Subnet, subnet)
	case a.Compare(first) < 0 || a == end:
		v.errs.add(path, remedy, "%s is one of the addresses that Azure keeps in %s", a, subnet)
	default:
		if !v.c.countable() {
			return
		}
		for _, r := range v.c.nodeRows() {
			if inRows([]addrRange{r}, a) {
				v.errs.add(path, "leave it out, or write one that is free", "%s is among the addresses of %s, %s to %s", a, r.what, r.first, r.last)
			}
		}
	}
}

func (v *validator) uniqueAddress(path string, a netip.Addr, taken map[netip.Addr]string) {
	if first, ok := taken[a]; ok && a.IsValid() {
		v.errs.add(path, "write another address", "%s is already %s", a, first)
		return
	}
	taken[a] = path
}

func (v *validator) hostName(path, name string) {
	ok := len(name) <= maxHostName
	for label := range strings.SplitSeq(name, ".") {
		ok = ok && dnsLabel.MatchString(label)
	}
	if !ok {
		v.errs.add(path, fmt.Sprintf("write a DNS name in lower case of at most %d characters, such as client or ifconfig.co", maxHostName), "%q is not possible", name)
	}
}

func (v *validator) internetAddress(at string, a netip.Addr, taken map[netip.Addr]string) {
	path := at + ".address"
	if a.Compare(firstInternetHost) < 0 || a.Compare(lastInternetHost) > 0 {
		what := a.String() + " is not an address for internet hosts"
		if !a.IsValid() {
			what = "missing"
		}
		v.errs.add(path, fmt.Sprintf("write one from %s to %s", firstInternetHost, lastInternetHost), "%s", what)
		return
	}
	v.uniqueAddress(path, a, taken)
}

func (v *validator) app(path, app string) {
	if app == "" || len(v.apps) == 0 || slices.Contains(v.apps, app) {
		return
	}
	v.errs.add(path, suggest(app, v.apps, "leave it out, or write one of "), "no built-in application %q; there are %s", app, strings.Join(v.apps, ", "))
}

// The addons of the articles, as "az aks enable-addons -a" takes them.
var addons = []string{AddonHTTPRouting}

// unbuilt refuses what cluster.yaml can say and this version does not make.
func (v *validator) unbuilt() {
	for i, a := range v.c.Spec.Addons {
		path := fmt.Sprintf("spec.addons[%d]", i)
		if a == "virtual-node" {
			v.errs.add(path, "leave it out and write spec.virtualNode.enabled: true", "the virtual node has a field of its own")
			continue
		}
		choice(v, path, a, addons, nil)
	}
}

// containerHosts is the range that Azure's own network of the machines under container groups has (instances.HostsPrefix).
var containerHosts = netip.MustParsePrefix("100.64.0.0/16")

// virtualNode checks that container groups have a subnet of their own, as Azure delegates one to them.
func (v *validator) virtualNode() {
	s := v.c.Spec
	const path = "spec.virtualNode.subnet"
	if s.VirtualNode.Subnet != "" {
		v.subnetRef(path, s.VirtualNode.Subnet)
	}
	if !s.VirtualNode.Enabled {
		return
	}
	if s.Network.Plugin != PluginAzure {
		v.errs.add("spec.virtualNode.enabled", "write spec.network.plugin: azure, or leave spec.virtualNode out", "a virtual node needs network plugin azure, as in AKS")
	}
	if s.VirtualNode.Subnet == "" {
		v.errs.add(path, "write \"vnet/subnet\" of a subnet in spec.azure.vnets that nothing else uses", "container groups need a subnet")
		return
	}
	for i, p := range s.NodePools {
		if p.VNetSubnet == s.VirtualNode.Subnet {
			v.errs.add(path, "write another subnet", "%s is the subnet of spec.nodePools[%d]: a subnet of container groups holds nothing else", p.VNetSubnet, i)
		}
	}
	for i, vm := range s.Azure.VMs {
		if vm.Subnet == s.VirtualNode.Subnet {
			v.errs.add(path, "write another subnet", "%s is the subnet of spec.azure.vms[%d]: a subnet of container groups holds nothing else", vm.Subnet, i)
		}
	}
	if _, sub, ok := v.c.findSubnet(s.VirtualNode.Subnet); ok && sub.RouteTable != "" {
		v.errs.add(path, "take routeTable from the subnet, or write another subnet", "%s has route table %s, and Azure delegates no subnet to container groups that has one",
			s.VirtualNode.Subnet, sub.RouteTable)
	}
	for i, n := range s.Azure.VNets {
		for j, p := range n.AddressPrefixes {
			if p.Overlaps(containerHosts) {
				v.errs.add(fmt.Sprintf("spec.azure.vnets[%d].addressPrefixes[%d]", i, j), "write a private range (RFC 1918)",
					"%s overlaps %s, which Azure's own network under container groups has", p, containerHosts)
			}
		}
	}
}
