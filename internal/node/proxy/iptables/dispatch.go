package iptables

import (
	"fmt"
	"net/netip"

	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// dispatchEXT writes external traffic's way as kube-proxy does since 1.24: all of it goes to the port's EXT chain (through FW if source
// ranges restrict the load balancer's addresses), and EXT sends it on to the chain of the external policy.
func dispatchEXT(b *builder, r *portRules) {
	b.captureExternal(r)
	if r.reachable && r.External() {
		b.externalChain(r)
	}
	if r.firewalled() {
		b.firewallChain(r)
	}
	var used [2][]service.Endpoint
	if !r.internalLocal || r.External() {
		b.balance(r, r.cluster, r.forCluster, b.serviceNote(r, r.forCluster))
		used[0] = r.forCluster
	}
	if r.internalLocal || r.ExternalPolicy == service.Local && r.External() {
		b.balance(r, r.local, r.forLocal, b.serviceNote(r, r.forLocal))
		used[1] = r.forLocal
	}
	b.endpoints(r, used[:]...)
}

// firewalled reports whether source ranges restrict the load balancer's addresses.
func (r *portRules) firewalled() bool {
	return r.reachable && len(r.LoadBalancerIPs) > 0 && len(r.SourceRanges) > 0
}

// captureExternal catches traffic to external IPs, load balancer IPs and the node port, and refuses or drops what finds no endpoint.
func (b *builder) captureExternal(r *portRules) {
	capture := func(ip netip.Addr, note, chain string) {
		if r.reachable {
			b.nat.add(chainServices, r.to(ip, note, iptables.Jump(chain)))
		}
		if !r.outerOK {
			target, note := b.nothingThere(r)
			b.filter.add(chainExternal, r.to(ip, note, target))
		}
	}
	for _, ip := range r.ExternalIPs {
		capture(ip, "external IP", r.external)
	}
	lbChain := r.external
	if r.firewalled() {
		lbChain = r.firewall
	}
	for _, ip := range r.LoadBalancerIPs {
		capture(ip, "loadbalancer IP", lbChain)
		if r.firewalled() {
			b.filter.add(chainProxyFW, r.to(ip, "traffic not accepted by "+r.firewall, iptables.Jump("DROP")))
		}
	}
	b.captureNodePort(r)
	if r.HealthCheckNodePort != 0 {
		b.filter.add(chainNodePorts, iptables.Rule{
			Protocol: iptables.NameMatch{Name: "tcp"},
			Matches:  append(comment(r.name+" health check node port"), dport("tcp", r.HealthCheckNodePort)),
			Target:   iptables.Jump("ACCEPT"),
		})
	}
}

func (b *builder) captureNodePort(r *portRules) {
	if r.NodePort == 0 {
		return
	}
	if r.reachable {
		if b.LocalhostNodePorts && b.NFAcct {
			counted := r.toNodePort("", iptables.Jump(r.external))
			counted.Destination = iptables.AddressMatch{Prefix: loopback(b.Family)}
			counted.Matches = append(counted.Matches, nfacct(CounterLocalhost))
			b.nat.add(chainNodePorts, counted)
		}
		b.nat.add(chainNodePorts, r.toNodePort("", iptables.Jump(r.external)))
	}
	if !r.outerOK {
		target, note := b.nothingThere(r)
		b.filter.add(chainExternal, r.toNodePort(note, target, addrtype("dst-type")))
	}
}

// externalChain writes the port's EXT chain. With policy Local, pods and the node itself still go to all endpoints, as if their traffic had
// left the cluster and come back.
func (b *builder) externalChain(r *portRules) {
	add := func(note string, target string, local bool) {
		rule := iptables.Rule{Matches: comment(fmt.Sprintf(note, r.name)), Target: iptables.Jump(target)}
		if local {
			rule.Matches = append(rule.Matches, addrtype("src-type"))
		}
		b.nat.add(r.external, rule)
	}
	policy := r.cluster
	if r.ExternalPolicy == service.Cluster {
		add("masquerade traffic for %s external destinations", chainMarkMasq, false)
	} else {
		policy = r.local
		if !b.Detector.IsZero() {
			b.nat.add(r.external, matchDetector(b.Detector, iptables.Rule{
				Matches: comment("pod traffic for " + r.name + " external destinations"), Target: iptables.Jump(r.cluster),
			}, false))
		}
		add("masquerade LOCAL traffic for %s external destinations", chainMarkMasq, true)
		add("route LOCAL traffic for %s external destinations", r.cluster, true)
	}
	if r.outerOK {
		b.nat.add(r.external, iptables.Rule{Target: iptables.Jump(policy)})
	}
}

// firewallChain lets the source ranges through to EXT; what reaches its end is not translated and so dropped by KUBE-PROXY-FIREWALL.
func (b *builder) firewallChain(r *portRules) {
	note := r.name + " loadbalancer IP"
	for _, source := range b.allowedSources(r) {
		b.nat.add(r.firewall, iptables.Rule{
			Source: iptables.AddressMatch{Prefix: source}, Matches: comment(note), Target: iptables.Jump(r.external),
		})
	}
	b.nat.add(r.firewall, iptables.Rule{Matches: comment("other traffic to " + r.name + " will be dropped by " + chainProxyFW)})
}

// allowedSources returns the source ranges and, where they hold the node, the load balancer's own addresses: a node's request to an address
// that it holds itself comes back with that address as its source.
func (b *builder) allowedSources(r *portRules) []netip.Prefix {
	sources := append([]netip.Prefix(nil), r.SourceRanges...)
	for _, source := range r.SourceRanges {
		if source.Contains(b.NodeIP) {
			for _, ip := range r.LoadBalancerIPs {
				sources = append(sources, netip.PrefixFrom(ip, ip.BitLen()))
			}
			break
		}
	}
	return sources
}

// dispatchXLB writes external traffic's way as kube-proxy did until 1.23: an FW chain for the load balancer's addresses, and for policy
// Local an XLB chain that balances over the endpoints of this node.
func dispatchXLB(b *builder, r *portRules) {
	if !r.reachable {
		b.refuseExternal(r)
		return
	}
	policy := r.cluster
	if r.ExternalPolicy == service.Local {
		policy = prefixXLB + hash(r.name, r.proto)
	}
	externalIPs := r.cluster
	if b.version.externalIPPolicy {
		externalIPs = policy
	}
	for _, ip := range r.ExternalIPs {
		b.externalIP(r, ip, externalIPs)
	}
	for _, ip := range r.LoadBalancerIPs {
		b.nat.add(chainServices, r.to(ip, "loadbalancer IP", iptables.Jump(r.firewall)))
	}
	if len(r.LoadBalancerIPs) > 0 {
		b.oldFirewallChain(r, policy)
	}
	if r.NodePort != 0 {
		masquerade := r.toNodePort("", iptables.Jump(chainMarkMasq))
		if r.ExternalPolicy == service.Local {
			// A packet from 127.0.0.1 cannot leave the host with that source.
			masquerade.Source = iptables.AddressMatch{Prefix: loopback(b.Family)}
		}
		b.nat.add(chainNodePorts, masquerade)
		b.nat.add(chainNodePorts, r.toNodePort("", iptables.Jump(policy)))
	}
	b.balance(r, r.cluster, r.forCluster, b.serviceNote(r, r.forCluster))
	used := [2][]service.Endpoint{r.forCluster}
	if r.ExternalPolicy == service.Local {
		b.xlbChain(r, policy)
		used[1] = r.forLocal
	}
	b.endpoints(r, used[:]...)
}

func (b *builder) refuseExternal(r *portRules) {
	target, note := b.nothingThere(r)
	for _, ip := range r.ExternalIPs {
		b.filter.add(chainExternal, r.to(ip, note, target))
	}
	if b.version.refusesBalancer {
		for _, ip := range r.LoadBalancerIPs {
			b.filter.add(chainServices, r.to(ip, note, target))
		}
	}
	if r.NodePort != 0 {
		b.filter.add(chainExternal, r.toNodePort(note, target, addrtype("dst-type")))
	}
}

// externalIP lets traffic from off the machine to the policy's chain, and what is bound for an address of the node itself.
func (b *builder) externalIP(r *portRules, ip netip.Addr, policy string) {
	if policy == r.cluster {
		b.nat.add(chainServices, r.to(ip, "external IP", iptables.Jump(chainMarkMasq)))
	}
	outside := r.to(ip, "external IP", iptables.Jump(policy))
	outside.Matches = append(outside.Matches,
		iptables.Match{Module: "physdev", Options: []iptables.Option{iptables.NotOpt("physdev-is-in")}},
		iptables.Match{Module: "addrtype", Options: []iptables.Option{iptables.NotOpt("src-type", "LOCAL")}})
	b.nat.add(chainServices, outside)
	here := r.to(ip, "external IP", iptables.Jump(policy))
	here.Matches = append(here.Matches, addrtype("dst-type"))
	b.nat.add(chainServices, here)
}

func (b *builder) oldFirewallChain(r *portRules, policy string) {
	add := func(source netip.Prefix, target string) {
		b.nat.add(r.firewall, iptables.Rule{
			Source: iptables.AddressMatch{Prefix: source}, Matches: comment(r.name + " loadbalancer IP"), Target: iptables.Jump(target),
		})
	}
	if r.ExternalPolicy == service.Cluster {
		add(netip.Prefix{}, chainMarkMasq)
	}
	sources := b.allowedSources(r)
	if len(sources) == 0 {
		sources = []netip.Prefix{{}}
	}
	for _, source := range sources {
		add(source, policy)
	}
	add(netip.Prefix{}, chainMarkDrop)
}

func (b *builder) xlbChain(r *portRules, chain string) {
	if b.Detector.CIDR.IsValid() {
		b.nat.add(chain, matchDetector(b.Detector, iptables.Rule{
			Matches: comment("Redirect pods trying to reach external loadbalancer VIP to clusterIP"), Target: iptables.Jump(r.cluster),
		}, false))
	}
	if b.version.nodeReachesAll {
		node := func(note, target string) {
			b.nat.add(chain, iptables.Rule{Matches: append(comment(note), addrtype("src-type")), Target: iptables.Jump(target)})
		}
		node("masquerade LOCAL traffic for "+r.name+" LB IP", chainMarkMasq)
		node("route LOCAL traffic for "+r.name+" LB IP to service chain", r.cluster)
	}
	if len(r.forLocal) == 0 {
		b.nat.add(chain, iptables.Rule{Matches: comment(r.name + " has no local endpoints"), Target: iptables.Jump(chainMarkDrop)})
		return
	}
	b.balance(r, chain, r.forLocal, func(i int, sticky bool) string {
		if sticky {
			return r.name
		}
		return fmt.Sprintf("Balancing rule %d for %s", i, r.name)
	})
}
