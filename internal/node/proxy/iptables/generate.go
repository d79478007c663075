package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// largeCluster is the number of endpoints above which the comments in service and endpoint chains are left out
// (k8s.io/kubernetes pkg/proxy/iptables/proxier.go, largeClusterEndpointsThreshold).
const largeCluster = 1000

// The accounting objects (nfnetlink_acct) of the current rule set.
const (
	CounterInvalid   = "ct_state_invalid_dropped_pkts"
	CounterLocalhost = "localhost_nps_accepted_pkts"
)

// CounterNames returns the accounting objects that have to exist before rules with Config.NFAcct can be loaded.
func CounterNames() []string { return []string{CounterInvalid, CounterLocalhost} }

// matchDetector adds the detector's condition to a rule: local traffic, or with not all other.
func matchDetector(d proxy.Detector, r iptables.Rule, not bool) iptables.Rule {
	if d.CIDR.IsValid() {
		r.Source = iptables.AddressMatch{Not: not, Prefix: d.CIDR.Masked()}
	} else {
		r.In = iptables.NameMatch{Not: not, Name: d.Interface}
	}
	return r
}

// RuleSet is the desired state: own chains with all their rules, and the jumps that lead into them from built-in chains.
type RuleSet struct {
	Tables []iptables.Table // filter, mangle, nat
	// Jumps belong at the head of their chains, each put before those that stand earlier in the list.
	Jumps []Jump
	// NoLocalInternal and NoLocalExternal count service ports with a Local policy whose endpoints are all on other nodes.
	NoLocalInternal, NoLocalExternal int
}

// Jump is a rule in a built-in chain.
type Jump struct {
	Table string
	iptables.SharedRule
}

// Generate makes the rule set for service ports of c.Family, which service.Build returns sorted.
func Generate(c proxy.Config, ports []service.Port) (*RuleSet, error) {
	a, err := versionOf(c.Rules)
	if err != nil {
		return nil, err
	}
	b := newBuilder(c, a, isLarge(ports))
	b.top()
	for i := range ports {
		b.port(&ports[i])
	}
	b.nodePorts()
	b.forward()
	mangle := newTable(iptables.Mangle)
	for _, t := range []*table{b.filter, mangle, b.nat} {
		t.chain(chainCanary)
		b.set.Tables = append(b.set.Tables, t.Table)
	}
	return &b.set, nil
}

func newBuilder(c proxy.Config, a *ruleSetVersion, large bool) *builder {
	b := &builder{Config: c, version: a, large: large, filter: newTable(iptables.Filter), nat: newTable(iptables.NAT)}
	b.LocalhostNodePorts = b.LocalhostNodePorts && c.Family == service.IPv4
	return b
}

func isLarge(ports []service.Port) bool {
	endpoints := 0
	for i := range ports {
		endpoints += len(ports[i].Endpoints)
	}
	return endpoints > largeCluster
}

// table collects chains by name.
type table struct {
	iptables.Table
	index map[string]int
}

func newTable(name string) *table {
	return &table{Table: iptables.Table{Name: name}, index: map[string]int{}}
}

func (t *table) chain(name string) *iptables.Chain {
	i, ok := t.index[name]
	if !ok {
		i = len(t.Chains)
		t.index[name] = i
		t.Chains = append(t.Chains, iptables.Chain{Name: name})
	}
	return &t.Chains[i]
}

func (t *table) add(chain string, r iptables.Rule) {
	c := t.chain(chain)
	c.Rules = append(c.Rules, r)
}

type builder struct {
	proxy.Config
	version     *ruleSetVersion
	large       bool
	filter, nat *table
	set         RuleSet
}

func (b *builder) mark() string { return fmt.Sprintf("%#x", uint32(1)<<b.MasqueradeBit) }

func (b *builder) markMatch(not bool) iptables.Match {
	return iptables.Match{Module: "mark", Options: []iptables.Option{{Not: not, Name: "mark", Args: []string{b.mark() + "/" + b.mark()}}}}
}

func setMark(value, mask string) iptables.Target {
	return iptables.Jump("MARK", iptables.Opt("set-xmark", value+"/"+mask))
}

func comment(text string) []iptables.Match { return []iptables.Match{iptables.CommentMatch(text)} }

func ctstate(not bool, states string) iptables.Match {
	return iptables.Match{Module: "conntrack", Options: []iptables.Option{{Not: not, Name: "ctstate", Args: []string{states}}}}
}

