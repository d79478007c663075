package vnet

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/desired"
)

// Plan is what the namespaces must have for packets to go as they go in Azure. Same network and health, same plan.
type Plan struct {
	Fabric   desired.State // Azure's host network
	Internet desired.State // the router between the fabric and the internet's hosts
	NFT      string        // the fabric's nft script: replaces the tables "azure" and, but for its objects, "azure-idle" as one transaction
	IPTables string        // the fabric's iptables-restore input, the same for every network
	Uplink   Wire          // between the fabric (Inside) and the internet's router (Outside)
	NICs     []Wire        // between a machine (Outside) and the fabric (Inside), in the order of the network's NICs
	Hosts    []Wire        // between a host (Outside) and the internet's router (Inside), in the order of the network's Hosts
}

// Wire is a veth pair to be, and what the far end's namespace gets when it is first wired. After that the far end belongs to
// whoever lives there: a CNI plugin may move its address to a bridge.
type Wire struct {
	Name            string // of the NIC or host
	Inside, Outside End
	Far             desired.State // of the Outside end's namespace
}

// End is one end of a wire.
type End struct{ Link, MAC, Alias string }

// MTU of every link, in bytes.
const MTU = 1500

// Names and addresses of the fabric's own.
const (
	// TableName is the nft table of the fabric, in family ip.
	TableName     = "azure"
	uplinkInside  = "internet" // the uplink's name in the fabric
	uplinkOutside = "fabric"   // and in the internet's router
	machineLink   = "eth0"
	rulePriority  = 1000
	tableBase     = 1000 // a NIC's routing table is this and its ID
)

// InternetRouter is the internet's router, by which its hosts go (TEST-NET-2, RFC 5737).
var InternetRouter = netip.MustParseAddr("198.51.100.1")

var (
	routerAddress = InternetRouter
	anywhere      = netip.MustParsePrefix("0.0.0.0/0")
)

// Link returns the name of the NIC's end in the fabric.
func (n NIC) Link() string { return "nic" + strconv.Itoa(n.ID) }

// NewPlan makes the plan of a network that is valid ([Network.Validate]).
func NewPlan(n Network, h Health) Plan {
	p := Plan{Uplink: uplink(), NFT: nftScript(n, h), IPTables: ttlRules}
	p.Fabric, p.Internet = fabricState(n), internetState(n)
	for _, nic := range n.NICs {
		p.NICs = append(p.NICs, nicWire(n, nic))
	}
	for _, h := range n.Hosts {
		p.Hosts = append(p.Hosts, hostWire(h))
	}
	return p
}

// ttlRules give back the one that forwarding takes off the TTL: machines of a virtual network see no hop between them. A TTL of
// 255 is as high as it gets, and arrives as 254. nft has no arithmetic, xt_HL has.
const ttlRules = "*mangle\n:PREROUTING ACCEPT\n-A PREROUTING -m comment --comment \"" + NoHop + "\" -j TTL --ttl-inc 1\nCOMMIT\n"

func uplink() Wire {
	return Wire{
		Name:    "uplink",
		Inside:  End{Link: uplinkInside, MAC: macFor("uplink", "inside")},
		Outside: End{Link: uplinkOutside, MAC: macFor("uplink", "outside")},
	}
}

func nicWire(n Network, nic NIC) Wire {
	s, _ := n.Subnet(nic.VNet, nic.Subnet)
	return Wire{
		Name:    nic.Name,
		Inside:  End{Link: nic.Link(), MAC: HostMAC, Alias: nic.Name},
		Outside: End{Link: machineLink, MAC: nic.MAC},
		Far: desired.State{
			Addresses: []desired.Address{{Link: machineLink, Prefix: netip.PrefixFrom(nic.Primary().Address, s.Prefix.Bits())}},
			Routes:    nicRoutes(nic, s.Gateway()),
		},
	}
}

// containerGroupRanges are what a container group reaches by its subnet: private addresses (RFC 1918), as the routes in a group show it.
var containerGroupRanges = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
}

// nicRoutes returns the routes that a machine has by the NIC's gateway.
func nicRoutes(nic NIC, gateway netip.Addr) []desired.Route {
	if !nic.ContainerGroup {
		return []desired.Route{{Destination: anywhere, Gateway: gateway, Link: machineLink}}
	}
	var routes []desired.Route
	for _, p := range containerGroupRanges {
		routes = append(routes, desired.Route{Destination: p, Gateway: gateway, Link: machineLink})
	}
	return routes
}

