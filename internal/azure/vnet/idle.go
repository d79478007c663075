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
}

func (t idleTime) name() string { return fmt.Sprintf("%s-%d", t.l4, t.minutes*60) }

func (t idleTime) states() string {
	if t.l4 == "udp" {
		return fmt.Sprintf("unreplied : %d, replied : %[1]d", t.minutes*60)
	}
	// Data that is not acknowledged yet, or sent again, would else be waited for 5 min only (nf_conntrack_proto_tcp.c).
	return fmt.Sprintf("established : %d, retrans : %[1]d, unack : %[1]d", t.minutes*60)
}

// idleScript makes the table: flows to front ends as their load balancing rules say, those that leave as the outbound rule says.
func idleScript(n Network, rules []balancingRule) string {
	fronts, sources := map[idleTime][]string{}, map[idleTime][]string{}
	used := map[idleTime]bool{}
	for _, b := range rules {
		t := idleTime{cmp.Or(b.rule.IdleTimeoutMinutes, idleMinutes), b.l4()}
		fronts[t] = append(fronts[t], fmt.Sprintf("%s . %d", b.frontend, b.rule.FrontendPort))
		used[t] = true
	}
	for _, p := range outbound(n).pools {
		for _, l4 := range []string{"tcp", "udp"} {
			t := idleTime{p.idle, l4}
			for _, m := range p.members {
				sources[t] = append(sources[t], m.address.String())
			}
			used[t] = true
		}
	}
	var w nftWriter
	w.WriteString("add table ip azure-idle\nflush table ip azure-idle\n")
	times := sortedTimes(used)
	if !slices.ContainsFunc(times, func(t idleTime) bool { return t.minutes != idleMinutes }) {
		return w.String()
	}
	w.WriteString("table ip azure-idle {\n")
	chain := []string{because("ct state != new accept", "a flow keeps its idle time")}
	for _, t := range times {
		if t.minutes != idleMinutes {
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
		chain = append(chain, t.rule("ip saddr", sources[t], "the outbound rule"))
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
	return sortedBy(all, func(t idleTime) string { return fmt.Sprintf("%s %6d", t.l4, t.minutes) })
}

// rule gives a time to the new flows whose fields are among some; "" for none. Such of the usual time only have to pass the rules behind.
func (t idleTime) rule(fields string, some []string, of string) string {
	if len(some) == 0 {
		return ""
	}
	slices.Sort(some)
	set := ""
	if t.minutes != idleMinutes {
		set = "ct timeout set " + strconv.Quote(t.name()) + " "
	}
	return because(fmt.Sprintf("meta l4proto %s %s { %s } %saccept", t.l4, fields, strings.Join(slices.Compact(some), ", "), set),
		fmt.Sprintf("%s: idle time %d min", of, t.minutes))
}

// Resets says which TCP flows have both ends told by a reset when their idle time is over ("TCP reset on idle", learn.microsoft.com).
type Resets struct {
	to      map[netip.AddrPort]bool // flows to front ends, by a load balancing rule
	leaving map[netip.Addr]bool     // flows that leave by front ends, by an outbound rule
}

// NewResets reads the rules of all load balancers.
func NewResets(n Network) Resets {
	r := Resets{map[netip.AddrPort]bool{}, map[netip.Addr]bool{}}
	for _, b := range balancedRules(n, nil) {
		if b.rule.TCPReset && b.protocol() == 6 {
			r.to[netip.AddrPortFrom(b.frontend, b.rule.FrontendPort)] = true
		}
	}
	for _, lb := range n.LoadBalancers {
		for _, rule := range lb.OutboundRules {
			for _, a := range lb.public(rule.Frontends) {
				if rule.TCPReset {
					r.leaving[a] = true
				}
			}
		}
	}
	return r
}

// Any reports whether there are such flows.
func (r Resets) Any() bool { return len(r.to)+len(r.leaving) > 0 }

// Wants reports whether a TCP flow to the destination, which leaves from the public address, is one of them.
func (r Resets) Wants(destination netip.AddrPort, public netip.Addr) bool {
	return r.to[destination] || r.leaving[public]
}
