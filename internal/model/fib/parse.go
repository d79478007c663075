package fib

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/packet"
)

// decode reads the JSON array that iproute2 prints. What it prints for an empty list is nothing at all, or [].
func decode[T any](data []byte, what string) ([]T, error) {
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return nil, nil
	}
	var list []T
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("%s: not what iproute2 prints with -j: %w", what, err)
	}
	return list, nil
}

// linkJSON is one link of "ip -d -j link show" or "ip -j addr" (iproute2: ip/ipaddress.c, ip/iplink_bridge.c, ip/iplink_bridge_slave.c).
type linkJSON struct {
	Index     int    `json:"ifindex"`
	Name      string `json:"ifname"`
	Link      string
	LinkIndex int  `json:"link_index"`
	NetNS     *int `json:"link_netnsid"`
	Flags     []string
	MTU       int
	Master    string
	Group     string
	Type      string `json:"link_type"`
	MAC       string `json:"address"`
	Alias     string `json:"ifalias"`
	Info      struct {
		Kind      string          `json:"info_kind"`
		SlaveKind string          `json:"info_slave_kind"`
		Data      json.RawMessage `json:"info_data"`
		SlaveData json.RawMessage `json:"info_slave_data"`
	} `json:"linkinfo"`
	Addresses []addressJSON `json:"addr_info"`
}

type bridgeJSON struct {
	VLANFiltering flag `json:"vlan_filtering"`
	STP           flag `json:"stp_state"`
	IPTables      flag `json:"nf_call_iptables"`
	IP6Tables     flag `json:"nf_call_ip6tables"`
	ARPTables     flag `json:"nf_call_arptables"`
	GroupForward  text `json:"group_fwd_mask"`
}

type portJSON struct {
	State       string
	Hairpin     flag
	Learning    flag
	Flood       flag
	Broadcast   flag `json:"bcast_flood"`
	Multicast   flag `json:"mcast_flood"`
	Isolated    flag
	ProxyARP    flag `json:"proxy_arp"`
	Suppression flag `json:"neigh_suppress"`
}

// flag is a truth value that iproute2 prints as true, 1 or "on", by version.
type flag bool

func (f *flag) UnmarshalJSON(b []byte) error {
	s := strings.Trim(string(b), `"`)
	*f = flag(s == "true" || s == "on" || s == "1")
	return nil
}

// text is a value that iproute2 prints as a string or a number, by version.
type text string

func (t *text) UnmarshalJSON(b []byte) error {
	*t = text(strings.Trim(string(b), `"`))
	return nil
}

// number reads decimal and 0x… numbers; 0 for what is none.
func (t text) number(bits int) uint64 {
	n, err := strconv.ParseUint(string(t), 0, bits)
	if err != nil {
		return 0
	}
	return n
}

// ParseLinks reads "ip -d -j link show". Without -d kinds and the settings of bridges are missing.
func ParseLinks(data []byte) ([]Link, error) {
	list, err := decode[linkJSON](data, "links")
	if err != nil {
		return nil, err
	}
	links := make([]Link, 0, len(list))
	byName := map[string]int{}
	for _, j := range list {
		byName[j.Name] = j.Index
	}
	for _, j := range list {
		l, err := j.link()
		if err != nil {
			return nil, fmt.Errorf("link %s: %w", j.Name, err)
		}
		if l.Kind == "veth" && l.Peer == 0 {
			l.Peer = byName[j.Link]
		}
		links = append(links, l)
	}
	return links, nil
}

