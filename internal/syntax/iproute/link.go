package iproute

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/fib"
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
	XDP       *struct {
		Prog struct{ ID int }
	}
	Info struct {
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

// flag is a truth value that iproute2 prints as true, 1, "on" or null, by version. One that is false is false, 0, "off" or missing.
type flag bool

func (f *flag) UnmarshalJSON(b []byte) error {
	s := strings.Trim(string(b), `"`)
	*f = flag(s == "true" || s == "on" || s == "1" || s == "null")
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
func ParseLinks(data []byte) ([]fib.Link, error) {
	list, err := decode[linkJSON](data, "links")
	if err != nil {
		return nil, err
	}
	links := make([]fib.Link, 0, len(list))
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

func (j linkJSON) link() (fib.Link, error) {
	if j.Name == "" {
		return fib.Link{}, fmt.Errorf("has no ifname")
	}
	l := fib.Link{
		Index: j.Index, Name: j.Name, Kind: j.Info.Kind, Type: j.Type, MTU: j.MTU, Alias: j.Alias, Master: j.Master, PeerNetNS: -1,
		Up: slices.Contains(j.Flags, "UP"), LowerUp: slices.Contains(j.Flags, "LOWER_UP"),
		NoARP: slices.Contains(j.Flags, "NOARP"), Promiscuous: slices.Contains(j.Flags, "PROMISC"),
		Group: groupNumber(j.Group),
	}
	if l.Type == "ether" || l.Type == "loopback" {
		l.MAC, _ = parseMAC(j.MAC)
	}
	if j.NetNS != nil {
		l.PeerNetNS = *j.NetNS
	}
	if j.XDP != nil {
		l.Program = fmt.Sprintf("an XDP program (id %d)", j.XDP.Prog.ID)
	}
	switch l.Kind {
	case "veth":
		l.Peer = j.LinkIndex
	case "bridge":
		var b bridgeJSON
		if err := optional(j.Info.Data, &b); err != nil {
			return l, err
		}
		l.Bridge = &fib.Bridge{
			VLANFiltering: bool(b.VLANFiltering), STP: bool(b.STP), CallIPTables: bool(b.IPTables), CallIP6Tables: bool(b.IP6Tables),
			CallARPTables: bool(b.ARPTables), GroupForward: uint16(b.GroupForward.number(16)),
		}
	case "vxlan":
		v, err := parseVXLAN(j.Info.Data, j.NetNS != nil)
		if err != nil {
			return l, err
		}
		l.VXLAN = v
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
		l.Port = &fib.Port{
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

// groupNumber returns a link group's number. Names other than "default" stand in a file of the machine and are not known: -1.
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