func addrtype(option string) iptables.Match {
	return iptables.Match{Module: "addrtype", Options: []iptables.Option{iptables.Opt(option, "LOCAL")}}
}

// top makes the chains that are there without any service, and the jumps to them.
func (b *builder) top() {
	for _, name := range []string{chainMarkMasq, chainServices, chainNodePorts, chainPostrouting} {
		b.nat.chain(name)
	}
	for _, j := range b.version.jumps {
		t := b.nat
		if j.table == iptables.Filter {
			t = b.filter
		}
		t.chain(j.to)
		b.set.Jumps = append(b.set.Jumps, j.rule())
	}
	b.nat.add(chainMarkMasq, iptables.Rule{Target: setMark(b.mark(), b.mark())})
	b.postrouting()
	if b.version.markDrop {
		const drop = "0x8000" // the kubelet's --iptables-drop-bit, 15
		b.nat.add(chainMarkDrop, iptables.Rule{Target: setMark(drop, drop)})
		b.filter.add(chainFirewall, iptables.Rule{
			Matches: append(comment("kubernetes firewall for dropping marked packets"),
				iptables.Match{Module: "mark", Options: []iptables.Option{iptables.Opt("mark", drop+"/"+drop)}}),
			Target: iptables.Jump("DROP"),
		})
	}
	b.localnet()
}

func (b *builder) postrouting() {
	snat := iptables.Rule{Matches: comment("kubernetes service traffic requiring SNAT"), Target: iptables.Jump("MASQUERADE")}
	if !b.version.clearsMark {
		snat.Matches = append(snat.Matches, b.markMatch(false))
		b.nat.add(chainPostrouting, snat)
		return
	}
	b.nat.add(chainPostrouting, iptables.Rule{Matches: []iptables.Match{b.markMatch(true)}, Target: iptables.Jump("RETURN")})
	b.nat.add(chainPostrouting, iptables.Rule{Target: setMark(b.mark(), "0x0")}) // --xor-mark, as it is saved
	snat.Target.Options = []iptables.Option{iptables.Opt("random-fully")}
	b.nat.add(chainPostrouting, snat)
}

// localnet closes the hole that route_localnet opens: a neighbour could reach services that listen on 127.0.0.1 (kubernetes issue 90259).
func (b *builder) localnet() {
	always := b.version.localnet == localnetAlways && b.Family == service.IPv4
	ifOpened := b.version.localnet == localnetIfOpened && b.LocalhostNodePorts
	if !always && !ifOpened {
		return
	}
	b.filter.add(chainFirewall, iptables.Rule{
		Source:      iptables.AddressMatch{Not: true, Prefix: loopback(b.Family)},
		Destination: iptables.AddressMatch{Prefix: loopback(b.Family)},
		Matches:     append(comment("block incoming localnet connections"), ctstate(true, "RELATED,ESTABLISHED,DNAT")),
		Target:      iptables.Jump("DROP"),
	})
}

func loopback(f service.Family) netip.Prefix {
	if f == service.IPv6 {
		return netip.MustParsePrefix("::1/128")
	}
	return netip.MustParsePrefix("127.0.0.0/8")
}

// nodePorts ends KUBE-SERVICES with the way to the node ports.
func (b *builder) nodePorts() {
	r := iptables.Rule{
		Matches: comment("kubernetes service nodeports; NOTE: this must be the last rule in this chain"),
		Target:  iptables.Jump(chainNodePorts),
	}
	if b.NodePortIPs == nil {
		r.Matches = append(r.Matches, addrtype("dst-type"))
		if b.version.filtersLocal && !b.LocalhostNodePorts {
			r.Destination = iptables.AddressMatch{Not: true, Prefix: loopback(b.Family)}
		}
		b.nat.add(chainServices, r)
		return
	}
	ips := slices.SortedFunc(slices.Values(b.NodePortIPs), netip.Addr.Compare)
	for _, ip := range slices.Compact(ips) {
		if ip.IsLoopback() && !b.LocalhostNodePorts {
			continue
		}
		r.Destination = iptables.Host(ip)
		b.nat.add(chainServices, r)
	}
}