func (j linkJSON) link() (Link, error) {
	if j.Name == "" {
		return Link{}, fmt.Errorf("has no ifname")
	}
	l := Link{
		Index: j.Index, Name: j.Name, Kind: j.Info.Kind, Type: j.Type, MTU: j.MTU, Alias: j.Alias, Master: j.Master, PeerNetNS: -1,
		Up: slices.Contains(j.Flags, "UP"), LowerUp: slices.Contains(j.Flags, "LOWER_UP"),
		Promiscuous: slices.Contains(j.Flags, "PROMISC"), Group: groupNumber(j.Group),
	}
	if l.Type == "ether" || l.Type == "loopback" {
		l.MAC, _ = parseMAC(j.MAC)
	}
	if j.NetNS != nil {
		l.PeerNetNS = *j.NetNS
	}
	switch l.Kind {
	case "veth":
		l.Peer = j.LinkIndex
	case "bridge":
		var b bridgeJSON
		if err := optional(j.Info.Data, &b); err != nil {
			return l, err
		}
		l.Bridge = &Bridge{
			VLANFiltering: bool(b.VLANFiltering), STP: bool(b.STP), CallIPTables: bool(b.IPTables), CallIP6Tables: bool(b.IP6Tables),
			CallARPTables: bool(b.ARPTables), GroupForward: uint16(b.GroupForward.number(16)),
		}
	case "vlan":
		var v struct{ ID int }
		if err := optional(j.Info.Data, &v); err != nil {
			return l, err
		}
		l.VLAN = v.ID
	}
	if l.Kind != "veth" {
		l.Parent = j.Link
	}
	if j.Info.SlaveKind == "bridge" {
		p := portJSON{Learning: true, Flood: true, Broadcast: true, Multicast: true, State: "forwarding"}
		if err := optional(j.Info.SlaveData, &p); err != nil {
			return l, err
		}
		l.Port = &Port{
			State: p.State, Hairpin: bool(p.Hairpin), Learning: bool(p.Learning), Flood: bool(p.Flood), BroadcastFlood: bool(p.Broadcast),
			MulticastFlood: bool(p.Multicast), Isolated: bool(p.Isolated), ProxyARP: bool(p.ProxyARP), NeighbourSuppression: bool(p.Suppression),
		}
	}
	return l, nil
}

func optional(data json.RawMessage, into any) error {
	if len(data) == 0 {
		return nil
	}
	return json.Unmarshal(data, into)
}

// groupNumber is a link group's number. Names other than "default" stand in a file of the machine and are not known: -1.
func groupNumber(s string) int {
	if s == "" || s == "default" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}

func parseMAC(s string) (packet.MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != 6 {
		return packet.MAC{}, fmt.Errorf("%q is no link-layer address of Ethernet", s)
	}
	return packet.MAC(hw), nil
}

// addressJSON is one entry of addr_info.
type addressJSON struct {
	Local, Address, Broadcast, Scope            string
	Bits                                        int `json:"prefixlen"`
	Secondary, Deprecated, Temporary, Tentative bool
}

// ParseAddresses reads "ip -j addr".
func ParseAddresses(data []byte) ([]Address, error) {
	list, err := decode[linkJSON](data, "addresses")
	if err != nil {
		return nil, err
	}
	var all []Address
	for _, l := range list {
		for _, j := range l.Addresses {
			a, err := j.address(l.Name)
			if err != nil {
				return nil, fmt.Errorf("address of %s: %w", l.Name, err)
			}
			if a.Prefix.IsValid() {
				all = append(all, a)
			}
		}
	}
	return all, nil
}

// address gives the zero Address for one of another family than IPv4 and IPv6, which iproute2 prints without a local part.
func (j addressJSON) address(link string) (Address, error) {
	if j.Local == "" {
		return Address{}, nil
	}
	local, err := netip.ParseAddr(j.Local)
	if err != nil {
		return Address{}, err
	}
	local = local.WithZone("")
	a := Address{
		Link: link, Scope: scopeName(j.Scope), Secondary: j.Secondary || j.Temporary, Prefix: netip.PrefixFrom(local, j.Bits),
		Deprecated: j.Deprecated, Temporary: j.Temporary, Tentative: j.Tentative,
	}
	if !a.Prefix.IsValid() {
		return Address{}, fmt.Errorf("%s: %d is no prefix length", j.Local, j.Bits)
	}
	if j.Address != "" {
		peer, err := netip.ParseAddr(j.Address)
		if err != nil {
			return Address{}, err
		}
		a.Prefix, a.Peer = netip.PrefixFrom(local, local.BitLen()), netip.PrefixFrom(peer.WithZone(""), j.Bits)
	}
	if j.Broadcast != "" {
		if a.Broadcast, err = netip.ParseAddr(j.Broadcast); err != nil {
			return Address{}, err
		}
	}
	return a, nil
}

