package cluster

import (
	"fmt"
	"net/netip"
	"slices"
)

// Bounds of the outbound rule of a Standard load balancer: Azure's ports of an address, and as many addresses as its rules take.
const (
	maxManagedIPs = 16
	portsPerIP    = 64000
)

// maxMasqRanges is the most ranges of an ip-masq-agent's file (its cidrLimit).
const maxMasqRanges = 64

func (v *validator) network() {
	n, path := v.c.Spec.Network, "spec.network"
	v.plugin(path)
	if v.prefix(path+".serviceCIDR", n.ServiceCIDR, 12, 28) {
		v.dnsServiceIP(path+".dnsServiceIP", n.DNSServiceIP, n.ServiceCIDR.Masked())
	}
	choice(v, path+".ipMasqAgent", n.IPMasqAgent, IPMasqNone, IPMasqV1, IPMasqV2)
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
		v.errs.add(path+".nonMasqueradeCIDRs", "write one range, 0.0.0.0/0 for every destination, or ipMasqAgent: v2",
			"kubenet has one, kubelet's --non-masquerade-cidr, not %d", k)
	}
	v.serviceProxy("spec.serviceProxy")
	choice(v, "spec.loadBalancer.sku", v.c.Spec.LoadBalancer.SKU, SKUBasic, SKUStandard)
	v.frontends()
	v.probeMode()
	v.outboundType()
	v.outbound()
}

// probeMode checks what is probed for Services with externalTrafficPolicy Cluster.
func (v *validator) probeMode() {
	lb, path := v.c.Spec.LoadBalancer, "spec.loadBalancer.clusterServiceLoadBalancerHealthProbeMode"
	switch mode := lb.ClusterServiceLoadBalancerHealthProbeMode; {
	case lb.SKU == SKUStandard || mode != "" && mode != ProbeServiceNodePort && mode != ProbeShared:
		choice(v, path, mode, ProbeServiceNodePort, ProbeShared)
	case lb.SKU == SKUBasic && mode == ProbeShared:
		v.errs.add(path, "leave it out, or write sku: standard", "a Basic load balancer has no shared probe")
	}
}

// plugin checks the network plugin, and what only some plugins have.
func (v *validator) plugin(path string) {
	n := v.c.Spec.Network
	choice(v, path+".plugin", n.Plugin, PluginAzure, PluginKubenet, PluginNone)
	choice(v, path+".policy", n.Policy, PolicyNone, PolicyCalico)
	if n.Routes && n.Plugin != PluginNone {
		v.errs.add(path+".routes", "leave it out", "it is for plugin none; kubenet always has routes, and azure needs none")
	}
	switch n.Plugin {
	case PluginAzure:
		choice(v, path+".mode", n.Mode, ModeBridge, ModeTransparent, ModeOverlay)
		if n.Policy == PolicyCalico && n.Mode == ModeBridge {
			v.errs.add(path+".mode", "write transparent", "calico finds a pod's packets by its host interface, and a bridge hides that")
		}
		if n.PodCIDR.IsValid() && !n.IsOverlay() {
			v.errs.add(path+".podCIDR", "leave it out, or write mode: overlay",
				"with plugin azure pods get addresses of their node pool's subnet")
		}
		return
	case PluginKubenet:
	case PluginNone:
		if n.Policy == PolicyCalico {
			v.errs.add(path+".policy", "write none, and install Calico yourself", "with plugin none no policy engine is installed")
		}
		if n.Routes && !n.PodCIDR.IsValid() {
			v.errs.add(path+".routes", "write podCIDR: 10.244.0.0/16", "there is no podCIDR, whose parts the routes would lead to")
		}
	default:
		return
	}
	if n.Mode != "" {
		v.errs.add(path+".mode", "leave it out", "only plugin azure has modes")
	}
}

// serviceProxy checks which implementation has which backend and rules.
func (v *validator) serviceProxy(path string) {
	s := v.c.Spec.ServiceProxy
	choice(v, path+".implementation", s.Implementation, ProxyPacketwalk, ProxyKubeProxy, ProxyNone)
	choice(v, path+".backend", s.Backend, BackendIPTables, BackendNFTables)
	choice(v, path+".rules", s.Rules, RulesCurrent, Rules111, Rules112, Rules119)
	if s.Backend == BackendNFTables && s.Rules != RulesCurrent {
		v.errs.add(path+".rules", "leave it out, or write backend: iptables", "rules of older versions are made of iptables")
	}
	if s.Implementation != ProxyPacketwalk && s.Rules != RulesCurrent {
		v.errs.add(path+".rules", "leave it out, or write implementation: packetwalk", "only packetwalk's own proxy has rules of older versions")
	}
	if s.Implementation != ProxyPacketwalk && s.Repair != nil {
		v.errs.add(path+".repair", "leave it out, or write implementation: packetwalk", "only packetwalk's own proxy puts back deleted rules at once")
	}
}

// outbound checks the outbound rule of a Standard load balancer.
func (v *validator) outbound() {
	lb, path := v.c.Spec.LoadBalancer, "spec.loadBalancer.outbound"
	o := lb.Outbound
	if t := v.c.Spec.OutboundType; t != OutboundLoadBalancer {
		if o != (Outbound{}) {
			v.errs.add(path, "leave it out, or write outboundType: loadBalancer", "with outboundType %s there is no outbound rule", t)
		}
		return
	}
	if lb.SKU == SKUBasic {
		if o != (Outbound{}) {
			v.errs.add(path, "leave it out, or write sku: standard", "only a Standard load balancer has outbound rules")
		}
		return
	}
	standard := lb.SKU == SKUStandard // one that is unknown has no defaults
	if standard || o.ManagedIPs != 0 {
		v.checkRange(path+".managedIPs", o.ManagedIPs, 1, min(maxManagedIPs, len(v.c.Frontends())))
	}
	if standard || o.IdleTimeoutMinutes != 0 {
		v.checkRange(path+".idleTimeoutMinutes", o.IdleTimeoutMinutes, 4, 120)
	}
	if o.Ports == 0 {
		return
	}
	nodes := 0
	for _, p := range v.c.countablePools() {
		nodes += p.Count
	}
	most := min(portsPerIP, portsPerIP*max(o.ManagedIPs, 1)/max(nodes, 1)/8*8)
	if o.Ports < 0 || o.Ports%8 != 0 || o.Ports > most {
		v.errs.add(path+".ports", fmt.Sprintf("write a multiple of 8 up to %d, or more managedIPs", most),
			"%d is not possible with %d nodes and %d addresses of %d ports",
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
