package cluster

import (
	"net/netip"
	"slices"
	"strings"
)

// InternetRange and PublicPool are the two documentation ranges (RFC 5737) that stand for public addresses: internet hosts in the first,
// Azure's own in the second. The third of the RFC, 192.0.2.0/24, is never used.
var (
	InternetRange = netip.MustParsePrefix("198.51.100.0/24")
	PublicPool    = netip.MustParsePrefix("203.0.113.0/24")
)

// ContainerHosts is the range of the network of the machines that run container groups. It is Azure's own, and no customer has it. It lies
// in RFC 6598's range, for which a virtual network's default routes have no next hop.
var ContainerHosts = netip.MustParsePrefix("100.64.0.0/16")

// How PublicPool is shared out. The addresses before and after these are vnet's: .1 the API server, .2 default outbound, .254 the fabric.
var (
	firstVMPublicIP = netip.MustParseAddr("203.0.113.3") // of VMs with publicIP, in their order
	lastVMPublicIP  = netip.MustParseAddr("203.0.113.9")
	firstFrontend   = netip.MustParseAddr("203.0.113.10") // of services of type LoadBalancer
	lastFrontend    = netip.MustParseAddr("203.0.113.253")
)

// Internet hosts have the addresses from the first to the last of these; those before are the internet's own router and services.
var (
	firstInternetHost = netip.MustParseAddr("198.51.100.10")
	lastInternetHost  = netip.MustParseAddr("198.51.100.254")
)

// SupportedKubernetes is the minor version of the control plane that this version runs.
const SupportedKubernetes = "1.35"

// defaultSubscription is the one of the Part 1 article's listings, so that generated names come out as there.
const defaultSubscription = "e7da9914-9b05-4891-893c-546cb7b0422e"

// setDefaults fills in what was left out. It is idempotent, and never looks at whether what is there makes sense.
func (c *Cluster) setDefaults() {
	set(&c.APIVersion, APIVersion)
	set(&c.Kind, Kind)
	set(&c.Metadata.Name, "aksPacketWalkAzure")
	s := &c.Spec
	set(&s.KubernetesVersion, SupportedKubernetes)
	set(&s.ServiceProxy.Implementation, ProxyPacketwalk)
	set(&s.ServiceProxy.Backend, BackendIPTables)
	set(&s.ServiceProxy.Rules, RulesCurrent)
	set(&s.Network.Plugin, PluginAzure)
	if s.Network.Plugin == PluginAzure {
		set(&s.Network.Mode, s.defaultMode())
	}
	s.setAzureDefaults()
	s.setNodePoolDefaults()
	set(&s.Images.Pull, PullIfNeeded)
	if s.Images.BuiltIn == nil {
		s.Images.BuiltIn = new(true)
	}
	s.setNetworkDefaults()
	s.setOutboundDefaults()
	set(&s.LoadBalancer.SKU, s.defaultSKU())
	if s.LoadBalancer.SKU == SKUStandard {
		set(&s.LoadBalancer.ClusterServiceLoadBalancerHealthProbeMode, ProbeServiceNodePort)
	}
	if s.LoadBalancer.SKU == SKUStandard && s.OutboundType == OutboundLoadBalancer {
		set(&s.LoadBalancer.Outbound.ManagedIPs, 1)
		set(&s.LoadBalancer.Outbound.IdleTimeoutMinutes, 30)
	}
	if s.Internet.Hosts == nil {
		s.Internet.Hosts = []InternetHost{
			{Name: "client", Address: netip.MustParseAddr("198.51.100.10")},
			{Name: "ifconfig.co", Address: netip.MustParseAddr("198.51.100.80"), App: "ifconfig.co"},
		}
	}
	c.setVMAddresses()
}

// isOfArticles reports whether the cluster is as AKS made clusters at the articles' time: by the rules, or by the bridge, which AKS has given
// up since.
func (s *Spec) isOfArticles() bool {
	return s.ServiceProxy.Rules != RulesCurrent || s.Network.Mode == ModeBridge
}

// defaultMode returns the mode of AKS at the time of the rules. Overlay has no virtual nodes, and "az aks create --network-policy calico"
// makes a cluster without it.
func (s *Spec) defaultMode() Mode {
	switch {
	case s.Network.Policy == PolicyCalico:
		return ModeTransparent
	case s.isOfArticles():
		return ModeBridge
	case s.VirtualNode.Enabled:
		return ModeTransparent
	}
	return ModeOverlay
}