// routeJSON is one route of "ip -j route show table all" (iproute2: ip/iproute.c, print_route).
type routeJSON struct {
	Type, Dst, From, Gateway, Dev, PrefSrc, Scope, Protocol, Pref string
	Table, TOS, Encap                                             text
	Via                                                           *viaJSON
	Metric                                                        uint32
	Flags                                                         []string
	Nexthops                                                      []nexthopJSON
}

type viaJSON struct{ Family, Host string }

type nexthopJSON struct {
	Gateway, Dev string
	Via          *viaJSON
	Weight       int
	Flags        []string
	Encap        text
}

// ParseRoutes reads "ip -j route show table all" or its -6 form, with or without -d. Cached clones (flag "cloned") are left out.
func ParseRoutes(data []byte) ([]Route, error) {
	list, err := decode[routeJSON](data, "routes")
	if err != nil {
		return nil, err
	}
	routes := make([]Route, 0, len(list))
	for i := range list {
		j := &list[i]
		if slices.Contains(j.Flags, "cloned") {
			continue
		}
		r, err := j.route()
		if err != nil {
			return nil, fmt.Errorf("route to %q (number %d): %w", j.Dst, i+1, err)
		}
		routes = append(routes, r)
	}
	return routes, nil
}

func (j *routeJSON) route() (Route, error) {
	r := Route{
		Type: routeType(j.Type), Link: j.Dev, Metric: int(j.Metric), Protocol: j.Protocol, Scope: scopeName(j.Scope), Preference: j.Pref,
		TOS: tosNumber(string(j.TOS)),
	}
	r.Table, r.TableName = tableNumber(string(j.Table))
	if j.Encap != "" {
		r.Unknown = "encap " + string(j.Encap)
	}
	r.flags(j.Flags)
	var err error
	if r.Gateway, err = gateway(j.Gateway, j.Via); err != nil {
		return r, err
	}
	if j.PrefSrc != "" {
		if r.Source, err = netip.ParseAddr(j.PrefSrc); err != nil {
			return r, err
		}
	}
	if j.From != "" && j.From != "all" && j.From != "default" {
		if r.From, err = parsePrefix(j.From); err != nil {
			return r, err
		}
	}
	for _, n := range j.Nexthops {
		way, err := n.nexthop()
		if err != nil {
			return r, err
		}
		if n.Encap != "" {
			r.Unknown = "encap " + string(n.Encap)
		}
		r.Nexthops = append(r.Nexthops, way)
	}
	if j.Dst == "default" || j.Dst == "" {
		// "via" stands where the gateway is of the other family: only IPv4 routes have such.
		r.Destination = anywhere(j.Via == nil && r.family())
		return r, nil
	}
	r.Destination, err = parsePrefix(j.Dst)
	return r, err
}

func (n nexthopJSON) nexthop() (Nexthop, error) {
	g, err := gateway(n.Gateway, n.Via)
	way := Nexthop{Gateway: g, Link: n.Dev, Weight: max(n.Weight, 1), OnLink: slices.Contains(n.Flags, "onlink")}
	way.Dead = slices.Contains(n.Flags, "dead")
	way.LinkDown = way.Dead || slices.Contains(n.Flags, "linkdown")
	return way, err
}

func (r *Route) flags(flags []string) {
	for _, f := range flags {
		switch f {
		case "onlink":
			r.OnLink = true
		case "linkdown":
			r.LinkDown = true
		case "dead":
			r.Dead, r.LinkDown = true, true
		}
	}
}

// family tells the family of a default route, whose destination does not show it: from its other addresses, or from what only IPv6
// routes have.
func (r *Route) family() (ipv6 bool) {
	switch {
	case r.Source.IsValid():
		return r.Source.Is6()
	case r.From.IsValid():
		return r.From.Addr().Is6()
	case r.Preference != "":
		return true
	case r.Gateway.IsValid():
		return r.Gateway.Is6()
	case len(r.Nexthops) > 0 && r.Nexthops[0].Gateway.IsValid():
		return r.Nexthops[0].Gateway.Is6()
	}
	return false
}

func gateway(plain string, via *viaJSON) (netip.Addr, error) {
	if via != nil {
		plain = via.Host
	}
	if plain == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(plain)
	return a.WithZone(""), err
}

