//go:build linux

package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// writer makes the chains of one configuration.
type writer struct {
	proxy.Config
	family  uint8
	address nf.Field
	// Where headers have the addresses.
	source, destination uint32
	words               nf.Reg // registers that an address takes
}

func newWriter(c proxy.Config) *writer {
	w := &writer{Config: c, family: unix.NFPROTO_IPV4, source: 12, destination: 16, words: 1}
	if c.Family == service.IPv6 {
		w.family, w.source, w.destination, w.words = unix.NFPROTO_IPV6, 8, 24, 4
	}
	w.address = nf.Address(w.family)
	return w
}

func (w *writer) table() nf.Table { return nf.Table{Family: w.family, Name: TableName} }

// clientsSize is how many clients a service port with session affinity remembers; others are balanced.
const clientsSize = 1 << 16

// sets returns the sets and maps that are always there.
func (w *writer) sets() []nf.Set {
	sets := []nf.Set{
		{Name: setClusterIPs, Key: []nf.Field{w.address}},
		{Name: setHairpin, Key: []nf.Field{w.address, w.address}},
		{Name: setNodeIPs, Key: []nf.Field{w.address}},
		{Name: setFirewalled, Key: w.key(byAddress)},
		{Name: setSources, Key: append(w.key(byAddress), w.address), Ranges: true},
	}
	for at := range matchKinds {
		key := w.key(at)
		sets = append(sets, nf.Set{Name: mapServices[at], Key: key, Verdicts: true}, nf.Set{Name: setRefused[at], Key: key},
			nf.Set{Name: setDropped[at], Key: key},
			nf.Set{Name: mapAffinity[at], Key: append(w.key(at), w.endpoint()...), Verdicts: true})
		for policy := range policyName {
			sets = append(sets, nf.Set{Name: mapPolicies[at][policy], Key: key, Verdicts: true},
				nf.Set{Name: mapEndpoints[at][policy], Key: append(w.key(at), nf.Slot()), Data: w.endpoint(), TypeOf: true})
		}
	}
	return sets
}

// key returns the fields by which a packet names a service port.
func (w *writer) key(at matchKind) []nf.Field {
	if at == byNodePort {
		return []nf.Field{nf.Protocol(), nf.Port()}
	}
	return []nf.Field{w.address, nf.Protocol(), nf.Port()}
}

func (w *writer) endpoint() []nf.Field { return []nf.Field{w.address, nf.Port()} }

// clients returns the map of a service port with session affinity.
func (w *writer) clients(f *fan) nf.Set {
	return nf.Set{Name: f.clients(f.policy), Key: []nf.Field{w.address}, Data: w.endpoint(), Timeout: time.Duration(f.seconds) * time.Second,
		Size: clientsSize}
}

// fanSet returns the set of a fan that has one.
func (w *writer) fanSet(name string) nf.Set { return nf.Set{Name: name, Key: w.key(byAddress)} }

// services finds the service port that a packet is for, first in the fans' sets.
func (w *writer) services(sets []fan) nf.Chain {
	key, _ := w.packetKey(byAddress)
	var rules []nf.Rule
	for i := range sets {
		name := sets[i].chain()
		rules = append(rules, rule(fmt.Sprintf("services with %d endpoints", sets[i].of),
			append(slices.Clip(key), nf.In(name, 0), nf.Verdict(nf.Goto, name))...))
	}
	return chain(chainServices, append(rules,
		w.at(byAddress, "by an address of a service", nf.Follow(mapServices[byAddress], 0)),
		w.at(byNodePort, "by a node port", nf.Follow(mapServices[byNodePort], 0)))...)
}

// chains returns the chains that are always there, those that are led to first; sets are the fans that have one.
func (w *writer) chains(sets []fan) []nf.Chain {
	mark, back := uint32(1)<<w.MasqueradeBit, ^(uint32(1) << w.MasqueradeBit)
	chains := []nf.Chain{
		chain(chainMark, rule("to leave with the node's address", nf.Meta(unix.NFT_META_MARK, 0),
			nf.Bits(0, nf.Native(back), nf.Native(mark)), nf.SetMeta(unix.NFT_META_MARK, 0))),
		chain(matchPrefix[byAddress]+chainDecide, w.decide(byAddress)...),
		chain(matchPrefix[byNodePort]+chainDecide, w.decide(byNodePort)...),
		w.services(sets),
		chain(chainRemember, w.affinityRules()...),
	}
	return append(chains, w.hooks()...)
}

