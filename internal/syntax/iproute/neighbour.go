package iproute

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/fib"
)

// neighbourJSON is one entry of "ip -j neigh".
type neighbourJSON struct {
	Dst, Dev, LLAddr string
	State            []string
	Proxy            json.RawMessage
}

// ParseNeighbours reads "ip -j neigh" or "ip -j neigh show proxy".
func ParseNeighbours(data []byte) ([]fib.Neighbour, error) {
	list, err := decode[neighbourJSON](data, "neighbours")
	if err != nil {
		return nil, err
	}
	neighbours := make([]fib.Neighbour, 0, len(list))
	for _, j := range list {
		a, err := netip.ParseAddr(j.Dst)
		if err != nil {
			return nil, fmt.Errorf("neighbour: %w", err)
		}
		n := fib.Neighbour{Link: j.Dev, Address: a.WithZone(""), Proxy: j.Proxy != nil}
		n.MAC, _ = parseMAC(j.LLAddr) // links that are not Ethernet have others, and incomplete entries none
		if len(j.State) > 0 {
			n.State = j.State[0]
		}
		neighbours = append(neighbours, n)
	}
	return neighbours, nil
}

// fdbJSON is one entry of "bridge -j fdb" (iproute2: bridge/fdb.c, print_fdb).
type fdbJSON struct {
	MAC    string
	IfName string
	VLAN   int
	Master string
	Flags  []string
	State  string
	// Of a vxlan's entry.
	Dst           string
	Port          uint16
	VNI           uint32
	Via           string          `json:"viaIf"`
	NexthopGroup  json.RawMessage `json:"nhid"`
	SourceVNI     json.RawMessage `json:"src_vni"`
	OtherNetSpace json.RawMessage `json:"linkNetNsId"`
}

// ParseFDB reads "bridge -j fdb". Entries of the devices' own filters (flag "self" without a bridge) are left out, but for a bridge's own,
// and those of a vxlan, which have a remote machine.
func ParseFDB(data []byte) ([]fib.FDBEntry, error) {
	list, err := decode[fdbJSON](data, "forwarding database")
	if err != nil {
		return nil, err
	}
	var entries []fib.FDBEntry
	for _, j := range list {
		mac, err := parseMAC(j.MAC)
		if err != nil {
			continue // of a device that is not Ethernet
		}
		self := slices.Contains(j.Flags, "self")
		switch {
		case self && (j.Dst != "" || j.NexthopGroup != nil):
			e, err := j.remote()
			if err != nil {
				return nil, err
			}
			e.MAC = mac
			entries = append(entries, e)
			continue
		case self || j.Master == "":
			continue
		}
		entries = append(entries, fib.FDBEntry{
			Port: j.IfName, Bridge: j.Master, MAC: mac, VLAN: j.VLAN, Local: j.State == "permanent", Static: j.State == "static",
		})
	}
	return entries, nil
}

// remote is a vxlan's entry.
func (j *fdbJSON) remote() (fib.FDBEntry, error) {
	e := fib.FDBEntry{
		Port: j.IfName, Local: j.State == "permanent", Static: j.State == "static", RemotePort: j.Port, VNI: j.VNI, Link: j.Via,
	}
	switch {
	case j.NexthopGroup != nil:
		e.Unknown = "nexthop group " + string(j.NexthopGroup)
		return e, nil
	case j.SourceVNI != nil:
		e.Unknown = "source VNI " + string(j.SourceVNI)
	case j.OtherNetSpace != nil:
		e.Unknown = "by a link of another namespace"
	}
	a, err := netip.ParseAddr(j.Dst)
	if err != nil {
		return e, fmt.Errorf("forwarding database of %s: %w", j.IfName, err)
	}
	e.Remote = a.WithZone("")
	return e, nil
}