func (b *builder) forward() {
	accept := func(r iptables.Rule, text string, m iptables.Match) {
		r.Matches, r.Target = append(comment(text), m), iptables.Jump("ACCEPT")
		b.filter.add(chainForward, r)
	}
	if b.version.dropsInvalid && !b.TCPLiberal {
		r := iptables.Rule{Matches: []iptables.Match{ctstate(false, "INVALID")}, Target: iptables.Jump("DROP")}
		if b.NFAcct {
			r.Matches = append(r.Matches, nfacct(CounterInvalid))
		}
		b.filter.add(chainForward, r)
	}
	accept(iptables.Rule{}, "kubernetes forwarding rules", b.markMatch(false))
	established := ctstate(false, "RELATED,ESTABLISHED")
	if b.version.established == establishedAll {
		accept(iptables.Rule{}, "kubernetes forwarding conntrack rule", established)
		return
	}
	from, to := iptables.Rule{}, iptables.Rule{}
	if b.version.established == establishedPodRange {
		if !b.Detector.CIDR.IsValid() {
			return
		}
		pods := iptables.AddressMatch{Prefix: b.Detector.CIDR.Masked()}
		from.Source, to.Destination = pods, pods
	}
	accept(from, "kubernetes forwarding conntrack pod source rule", established)
	accept(to, "kubernetes forwarding conntrack pod destination rule", established)
}

func nfacct(name string) iptables.Match {
	return iptables.Match{Module: "nfacct", Options: []iptables.Option{iptables.Opt("nfacct-name", name)}}
}

func (b *builder) reject() iptables.Target {
	with := "icmp-port-unreachable"
	if b.Family == service.IPv6 {
		with = "icmp6-port-unreachable"
	}
	return iptables.Jump("REJECT", iptables.Opt("reject-with", with))
}

// portRules is one service port while its rules are made.
type portRules struct {
	*service.Port
	name                string // in comments and hashes
	proto               string
	cluster, local      string // chains of the two policies
	external, firewall  string
	forCluster          []service.Endpoint
	forLocal            []service.Endpoint
	internalLocal       bool
	reachable           bool // there is an endpoint somewhere
	internalOK, outerOK bool // internal and external traffic arriving here finds an endpoint
}

func (b *builder) port(p *service.Port) {
	name, proto := b.version.portName(p.Name), p.Protocol.Lower()
	id := hash(name, proto)
	r := &portRules{
		Port: p, name: name, proto: proto,
		cluster: prefixCluster + id, local: prefixLocal + id, external: prefixExternal + id, firewall: prefixFirewall + id,
		forCluster: p.ForCluster, forLocal: p.ForLocal,
		internalLocal: p.InternalPolicy == service.Local && b.version.internalPolicy,
		reachable:     len(p.ForCluster) > 0,
	}
	r.internalOK = r.reachable && (!r.internalLocal || len(r.forLocal) > 0)
	r.outerOK = r.reachable && (p.ExternalPolicy == service.Cluster || len(r.forLocal) > 0)
	if r.reachable && !r.internalOK {
		b.set.NoLocalInternal++
	}
	if r.reachable && !r.outerOK {
		b.set.NoLocalExternal++
	}
	b.internal(r)
	b.version.dispatch(b, r)
}

// to returns a rule for traffic to an address and the service's port.
func (r *portRules) to(ip netip.Addr, note string, target iptables.Target) iptables.Rule {
	return iptables.Rule{
		Destination: iptables.Host(ip),
		Protocol:    iptables.NameMatch{Name: r.proto},
		Matches:     append(comment(r.name+" "+note), dport(r.proto, r.Port.Port)),
		Target:      target,
	}
}

// toNodePort returns a rule for traffic to the node port, whatever the address.
func (r *portRules) toNodePort(note string, target iptables.Target, between ...iptables.Match) iptables.Rule {
	if note != "" {
		note = " " + note
	}
	return iptables.Rule{
		Protocol: iptables.NameMatch{Name: r.proto},
		Matches:  append(append(comment(r.name+note), between...), dport(r.proto, r.NodePort)),
		Target:   target,
	}
}

func dport(proto string, port uint16) iptables.Match {
	return iptables.Match{Module: proto, Options: []iptables.Option{iptables.Opt("dport", strconv.Itoa(int(port)))}}
}

// internal handles traffic to the cluster IP.
func (b *builder) internal(r *portRules) {
	if !r.internalOK {
		target, note := b.nothingThere(r)
		b.filter.add(chainServices, r.to(r.ClusterIP, note, target))
		return
	}
	chain := r.cluster
	if r.internalLocal {
		chain = r.local
	}
	masquerade := r.to(r.ClusterIP, "cluster IP", iptables.Jump(chainMarkMasq))
	if !b.MasqueradeAll {
		masquerade = matchDetector(b.Detector, masquerade, true)
	}
	if b.MasqueradeAll || !b.Detector.IsZero() {
		in := chain
		if b.version.masqueradeInServices {
			in = chainServices
		}
		b.nat.add(in, masquerade)
	}
	b.nat.add(chainServices, r.to(r.ClusterIP, "cluster IP", iptables.Jump(chain)))
}