func chain(name string, rules ...nf.Rule) nf.Chain { return nf.Chain{Name: name, Rules: rules} }

func rule(comment string, exprs ...nf.Expr) nf.Rule { return nf.Rule{Comment: comment, Exprs: exprs} }

// hooks returns the chains that the kernel calls.
func (w *writer) hooks() []nf.Chain {
	const beforeDNAT = -110 // of others' chains, that translate at -100
	// Others' translate first. So another service proxy's rules are in force as soon as it has written them, whatever is still here.
	const afterDNAT = -99
	base := func(name, kind string, hook uint32, priority int32, rules ...nf.Rule) nf.Chain {
		return nf.Chain{Name: name, Base: &nf.Base{Type: kind, Hook: hook, Priority: priority}, Rules: rules}
	}
	find := rule("services", nf.Verdict(nf.Jump, chainServices))
	guard := w.isNew(w.firewall())
	refused := append(w.noEndpointRules(byAddress),
		w.isNew(rule("an unused port of a cluster IP", w.load(w.destination, 0), nf.In(setClusterIPs, 0), nf.Refuse(w.family))))
	refused = append(refused, w.unallocated()...)
	learn := w.isNew(rule("services with session affinity", append(translated(), nf.Verdict(nf.Jump, chainRemember))...))
	return []nf.Chain{
		base("firewall-prerouting", "filter", unix.NF_INET_PRE_ROUTING, beforeDNAT, guard),
		base("firewall-output", "filter", unix.NF_INET_LOCAL_OUT, beforeDNAT, guard),
		base("filter-input", "filter", unix.NF_INET_LOCAL_IN, 0,
			append(slices.Concat(w.noEndpointRules(byNodePort), w.noEndpointRules(byAddress)), learn)...),
		base(chainForward, "filter", unix.NF_INET_FORWARD, 0, refused...),
		base("filter-output", "filter", unix.NF_INET_LOCAL_OUT, 0, refused...),
		base("filter-postrouting", "filter", unix.NF_INET_POST_ROUTING, 0, learn),
		base("nat-postrouting", "nat", unix.NF_INET_POST_ROUTING, 100, w.postrouting()...),
		base("nat-prerouting", "nat", unix.NF_INET_PRE_ROUTING, afterDNAT, find),
		base("nat-output", "nat", unix.NF_INET_LOCAL_OUT, afterDNAT, find),
	}
}

// noEndpointRules rejects packets for service ports without endpoints, and drops packets for those without endpoints on this node.
func (w *writer) noEndpointRules(at matchKind) []nf.Rule {
	return []nf.Rule{
		w.isNew(w.at(at, "without endpoints", nf.In(setRefused[at], 0), nf.Refuse(w.family))),
		w.isNew(w.at(at, "without endpoints on this node", nf.In(setDropped[at], 0), nf.Verdict(nf.Drop, ""))),
	}
}

// unallocated drops what is for a cluster IP that no service has: it would go to wherever the default route leads.
func (w *writer) unallocated() (rules []nf.Rule) {
	for _, cidr := range w.ServiceCIDRs {
		rules = append(rules, w.isNew(rule(whyUnallocated,
			append(w.within(w.destination, cidr, unix.NFT_CMP_EQ), nf.Verdict(nf.Drop, ""))...)))
	}
	return rules
}

func (w *writer) postrouting() []nf.Rule {
	mark := nf.Native(1 << w.MasqueradeBit)
	all := nf.Native(^uint32(0))
	load := nf.Meta(unix.NFT_META_MARK, 0)
	return []nf.Rule{
		rule("an endpoint that reaches itself", append(translated(), w.load(w.source, 0), w.load(w.destination, w.words),
			nf.In(setHairpin, 0), nf.Verdict(nf.Jump, chainMark))...),
		rule("not marked by a service", load, nf.Bits(0, mark, nf.Native(0)), nf.Compare(unix.NFT_CMP_EQ, 0, nf.Native(0)),
			nf.Verdict(nf.Return, "")),
		rule("the mark has done its work", load, nf.Bits(0, all, mark), nf.SetMeta(unix.NFT_META_MARK, 0)),
		rule("marked by a service", nf.Masquerade()),
	}
}

// translated lets a rule look at flows whose destination was translated.
func translated() []nf.Expr {
	const status = 1 << 5 // IPS_DST_NAT
	return []nf.Expr{nf.Conntrack(unix.NFT_CT_STATUS, 0), nf.Bits(0, nf.Native(status), nf.Native(0)),
		nf.Compare(unix.NFT_CMP_NEQ, 0, nf.Native(0))}
}