func (s *Spec) defaultSKU() SKU {
	if s.isOfArticles() {
		return SKUBasic
	}
	return SKUStandard
}

func (s *Spec) setAzureDefaults() {
	a := &s.Azure
	set(&a.Subscription, defaultSubscription)
	set(&a.ResourceGroup, "akstest")
	set(&a.Location, "westeurope")
	for i := range a.NetworkSecurityGroups {
		for j := range a.NetworkSecurityGroups[i].Rules {
			set(&a.NetworkSecurityGroups[i].Rules[j].Protocol, ProtocolAny)
		}
	}
	if a.VNets != nil {
		return
	}
	vnets, vms, forGroups := vnetsOfToday, vmsOfToday, "10.239.0.0/16"
	if s.isOfArticles() {
		vnets, vms, forGroups = vnetsOfArticles, vmsOfArticles, "10.13.100.0/24"
	}
	a.VNets = vnets()
	if a.VMs == nil {
		a.VMs = vms()
	}
	if s.VirtualNode.Enabled && s.VirtualNode.Subnet == "" {
		v := &a.VNets[0]
		v.Subnets = append(v.Subnets, Subnet{Name: "virtual-node-aci", Prefix: netip.MustParsePrefix(forGroups)})
		s.VirtualNode.Subnet = v.Name + "/virtual-node-aci"
	}
}

// vnetsOfToday returns the VNet that AKS makes, with a subnet for VMs, and a peered one.
func vnetsOfToday() []VNet {
	return []VNet{
		{
			Name:            "aks-vnet",
			AddressPrefixes: []netip.Prefix{netip.MustParsePrefix("10.224.0.0/12")},
			Subnets: []Subnet{
				{Name: "aks-subnet", Prefix: netip.MustParsePrefix("10.224.0.0/16")},
				{Name: "vms", Prefix: netip.MustParsePrefix("10.225.0.0/24")},
			},
			Peerings: []string{"hub"},
		},
		{
			Name:            "hub",
			AddressPrefixes: []netip.Prefix{netip.MustParsePrefix("172.20.0.0/16")},
			Subnets:         []Subnet{{Name: "servers", Prefix: netip.MustParsePrefix("172.20.1.0/24")}},
			Peerings:        []string{"aks-vnet"},
		},
	}
}

func vmsOfToday() []VM {
	return []VM{{Name: "vm", Subnet: "aks-vnet/vms", App: "nginx"}, {Name: "server", Subnet: "hub/servers", App: "nginx"}}
}

// vnetsOfArticles returns the VNet of the Part 1 article.
func vnetsOfArticles() []VNet {
	return []VNet{{
		Name:            "aksVnet",
		AddressPrefixes: []netip.Prefix{netip.MustParsePrefix("10.13.0.0/16")},
		Subnets: []Subnet{
			{Name: "aks", Prefix: netip.MustParsePrefix("10.13.76.0/24")},
			{Name: "vmsubnet", Prefix: netip.MustParsePrefix("10.13.1.0/24")},
		},
	}}
}

func vmsOfArticles() []VM { return []VM{{Name: "testvm", Subnet: "aksVnet/vmsubnet", PublicIP: true}} }

func (s *Spec) setNodePoolDefaults() {
	if s.NodePools == nil {
		s.NodePools = []NodePool{{Name: "nodepool1", Count: 2}}
		if s.isOfArticles() {
			s.NodePools[0].Count = 1
		}
	}
	for i := range s.NodePools {
		p := &s.NodePools[i]
		if len(s.NodePools) == 1 {
			set(&p.Name, "nodepool1")
		}
		set(&p.Count, 1)
		set(&p.MaxPods, s.Network.defaultMaxPods())
		set(&p.VMSize, "Standard_B2ms")
		set(&p.Runtime, RuntimeContainerd)
		set(&p.Mode, ModeSystem)
		if v := s.Azure.VNets; p.VNetSubnet == "" && len(v) > 0 && len(v[0].Subnets) > 0 {
			p.VNetSubnet = v[0].Name + "/" + v[0].Subnets[0].Name
		}
	}
}

func (s *Spec) setNetworkDefaults() {
	n := &s.Network
	set(&n.Policy, PolicyNone)
	set(&n.ServiceCIDR, netip.MustParsePrefix("10.0.0.0/16"))
	if n.Plugin == PluginKubenet || n.IsOverlay() {
		set(&n.PodCIDR, netip.MustParsePrefix("10.244.0.0/16"))
	}
	if !n.DNSServiceIP.IsValid() && n.ServiceCIDR.Addr().Is4() {
		n.DNSServiceIP = nth(n.ServiceCIDR, 10)
	}
	set(&n.IPMasqAgent, s.defaultIPMasqAgent())
	if n.NonMasqueradeCIDRs == nil {
		n.NonMasqueradeCIDRs = s.defaultNonMasquerade()
	}
}