// nothingThere returns what happens to traffic that finds no endpoint: refused if there is none at all, dropped if there is none here.
func (b *builder) nothingThere(r *portRules) (iptables.Target, string) {
	if !r.reachable {
		return b.reject(), "has no endpoints"
	}
	return iptables.Jump("DROP"), "has no local endpoints"
}

// balance fills a chain that spreads connections over endpoints. note gives rule i its comment, "" for none.
func (b *builder) balance(r *portRules, chain string, endpoints []service.Endpoint, note func(i int, sticky bool) string) {
	matches := func(i int, sticky bool) []iptables.Match {
		if text := note(i, sticky); text != "" {
			return comment(text)
		}
		return nil
	}
	if r.AffinitySeconds > 0 {
		for i, e := range endpoints {
			sep := b.endpointChain(r, e)
			b.nat.add(chain, iptables.Rule{
				Matches: append(matches(i, true), b.recent(sep, iptables.Opt("rcheck"),
					iptables.Opt("seconds", strconv.Itoa(r.AffinitySeconds)), iptables.Opt("reap"))),
				Target: iptables.Jump(sep),
			})
		}
	}
	for i, e := range endpoints {
		rule := iptables.Rule{Matches: matches(i, false), Target: iptables.Jump(b.endpointChain(r, e))}
		if left := len(endpoints) - i; left > 1 {
			rule.Matches = append(rule.Matches, iptables.Match{Module: "statistic", Options: []iptables.Option{
				iptables.Opt("mode", "random"), iptables.Opt("probability", iptables.RoundedProbability(left, b.version.places)),
			}})
		}
		b.nat.add(chain, rule)
	}
}

// recent returns a look at, or a note in, the list of clients that an endpoint had lately.
func (b *builder) recent(list string, do ...iptables.Option) iptables.Match {
	mask := "255.255.255.255"
	if b.Family == service.IPv6 {
		mask = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	}
	return iptables.Match{Module: "recent", Options: append(do,
		iptables.Opt("name", list), iptables.Opt("mask", mask), iptables.Opt("rsource"))}
}

func (b *builder) endpointChain(r *portRules, e service.Endpoint) string {
	return prefixEndpoint + hash(r.name, r.proto, e.String())
}

// serviceNote comments the rules of a service's chain.
func (b *builder) serviceNote(r *portRules, endpoints []service.Endpoint) func(int, bool) string {
	return func(i int, _ bool) string {
		switch {
		case b.large || b.version.comments == commentNone:
			return ""
		case b.version.comments == commentTarget:
			return r.name + " -> " + endpoints[i].String()
		default:
			return r.name
		}
	}
}

// endpoint makes an endpoint's chain: hairpin traffic is marked for masquerade, everything is sent to the endpoint.
func (b *builder) endpoint(r *portRules, e service.Endpoint) {
	chain := b.endpointChain(r, e)
	note := func() []iptables.Match {
		if b.large || b.version.comments == commentNone {
			return nil
		}
		return comment(r.name)
	}
	b.nat.add(chain, iptables.Rule{
		Source: iptables.Host(e.Addr.Addr()), Matches: note(), Target: iptables.Jump(chainMarkMasq),
	})
	dnat := iptables.Rule{
		Protocol: iptables.NameMatch{Name: r.proto},
		Matches:  note(),
		Target:   iptables.Jump("DNAT", iptables.Opt("to-destination", e.String())),
	}
	if r.AffinitySeconds > 0 {
		dnat.Matches = append(dnat.Matches, b.recent(chain, iptables.Opt("set")))
	}
	dnat.Matches = append(dnat.Matches, iptables.Match{Module: r.proto})
	b.nat.add(chain, dnat)
}

// endpoints makes the chains of all endpoints that either list has.
func (b *builder) endpoints(r *portRules, lists ...[]service.Endpoint) {
	done := map[netip.AddrPort]bool{}
	for _, list := range lists {
		for _, e := range list {
			if !done[e.Addr] {
				done[e.Addr] = true
				b.endpoint(r, e)
			}
		}
	}
}
