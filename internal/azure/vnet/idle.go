package vnet

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// The fabric's table "ip azure-idle" says how long flows are kept while they are idle, where that is not the time of all others
// (flowTimes). It is a table of its own because the kernel takes the time back from flows when their ct timeout object goes
// (nf_ct_untimeout): the table azure is replaced at each change; of this one only the rules are. Objects are named after what they say, and
// so never change.

// idleMinutes is how long a flow may be idle where no rule says otherwise.
const idleMinutes = 4

// idleTime is one time for one protocol.
type idleTime struct {
	minutes int
	l4      string // "tcp" or "udp"
	gateway bool   // of TCP by a NAT gateway, which keeps the ports of ended flows for a shorter time
}

func (t idleTime) name() string {
	name := fmt.Sprintf("%s-%d", t.l4, t.minutes*60)
	if t.gateway {
		name += "-gateway"
	}
	return name
}

// usual reports whether a flow has this time without a rule.
func (t idleTime) usual() bool { return t.minutes == idleMinutes && !t.gateway }

func (t idleTime) states() string {
	if t.l4 == "udp" {
		return fmt.Sprintf("unreplied : %d, replied : %[1]d", t.minutes*60)
	}
	ended := ""
	if t.gateway {
		ended = fmt.Sprintf(", time_wait : %d, close : %d", gatewayFINSeconds, gatewayRSTSeconds)
	}
	// Data that is not acknowledged yet, or sent again, would else be waited for 5 min only (nf_conntrack_proto_tcp.c).
	return fmt.Sprintf("established : %d, retrans : %[1]d, unack : %[1]d%s", t.minutes*60, ended)
}

// idleScript makes the table: flows to front ends as their load balancing rules say, those that leave as the outbound rule or the NAT
// gateway says.
func idleScript(n Network, out outboundPlan, rules []BalancingRule) string {
	fronts, sources := map[idleTime][]string{}, map[idleTime][]string{}
	used := map[idleTime]bool{}
	for _, b := range rules {
		t := idleTime{minutes: cmp.Or(b.Rule.IdleTimeoutMinutes, idleMinutes), l4: b.l4()}
		fronts[t] = append(fronts[t], fmt.Sprintf("%s . %d", b.Frontend.Address, b.Rule.FrontendPort))
		used[t] = true
	}
	for _, p := range out.pools {
		for _, l4 := range p.protocols {
			t := idleTime{p.idle, l4, p.gateway != "" && l4 == "tcp"}
			if p.gateway != "" && l4 == "udp" {
				t.minutes = idleMinutes
			}
			for _, m := range p.members {
				sources[t] = append(sources[t], m.address.String())
			}
			used[t] = true
		}
	}
	var w nftWriter
	w.WriteString("add table ip azure-idle\nflush table ip azure-idle\n")
	times := sortedTimes(used)
	if !slices.ContainsFunc(times, func(t idleTime) bool { return !t.usual() }) {
		return w.String()
	}
	w.WriteString("table ip azure-idle {\n")
	chain := []string{because("ct state != new accept", "a flow keeps its idle time")}
	for _, t := range times {
		if !t.usual() {
			w.line("ct timeout %s {", t.name())
			w.line("\tprotocol %s", t.l4)
			w.line("\tpolicy = { %s }", t.states())
			w.line("}")
		}
	}
	for _, t := range times {
		chain = append(chain, t.rule("ip daddr . th dport", fronts[t], "load balancing rules"))
	}
	var inside []string
	for _, v := range n.VNets {
		for _, p := range v.AddressPrefixes {
			inside = append(inside, p.Masked().String())
		}
	}
	if len(inside) > 0 {
		chain = append(chain, because("ip daddr { "+strings.Join(inside, ", ")+" } accept", "within virtual networks: idle time 4 min"))
	}
	for _, t := range times {
		of := "the outbound rule"
		if t.gateway {
			of = "the NAT gateway"
		}
		chain = append(chain, t.rule("ip saddr", sources[t], of))
	}
	w.chain("idle", "type filter hook prerouting priority mangle + 1; policy accept;", chain...)
	w.WriteString("}\n")
	return w.String()
}

func sortedTimes(used map[idleTime]bool) []idleTime {
	var all []idleTime
	for t := range used {
		all = append(all, t)
	}
	return sortedBy(all, func(t idleTime) string { return fmt.Sprintf("%s %6d %t", t.l4, t.minutes, t.gateway) })
}

