package iproute

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

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

// ParseFDBText reads what "bridge fdb" prints without -j, as people paste it: "02:00:00:00:00:01 dev veth0 vlan 1 master cbr0 permanent".
func ParseFDBText(text string) ([]fib.FDBEntry, error) {
	var list []map[string]any
	for i, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		entry := map[string]any{"mac": words[0]}
		var flags []string
		for n := 1; n < len(words); n++ {
			key, named := fdbWords[words[n]]
			switch {
			case named && n+1 == len(words):
				return nil, fmt.Errorf("forwarding database, line %d: %s wants a value", i+1, words[n])
			case named:
				n++
				if number, err := strconv.Atoi(words[n]); err == nil && key != "ifname" && key != "master" {
					entry[key] = number
				} else {
					entry[key] = words[n]
				}
			case words[n] == "permanent" || words[n] == "static":
				entry["state"] = words[n]
			default:
				flags = append(flags, words[n])
			}
		}
		entry["flags"] = flags
		list = append(list, entry)
	}
	data, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	return ParseFDB(data)
}

// fdbWords are the words with a value, and what they are called in JSON (iproute2: bridge/fdb.c, print_fdb).
var fdbWords = map[string]string{
	"dev": "ifname", "vlan": "vlan", "master": "master", "dst": "dst", "port": "port", "vni": "vni", "src_vni": "src_vni", "via": "viaIf",
	"link-netnsid": "linkNetNsId", "nhid": "nhid",
}

// remote returns a vxlan's entry.
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