// defaultIPMasqAgent returns the agent that AKS had at the time of the rules, as the articles show it: none in 1.11, where a rule of the
// node does the work, and none beside Calico in 1.19. Kubenet had its own rule then, and plugins that users bring have theirs.
func (s *Spec) defaultIPMasqAgent() IPMasqAgent {
	rules := s.ServiceProxy.Rules
	kubenetOfToday := s.Network.Plugin == PluginKubenet && rules == RulesCurrent
	switch {
	case s.Network.Plugin != PluginAzure && !kubenetOfToday, rules == Rules111, s.Network.Policy == PolicyCalico && rules == Rules119:
		return IPMasqNone
	case rules == RulesCurrent:
		return IPMasqV2
	}
	return IPMasqV1
}

// wireServer is the address of Azure's platform services.
var wireServer = netip.MustParsePrefix("168.63.129.16/32")

// defaultNonMasquerade: with an agent the VNet of the nodes, and beside it what AKS's ConfigMap held at the time of the rules (the articles
// show two): the wire server in 1.12, the nodes' subnets and the services in 1.19 and with node subnets since (a listing of 2022,
// azure-container-networking, npm/pkg/dataplane/testdata/iptablesave-v2). Without one, kubelet's --non-masquerade-cidr and
// aks-engine's DefaultNonMasqueradeCIDR are both 10.0.0.0/8, which AKS of the articles' time left as it was; a VNet outside it would be
// translated within itself, so then it is the VNet's own prefixes.
func (s *Spec) defaultNonMasquerade() []netip.Prefix {
	own, subnets := s.nodeRanges()
	switch {
	case s.Network.Plugin == PluginKubenet && (s.Network.IPMasqAgent == IPMasqNone || s.ServiceProxy.Rules == RulesCurrent):
		return []netip.Prefix{s.Network.PodCIDR} // AKS's present list for kubenet is unknown; a VM of the VNet sees the node
	case s.Network.IPMasqAgent == IPMasqNone && (s.Network.Policy == PolicyCalico || s.Network.Plugin == PluginNone):
		return nil // Calico's pools decide, or the plugin that the user brings
	case s.Network.IsOverlay():
		return []netip.Prefix{s.Network.PodCIDR}
	case s.Network.Plugin == PluginKubenet || s.Network.Plugin == PluginNone:
		return united(own, s.Network.PodCIDR)
	case s.Network.IPMasqAgent == IPMasqNone:
		ten := netip.MustParsePrefix("10.0.0.0/8")
		if !slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Bits() < ten.Bits() || !ten.Contains(p.Addr()) }) {
			return []netip.Prefix{ten}
		}
	case s.ServiceProxy.Rules == Rules112 || s.ServiceProxy.Rules == Rules111:
		return united(own, wireServer)
	case s.ServiceProxy.Rules == Rules119, s.Network.Mode == ModeTransparent:
		return united(own, append(subnets, s.Network.ServiceCIDR)...)
	}
	return own
}

// united returns the ranges of both lists, none twice.
func united(list []netip.Prefix, more ...netip.Prefix) []netip.Prefix {
	for _, p := range more {
		if usable(p) && !slices.Contains(list, p.Masked()) {
			list = append(list, p.Masked())
		}
	}
	return list
}

// nodeRanges returns the prefixes of the VNets that pools are in, and those of the subnets.
func (s *Spec) nodeRanges() (vnets, subnets []netip.Prefix) {
	for _, v := range s.Azure.VNets {
		if !s.hasNodes(v.Name) {
			continue
		}
		vnets = united(vnets, v.AddressPrefixes...)
		for _, sub := range v.Subnets {
			if slices.ContainsFunc(s.NodePools, func(p NodePool) bool { return p.VNetSubnet == v.Name+"/"+sub.Name }) {
				subnets = united(subnets, sub.Prefix)
			}
		}
	}
	return vnets, subnets
}

// hasNodes reports whether a pool is in the VNet.
func (s *Spec) hasNodes(vnet string) bool {
	return slices.ContainsFunc(s.NodePools, func(p NodePool) bool {
		of, _, _ := strings.Cut(p.VNetSubnet, "/")
		return of == vnet
	})
}

// set gives *p the value v when it has none.
func set[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}