func anywhere(ipv6 bool) netip.Prefix {
	if ipv6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// parsePrefix reads a prefix as iproute2 prints it: without a length it is one address. Host bits are cleared.
func parsePrefix(s string) (netip.Prefix, error) {
	if !strings.Contains(s, "/") {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return netip.Prefix{}, err
		}
		a = a.WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	return p.Masked(), nil
}

// tableNumber gives a table's number. A name that only the machine's rt_tables knows gets a negative number of its own, the same
// wherever the name stands.
func tableNumber(s string) (number int, name string) {
	switch s {
	case "", "main":
		return TableMain, ""
	case "local":
		return TableLocal, ""
	case "default":
		return TableDefault, ""
	}
	if n, err := strconv.ParseUint(s, 0, 32); err == nil {
		return int(n), ""
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(s))
	return -1 - int(h.Sum32()), s
}

func routeType(s string) string {
	if s == "" {
		return "unicast"
	}
	return s
}

func scopeName(s string) string {
	switch s {
	case "", "0":
		return "global"
	case "253":
		return "link"
	case "254":
		return "host"
	}
	return s
}

// tosNames are the names that iproute2's rt_dsfield gives to values of the TOS field (etc/iproute2/rt_dsfield); newer versions print
// only those that the file has.
var tosNames = map[string]uint8{
	"default": 0, "AF11": 0x28, "AF12": 0x30, "AF13": 0x38, "AF21": 0x48, "AF22": 0x50, "AF23": 0x58, "AF31": 0x68, "AF32": 0x70,
	"AF33": 0x78, "AF41": 0x88, "AF42": 0x90, "AF43": 0x98, "CS1": 0x20, "CS2": 0x40, "CS3": 0x60, "CS4": 0x80, "CS5": 0xa0,
	"CS6": 0xc0, "CS7": 0xe0, "EF": 0xb8,
}

func tosNumber(s string) uint8 {
	if n, ok := tosNames[s]; ok {
		return n
	}
	return uint8(text(s).number(8))
}

// neighbourJSON is one entry of "ip -j neigh".
type neighbourJSON struct {
	Dst, Dev, LLAddr string
	State            []string
	Proxy            json.RawMessage
}

// ParseNeighbours reads "ip -j neigh" or "ip -j neigh show proxy".
func ParseNeighbours(data []byte) ([]Neighbour, error) {
	list, err := decode[neighbourJSON](data, "neighbours")
	if err != nil {
		return nil, err
	}
	neighbours := make([]Neighbour, 0, len(list))
	for _, j := range list {
		a, err := netip.ParseAddr(j.Dst)
		if err != nil {
			return nil, fmt.Errorf("neighbour: %w", err)
		}
		n := Neighbour{Link: j.Dev, Address: a.WithZone(""), Proxy: j.Proxy != nil}
		n.MAC, _ = parseMAC(j.LLAddr) // links that are not Ethernet have others, and incomplete entries none
		if len(j.State) > 0 {
			n.State = j.State[0]
		}
		neighbours = append(neighbours, n)
	}
	return neighbours, nil
}

// fdbJSON is one entry of "bridge -j fdb".
type fdbJSON struct {
	MAC    string
	IfName string
	VLAN   int
	Master string
	Flags  []string
	State  string
}

// ParseFDB reads "bridge -j fdb". Entries of the devices' own filters (flag "self" without a bridge) are left out, but for a bridge's own.
func ParseFDB(data []byte) ([]FDBEntry, error) {
	list, err := decode[fdbJSON](data, "forwarding database")
	if err != nil {
		return nil, err
	}
	var entries []FDBEntry
	for _, j := range list {
		mac, err := parseMAC(j.MAC)
		if err != nil {
			continue // a VXLAN or other device's entry
		}
		if j.Master == "" || slices.Contains(j.Flags, "self") {
			continue
		}
		entries = append(entries, FDBEntry{
			Port: j.IfName, Bridge: j.Master, MAC: mac, VLAN: j.VLAN, Local: j.State == "permanent", Static: j.State == "static",
		})
	}
	return entries, nil
}