// rule gives a time to the new flows whose fields are among some; "" for none. Such of the usual time only have to pass the rules behind.
func (t idleTime) rule(fields string, some []string, of string) string {
	if len(some) == 0 {
		return ""
	}
	slices.Sort(some)
	set := ""
	if !t.usual() {
		set = "ct timeout set " + strconv.Quote(t.name()) + " "
	}
	return because(fmt.Sprintf("meta l4proto %s %s { %s } %saccept", t.l4, fields, strings.Join(slices.Compact(some), ", "), set),
		fmt.Sprintf("%s: idle time %d min", of, t.minutes))
}

// Resets says which TCP flows have both ends told by a reset when their idle time is over ("TCP reset on idle", learn.microsoft.com). Those
// of a NAT gateway do not.
type Resets struct {
	to      map[netip.AddrPort]bool // flows to front ends, by a load balancing rule
	leaving map[netip.Addr]bool     // flows that leave by front ends, by an outbound rule
}

// NewResets reads the rules of all load balancers.
func NewResets(n Network) Resets {
	r := Resets{map[netip.AddrPort]bool{}, map[netip.Addr]bool{}}
	for _, b := range n.balancing(nil) {
		if b.resets() {
			r.to[netip.AddrPortFrom(b.Frontend.Address, b.Rule.FrontendPort)] = true
		}
	}
	for _, p := range outbound(n).pools {
		if p.reset && p.gateway == "" {
			for _, a := range p.frontends {
				r.leaving[a] = true
			}
		}
	}
	return r
}

// resets reports whether the ends of the rule's flows are told when their idle time is over.
func (b BalancingRule) resets() bool { return b.Rule.TCPReset && b.protocol() == 6 }

// Any reports whether there are such flows.
func (r Resets) Any() bool { return len(r.to)+len(r.leaving) > 0 }

// Wants reports whether a TCP flow to the destination, which leaves from the public address, is one of them.
func (r Resets) Wants(destination netip.AddrPort, public netip.Addr) bool {
	return r.to[destination] || r.leaving[public]
}

// resets returns what a packet meets that belongs to no flow that is known, "" where nothing resets. Such flows were idle for too long: a
// rule of a load balancer resets its own, and a NAT gateway those of the machines behind it.
func (w *nftWriter) resets(n Network, out outboundPlan) string {
	var ends, members, publics []string
	for _, b := range n.balancing(nil) {
		if !b.resets() {
			continue
		}
		ends = append(ends, fmt.Sprintf("%s . %d", b.Frontend.Address, b.Rule.FrontendPort))
		if b.Rule.FloatingIP {
			continue
		}
		for _, m := range b.Backends {
			ends = append(ends, fmt.Sprintf("%s . %d", m.Address, b.Rule.BackendPort))
		}
	}
	for _, p := range out.pools {
		if !p.reset {
			continue
		}
		members = append(members, p.addresses()...)
		for _, a := range p.frontends {
			publics = append(publics, a.String())
		}
	}
	rules := []string{because("meta mark set iifname map @marks", "a machine's: the reset goes back to it, also by a front end's address")}
	reset := func(set, kind string, elements []string, why string, matches ...string) {
		slices.Sort(elements)
		if elements = slices.Compact(elements); len(elements) == 0 {
			return
		}
		w.set("set", set, kind, "", elements)
		for _, match := range matches {
			rules = append(rules, because(fmt.Sprintf("meta l4proto tcp %s @%s reject with tcp reset", match, set), why))
		}
	}
	reset("reset-ends", "ipv4_addr . inet_service", ends, "of no flow that is known: the load balancer's rule has resets on",
		"ip daddr . th dport", "ip saddr . th sport")
	reset("reset-members", "ipv4_addr", members, "of no flow that is known: the outbound rule or NAT gateway resets it", "ip saddr")
	reset("reset-publics", "ipv4_addr", publics, "of no flow that is known: the outbound rule or NAT gateway resets it", "ip daddr")
	if len(rules) == 1 {
		return ""
	}
	var marks []string
	for _, nic := range n.NICs {
		marks = append(marks, fmt.Sprintf("%q : %d", nic.Link(), nic.ID))
	}
	w.set("map", "marks", "ifname : mark", "", marks)
	// fwmark_reflect gives the reset the mark of what it answers.
	w.chain("late", "", rules...)
	return because("ct state invalid jump late", "of no flow that is known: is it to be reset?")
}
