package nftables

import (
	"net/netip"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/node/service"
)

// Signed says what the table's rules are there for. Which service port a rule works for is told by the packet, through the ports' addresses
// and node ports, and by the names of chains for session affinity.
func Signed(ports []service.Port) attribution.Writer {
	known := knownPorts(ports)
	return attribution.Writer{
		Name: "service proxy, nftables", File: "internal/node/proxy/nftables/rules.go",
		Words: map[string]string{
			"at": "|node-port/", "way": "|internal/|external/", "of": "[0-9]+", "policy": "cluster|local", "policies": "cluster|local|both",
			"service": "[^/]+/[^/]+",
			"proto":   "tcp|udp|sctp", "name": "[a-z0-9-]*", "type": "filter|nat|firewall",
			"hook": "prerouting|input|forward|output|postrouting", "why": ".+",
		},
		Chains: attribution.In(TableName, signedChains()...),
		Know: func(r *attribution.Rule, f attribution.Fields) {
			port := f["service"]
			switch {
			case port != "" && f["name"] != "":
				port += ":" + f["name"]
			case port == "" && f["port"] == "":
				port = known.find(r)
			}
			f.Set("port", port)
			if f["of"] == "1" {
				f.Set("slot", "0")
			}
			f.Set("slot", r.Drawn)
			f.Set("endpoint", r.Translated)
		},
	}
}

// portKey is how packets name a service port; without an address by its node port.
type portKey struct {
	protocol    string
	destination netip.AddrPort
}

type portNames map[portKey]string

func knownPorts(ports []service.Port) portNames {
	known := portNames{}
	for i := range ports {
		p := &ports[i]
		for _, ip := range append(externalIPs(p), p.ClusterIP) {
			known[portKey{p.Protocol.Lower(), netip.AddrPortFrom(ip, p.Port)}] = p.Name.String()
		}
		if p.NodePort != 0 {
			known[portKey{p.Protocol.Lower(), netip.AddrPortFrom(netip.Addr{}, p.NodePort)}] = p.Name.String()
		}
	}
	return known
}

func (n portNames) find(r *attribution.Rule) string {
	if name := n[portKey{r.Protocol, netip.AddrPortFrom(r.Destination, r.Port)}]; name != "" {
		return name
	}
	return n[portKey{r.Protocol, netip.AddrPortFrom(netip.Addr{}, r.Port)}]
}

const (
	portText     = "[{port}: |Services: ]"
	endpointText = "endpoint {endpoint}, {owner}"
	sticky       = "{service}/{proto}/{name}"
)

// balancing are the rules of a chain that chooses an endpoint.
var balancing = []attribution.Line{
	{To: chainMark, Comment: "{why}", For: portText + "{why}"},
	{To: "dnat", Comment: "one of {of}", For: portText + "[slot {slot} of {of}, " + endpointText + "|slot {slot} of {of}, endpoint {endpoint}|" +
		"one of {of} endpoints]"},
	{To: "dnat", Comment: "where the client is", For: portText + "[" + endpointText + ", |endpoint {endpoint}, ]where the client was last"},
}

func signedChains() []attribution.Chain {
	chain := func(name, purpose string, role attribution.Role, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Name: name, For: purpose, Role: role, Rules: rules}
	}
	all := []attribution.Chain{
		chain("{type}-{hook}", "where the service proxy begins", attribution.NoRole,
			attribution.Line{To: chainServices, For: "Services: is the packet for one of them?"},
			attribution.Line{To: chainRemember, For: "Services: is it a new flow to one with session affinity?"},
			attribution.Line{Comment: "without endpoints", For: portText + "has no endpoints", Not: "Services: is it for one without endpoints?"},
			attribution.Line{Comment: "without endpoints on this node", For: portText + "no local endpoints[ on {machine}][ ({traffic}: Local)]",
				Not: "Services: is it for one without local endpoints?"},
			attribution.Line{To: "drop", Comment: whyUnallocated, For: "Services: an address of their range that no Service has"},
			attribution.Line{To: "drop", Text: "@" + setFirewalled + " *", For: portText + "load balancer IP, from outside its source ranges"},
			attribution.Line{Text: "@" + setClusterIPs + " *", For: "Services: a cluster IP[ of {owning}], but no port of its Service"},
			attribution.Line{To: chainMark, Text: "@" + setHairpin + " *", For: "an endpoint that reaches itself through its Service"},
			attribution.Line{To: "return", For: "not marked by a rule of a Service"},
			attribution.Line{To: "masquerade", For: "marked by a rule of a Service"},
			attribution.Line{Text: "meta mark set *", For: "the mark has done its work"}),
		chain(chainServices, "finds the Service port that a packet is for", attribution.Dispatch,
			attribution.Line{Comment: "services with {of} endpoints", For: portText + "by destination and port",
				Not: "Services: is it for one of those with {of} endpoints?"},
			attribution.Line{Text: "vmap @" + mapServices[byAddress] + " *", For: portText + "by destination and port"},
			attribution.Line{Text: "vmap @" + mapServices[byNodePort] + " *", For: portText + "by node port, at an address of the node"}),
		chain("{at}"+chainDecide, "sends external traffic with policy Local on, by who asks", attribution.Balances,
			attribution.Line{Comment: "from a pod*", For: portText + "externalTrafficPolicy Local, from a pod: as to the cluster IP"},
			attribution.Line{Comment: "from the node itself*", For: portText + "externalTrafficPolicy Local, from the node itself"},
			attribution.Line{Comment: "from elsewhere*", For: portText + "externalTrafficPolicy Local"}),
		chain(chainMark, "marks packets that are to leave with the node's address", attribution.MasqueradeMark,
			attribution.Line{For: "marked: to leave with the node's address"}),
		chain(chainRemember, "finds the Service port with session affinity that a new flow was for", attribution.NoRole,
			attribution.Line{Comment: "{why}", For: "Services: is it a new flow to one with session affinity, by {why}?"}),
		chain("remember/{policies}/"+sticky, "remembers where a client is", attribution.NoRole,
			attribution.Line{For: portText + "remembers the client, for session affinity"}),
	}
	for _, c := range []struct {
		policy, purpose string
		role            attribution.Role
	}{
		{"cluster", "chooses one of a Service port's endpoints", attribution.Balances},
		{"local", "chooses one of a Service port's endpoints on this node", attribution.BalancesLocal},
	} {
		all = append(all, chain("{at}{way}"+c.policy+"/{of}", c.purpose, c.role, balancing[:2]...),
			chain("{at}{way}"+c.policy+"/{of}/"+sticky, c.purpose+", with session affinity", c.role, balancing...))
	}
	return all
}
