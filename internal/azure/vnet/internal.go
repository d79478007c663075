package vnet

import (
	"fmt"
	"slices"
)

// Internal front ends in the fabric's table. What goes to one is tracked, and so are its answers: those of a rule with floating IP come from
// the front end's address, those of another one from the back end's address and port. Nothing translates the source. So a back end that the
// load balancer maps to itself gets packets from its own address, and drops them.

// plainEnds returns the addresses and ports of the back ends of internal front ends' rules without floating IP.
func (n *Network) plainEnds() []string {
	var all []string
	for _, b := range n.balancing(nil) {
		for _, m := range b.Backends {
			if !b.Rule.FloatingIP && b.Frontend.Internal() {
				all = append(all, fmt.Sprintf("%s . %s . %d", m.Address, b.l4(), b.Rule.BackendPort))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// internalFrontends writes the sets and chains for internal front ends, where there are any.
func (w *nftWriter) internalFrontends(n Network) {
	fronts := n.internalFrontends()
	if len(fronts) == 0 {
		return
	}
	var addresses []string
	for _, a := range fronts {
		addresses = append(addresses, a.String())
	}
	w.set("set", "front-ends", "ipv4_addr", "", addresses)
	if ends := n.plainEnds(); len(ends) > 0 {
		w.set("set", "plain-ends", "ipv4_addr . inet_proto . inet_service", "", ends)
	}
	w.chain("front-end", "", because("iifname . ip saddr @own accept", "the sender's own address; tracked"),
		fromPods(n, "accept", "; tracked"), because("iifname @forwarders accept", "the sender forwards for others; tracked"), notOwn)
}

// frontendRules returns the rules for what goes to an internal front end, and for answers of its back ends; none without any.
func frontendRules(n Network) (to, answers []string) {
	if len(n.internalFrontends()) == 0 {
		return nil, nil
	}
	to = []string{because("ip daddr @front-ends goto front-end", "a load balancer's internal front end")}
	answers = []string{because("ip saddr @front-ends accept", "by a load balancer's internal front end; tracked")}
	if len(n.plainEnds()) == 0 {
		return to, answers
	}
	for _, end := range []struct{ fields, why string }{
		{"ip daddr . meta l4proto . th dport", "a back end of an internal front end; tracked"},
		{"ip saddr . meta l4proto . th sport", "from a back end of an internal front end; tracked"},
	} {
		answers = append(answers, because(fmt.Sprintf("meta l4proto { tcp, udp } %s @plain-ends goto inside", end.fields), end.why))
	}
	return to, answers
}

// answering returns the links of back ends with the front ends by whose addresses they answer, because the rule has floating IP.
func (n *Network) answering() []string {
	var all []string
	for _, b := range n.balancing(nil) {
		for _, m := range b.Backends {
			if b.Rule.FloatingIP {
				all = append(all, fmt.Sprintf("%q . %s", m.Link, b.Frontend.Address))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// answers writes the set of what back ends may answer by, and returns the rules for it: on the way to an appliance, and for what a NIC
// sends. An appliance that forwards another one's answer is no back end, and what it sends is dropped.
func (w *nftWriter) answers(n Network) (toHop []string, forward string) {
	all := n.answering()
	if len(all) == 0 {
		return nil, ""
	}
	w.set("set", "answering", "ifname . ipv4_addr", "", all)
	return []string{because("iifname . ip saddr @answering accept", "by a load balancer's front end; tracked")},
		because(`iifname "nic*" ct direction reply ct mark != 0 iifname . ip saddr != @answering drop`, "not a back end of the flow")
}