// affinityRules finds the service port that a translated connection is for. Each protocol has a rule, because nft lists the ports of
// conntrack with the protocol only.
func (w *writer) affinityRules() (rules []nf.Rule) {
	address := uint32(unix.NFT_CT_DST_IP)
	if w.Family == service.IPv6 {
		address = unix.NFT_CT_DST_IP6
	}
	for _, protocol := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
		for at, set := range mapAffinity {
			exprs, next := isProtocol(protocol), nf.Reg(0)
			if matchKind(at) == byAddress {
				exprs, next = append(exprs, nf.ConntrackOriginal(address, 0)), w.words
			}
			rules = append(rules, rule(protocol.Lower(), append(exprs, nf.Meta(unix.NFT_META_L4PROTO, next),
				nf.ConntrackOriginal(unix.NFT_CT_PROTO_DST, next+1), w.load(w.destination, next+2), nf.ConntrackReply(unix.NFT_CT_PROTO_SRC,
					next+2+w.words), nf.Follow(set, 0))...))
		}
	}
	return rules
}

func isProtocol(p service.Protocol) []nf.Expr {
	return []nf.Expr{nf.Meta(unix.NFT_META_L4PROTO, 0), nf.Compare(unix.NFT_CMP_EQ, 0, []byte{protocolField(p)[0]})}
}

// isNew lets a rule look at the first packets of flows only.
func (w *writer) isNew(r nf.Rule) nf.Rule {
	const fresh = 1 << 3 // NF_CT_STATE_BIT(IP_CT_NEW)
	r.Exprs = append([]nf.Expr{nf.Conntrack(unix.NFT_CT_STATE, 0), nf.Bits(0, nf.Native(fresh), nf.Native(0)),
		nf.Compare(unix.NFT_CMP_NEQ, 0, nf.Native(0))}, r.Exprs...)
	return r
}

// firewall drops what the source ranges of a load balancer keep out.
func (w *writer) firewall() nf.Rule {
	key, n := w.packetKey(byAddress)
	exprs := append(key, nf.In(setFirewalled, 0))
	exprs = append(append(exprs, key...), w.load(w.source, n), nf.NotIn(setSources, 0), nf.Verdict(nf.Drop, ""))
	return rule("from outside a load balancer's source ranges", exprs...)
}

func (w *writer) load(offset uint32, to nf.Reg) nf.Expr {
	return nf.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, w.address.Len, to)
}

// packetKey loads what a packet names a service port by, from register 0 on, and gives the register behind.
func (w *writer) packetKey(at matchKind) ([]nf.Expr, nf.Reg) {
	var exprs []nf.Expr
	next := nf.Reg(0)
	if at == byAddress {
		exprs, next = append(exprs, w.load(w.destination, 0)), w.words
	}
	return append(exprs, nf.Meta(unix.NFT_META_L4PROTO, next), transportPort(next+1)), next + 2
}

// transportPort loads the destination port.
func transportPort(to nf.Reg) nf.Expr {
	return nf.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, to) // of TCP, UDP and SCTP
}

// at returns a rule about packets that may select a service port, with the key in register 0.
func (w *writer) at(at matchKind, comment string, then ...nf.Expr) nf.Rule {
	var exprs []nf.Expr
	switch {
	case at == byAddress:
	case w.NodePortIPs != nil:
		exprs = append(exprs, w.load(w.destination, 0), nf.In(setNodeIPs, 0))
	default:
		exprs = append(exprs, nf.AddressType(unix.NFTA_FIB_F_DADDR, 0), nf.Compare(unix.NFT_CMP_EQ, 0, nf.Native(unix.RTN_LOCAL)))
		exprs = append(exprs, w.within(w.destination, loopback(w.Family), unix.NFT_CMP_NEQ)...)
	}
	key, _ := w.packetKey(at)
	return rule(comment, slices.Concat(exprs, key, then)...)
}

func loopback(f service.Family) netip.Prefix {
	if f == service.IPv6 {
		return netip.MustParsePrefix("::1/128")
	}
	return netip.MustParsePrefix("127.0.0.0/8")
}