func hostWire(h Host) Wire {
	return Wire{
		Name:    h.Name,
		Inside:  End{Link: h.Name, MAC: macFor("host", h.Name, "inside")},
		Outside: End{Link: machineLink, MAC: macFor("host", h.Name, "outside")},
		Far: desired.State{
			Addresses: []desired.Address{{Link: machineLink, Prefix: host(h.Address)}},
			Routes:    []desired.Route{{Destination: anywhere, Gateway: routerAddress, Link: machineLink, OnLink: true}},
		},
	}
}

// router returns the settings of a namespace that forwards between links without addresses of their own.
func router() []desired.Sysctl {
	var s []desired.Sysctl
	for _, which := range []string{"all", "default"} {
		conf := func(key, value string) {
			s = append(s, desired.Sysctl{Key: "net/ipv4/conf/" + which + "/" + key, Value: value})
		}
		conf("rp_filter", "0") // a packet for a front end comes from the internet and is answered from a NIC
		conf("send_redirects", "0")
		conf("accept_redirects", "0")
		s = append(s, desired.Sysctl{Key: "net/ipv6/conf/" + which + "/disable_ipv6", Value: "1"})
	}
	// A router has hardly a connection of its own; looking for one at every packet is a hundredth of what forwarding costs.
	return append(s, desired.Sysctl{Key: "net/ipv4/ip_early_demux", Value: "0"}, desired.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"})
}

// flowTimes returns how long the fabric keeps flows: idle ones for Azure's usual time (idleScript has the others), and an ended one's port
// for 4 minutes after both sides' FIN and 15 seconds after a reset ("Source network address translation for outbound connections", SNAT
// port reuse, learn.microsoft.com; the kernel gives a port in TIME_WAIT away before it fails to find one). A TCP flow that is not known,
// because it was idle for too long, is not taken up in its middle.
func flowTimes() []desired.Sysctl {
	idle := strconv.Itoa(idleMinutes * 60)
	var s []desired.Sysctl
	for _, x := range []struct{ key, value string }{
		{"tcp_timeout_established", idle}, {"udp_timeout", idle}, {"udp_timeout_stream", idle},
		{"tcp_timeout_time_wait", "240"}, {"tcp_timeout_close", "15"}, {"tcp_loose", "0"}, {"tcp_be_liberal", "1"},
	} {
		s = append(s, desired.Sysctl{Key: "net/netfilter/nf_conntrack_" + x.key, Value: x.value})
	}
	return s
}

func fabricState(n Network) desired.State {
	s := desired.State{
		Sysctls:    slices.Concat(router(), flowTimes(), []desired.Sysctl{{Key: "net/ipv4/fwmark_reflect", Value: "1"}}),
		Links:      []string{"lo", uplinkInside},
		Routes:     []desired.Route{{Destination: anywhere, Gateway: routerAddress, Link: uplinkInside, OnLink: true}},
		Neighbours: []desired.Neighbour{{Link: uplinkInside, Address: routerAddress, MAC: uplink().Outside.MAC}},
	}
	for _, a := range append([]netip.Addr{ProbeSource, MetadataService, fabricAddress}, gateways(n)...) {
		s.Addresses = append(s.Addresses, desired.Address{Link: "lo", Prefix: host(a)})
	}
	for _, nic := range n.NICs {
		s.Add(nicState(nic))
	}
	return s
}

// nicState routes a NIC's addresses to it, all through the primary one, whose link-layer address is known. So the fabric sends no ARP
// requests, and the kernel's neighbour table (one for all namespaces) has one entry for each NIC.
func nicState(nic NIC) desired.State {
	link, primary := nic.Link(), nic.Primary().Address
	s := desired.State{
		Sysctls: []desired.Sysctl{
			{Link: link, Key: "net/ipv4/conf/" + link + "/proxy_arp", Value: "1"}, // every ARP request is answered, with the link's own address
			{Link: link, Key: "net/ipv4/neigh/" + link + "/proxy_delay", Value: "0"},
		},
		Links:      []string{link},
		Neighbours: []desired.Neighbour{{Link: link, Address: primary, MAC: nic.MAC}},
		Routes:     []desired.Route{{Table: tableBase + nic.ID, Destination: anywhere, Gateway: primary, Link: link, OnLink: true}},
		Rules:      []desired.Rule{{Priority: rulePriority, Mark: uint32(nic.ID), Mask: nicMask, Table: tableBase + nic.ID}},
	}
	for _, c := range nic.IPConfigs {
		r := desired.Route{Destination: host(c.Address), Link: link}
		if c.Address != primary {
			r.Gateway, r.OnLink = primary, true
		}
		s.Routes = append(s.Routes, r)
	}
	if nic.Overlay.IsValid() {
		s.Routes = append(s.Routes, desired.Route{Destination: nic.Overlay, Gateway: primary, Link: link, OnLink: true})
	}
	return s
}

func internetState(n Network) desired.State {
	s := desired.State{
		Sysctls: router(), Links: []string{"lo", uplinkOutside}, Addresses: []desired.Address{{Link: "lo", Prefix: host(routerAddress)}},
		Routes:     []desired.Route{{Destination: publicPrefix, Gateway: fabricAddress, Link: uplinkOutside, OnLink: true}},
		Neighbours: []desired.Neighbour{{Link: uplinkOutside, Address: fabricAddress, MAC: uplink().Inside.MAC}},
	}
	for _, h := range n.Hosts {
		s.Add(desired.State{
			Links:      []string{h.Name},
			Routes:     []desired.Route{{Destination: host(h.Address), Link: h.Name}},
			Neighbours: []desired.Neighbour{{Link: h.Name, Address: h.Address, MAC: hostWire(h).Outside.MAC}},
		})
	}
	return s
}

func gateways(n Network) []netip.Addr {
	var all []netip.Addr
	for _, v := range n.VNets {
		for _, s := range v.Subnets {
			all = append(all, s.Gateway())
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// EndedFlows says which tracked connections end when the network and health become new ones: those of a rule that is gone or
// whose front end's address changed, those of a Basic load balancer's rule whose last back end went down (a Standard one keeps
// established TCP flows), UDP flows of a back end that went down (they move to another one), and those of a NIC that is gone.
// ("Load Balancer health probes", probe down behavior, learn.microsoft.com.)
func EndedFlows(before Network, healthBefore Health, after Network, healthAfter Health) []desired.FlowFilter {
	var ended []desired.FlowFilter
	now := map[string]BalancingRule{}
	for _, b := range after.balancing(healthAfter) {
		now[b.id()] = b
	}
	for _, was := range before.balancing(healthBefore) {
		is, ok := now[was.id()]
		if !ok || is.Frontend.Address != was.Frontend.Address || is.Balancer.SKU == SKUBasic && len(was.Up()) > 0 && len(is.Up()) == 0 {
			ended = append(ended, was.flows())
			continue
		}
		for _, m := range was.Up() {
			if was.Rule.Protocol == ProtocolUDP && !slices.ContainsFunc(is.Up(), func(n Backend) bool { return n.Address == m.Address }) {
				moved := was.flows()
				moved.Mark, moved.Mask = uint32(m.Mark), 0xffffffff
				ended = append(ended, moved)
			}
		}
	}
	for _, nic := range before.NICs {
		if is, ok := after.NIC(nic.Name); ok && is.ID == nic.ID {
			continue
		}
		ended = append(ended, desired.FlowFilter{Mark: uint32(nic.ID), Mask: 0xffffffff})
		for _, c := range nic.IPConfigs {
			ended = append(ended, desired.FlowFilter{Source: host(c.Address)})
		}
		if nic.Overlay.IsValid() {
			ended = append(ended, desired.FlowFilter{Source: nic.Overlay})
		}
	}
	return ended
}

// flows returns all tracked connections of the rule.
func (b BalancingRule) flows() desired.FlowFilter {
	return desired.FlowFilter{Protocol: b.protocol(), Destination: host(b.Frontend.Address), DestinationPort: b.Rule.FrontendPort}
}

// String returns the plan for people, in the words of ip(8).
func (p Plan) String() string {
	var b strings.Builder
	section := func(name, body string) { fmt.Fprintf(&b, "# %s\n%s", name, body) }
	section("fabric", p.Fabric.String())
	section("internet", p.Internet.String())
	for _, w := range slices.Concat([]Wire{p.Uplink}, p.NICs, p.Hosts) {
		section("wire "+w.Name, fmt.Sprintf("inside %s %s\noutside %s %s\n%s", w.Inside.Link, w.Inside.MAC, w.Outside.Link, w.Outside.MAC, w.Far))
	}
	section("nft", p.NFT)
	section("iptables", p.IPTables)
	return b.String()
}

// sortedBy sorts a copy.
func sortedBy[T any, K cmp.Ordered](s []T, key func(T) K) []T {
	s = slices.Clone(s)
	slices.SortStableFunc(s, func(a, b T) int { return cmp.Compare(key(a), key(b)) })
	return s
}