// within compares an address of the packet with a range.
func (w *writer) within(offset uint32, p netip.Prefix, op uint32) []nf.Expr {
	network := p.Masked().Addr().AsSlice()
	exprs := []nf.Expr{w.load(offset, 0)}
	if p.Bits() < p.Addr().BitLen() {
		mask := make([]byte, len(network))
		for i := range p.Bits() {
			mask[i/8] |= 0x80 >> (i % 8)
		}
		exprs = append(exprs, nf.Bits(0, mask, make([]byte, len(network))))
	}
	return append(exprs, nf.Compare(op, 0, network))
}

// fromPods compares with what local pods send; nil where nothing tells it.
func (w *writer) fromPods(op uint32) []nf.Expr {
	name := w.Detector.Interface
	switch {
	case w.Detector.CIDR.IsValid():
		return w.within(w.source, w.Detector.CIDR, op)
	case name == "":
		return nil
	}
	value := make([]byte, unix.IFNAMSIZ)
	copy(value, name)
	if prefix, ok := strings.CutSuffix(name, "+"); ok {
		value = []byte(prefix)
	}
	return []nf.Expr{nf.Meta(unix.NFT_META_IIFNAME, 0), nf.Compare(op, 0, value)}
}

// decide returns the way of external traffic with policy Local: pods and the node itself reach all endpoints, as if their traffic had left
// the cluster and come back.
func (w *writer) decide(at matchKind) []nf.Rule {
	key, _ := w.packetKey(at)
	all := append(key, nf.Follow(mapPolicies[at][service.Cluster], 0))
	fromNode := []nf.Expr{nf.AddressType(unix.NFTA_FIB_F_SADDR, 0), nf.Compare(unix.NFT_CMP_EQ, 0, nf.Native(unix.RTN_LOCAL))}
	var rules []nf.Rule
	if pods := w.fromPods(unix.NFT_CMP_EQ); pods != nil {
		rules = append(rules, rule("from a pod: to any endpoint", append(pods, all...)...))
	}
	return append(rules,
		rule("from the node itself: masqueraded", append(fromNode[:2:2], nf.Verdict(nf.Jump, chainMark))...),
		rule("from the node itself: to any endpoint", append(fromNode[:2:2], all...)...),
		rule("from elsewhere: to endpoints of this node", append(key[:len(key):len(key)], nf.Follow(mapPolicies[at][service.Local], 0))...))
}

// fan returns the chain that chooses one of several endpoints, or remembers which was chosen.
func (w *writer) fan(f *fan) nf.Chain {
	c := chain(f.chain())
	if f.way == remember {
		for policy := range policyName {
			if f.policy == bothPolicies || int(f.policy) == policy {
				c.Rules = append(c.Rules, rule("the client stays", w.load(w.source, 0), w.load(w.destination, w.words),
					transportPort(2*w.words), nf.Remember(f.clients(service.Policy(policy)), 0, w.words)))
			}
		}
		return c
	}
	toMark := nf.Verdict(nf.Jump, chainMark)
	switch outside := w.fromPods(unix.NFT_CMP_NEQ); {
	case f.way == external:
		c.Rules = append(c.Rules, rule("to leave with the node's address", toMark))
	case f.way == internal && w.MasqueradeAll:
		c.Rules = append(c.Rules, rule("masqueraded whoever asks", toMark))
	case f.way == internal && outside != nil:
		c.Rules = append(c.Rules, rule("from outside the pods' range", append(outside, toMark)...))
	}
	to := nf.TranslateTo(w.family, 0, w.words)
	if f.sticky != "" {
		c.Rules = append(c.Rules, rule("where the client is",
			append(isProtocol(f.protocol), w.load(w.source, 0), nf.Find(f.clients(f.policy), 0, 0), to)...))
	}
	key, slot := w.packetKey(f.at)
	c.Rules = append(c.Rules, rule(fmt.Sprintf("one of %d", f.of),
		append(key, nf.Random(uint32(f.of), slot), nf.Find(mapEndpoints[f.at][f.policy], 0, 0), to)...))
	return c
}

// Fields of keys, as registers have them.

func protocolField(p service.Protocol) string {
	numbers := map[service.Protocol]byte{service.TCP: byte(packet.TCP), service.UDP: byte(packet.UDP), service.SCTP: byte(packet.SCTP)}
	return string([]byte{numbers[p], 0, 0, 0})
}

func portField(port uint16) string { return string([]byte{byte(port >> 8), byte(port), 0, 0}) }

func addressField(a netip.Addr) string { return string(a.AsSlice()) }

func slotField(i int) string { return string(binary.NativeEndian.AppendUint32(nil, uint32(i))) }

func endpointField(a netip.AddrPort) string { return addressField(a.Addr()) + portField(a.Port()) }
