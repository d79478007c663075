package conntrack

import (
	"net/netip"

	"packetwalk.dev/internal/model/packet"
)

// Settings are the sysctls (net.netfilter.…) that change what conntrack makes of a packet.
type Settings struct {
	TCPLoose   bool // nf_conntrack_tcp_loose: pick up connections in their middle; on by default
	TCPLiberal bool // nf_conntrack_tcp_be_liberal
	// LocalPorts is net.ipv4.ip_local_port_range.
	LocalPorts [2]uint16
	// Settled are flows of which it is known what the kernel has chosen: a port that it picks for a flow with the same first packet is theirs.
	Settled []packet.Flow
}

// Table is one namespace's flows as they were when its state was taken. It is not changed by a walk: that works on a View.
type Table struct {
	Flows   []packet.Flow
	index   map[key]int // the flows' places; made by NewTable
	sources map[sourceKey][]int
}

// key is one direction of a flow. In zones that count in one direction, two flows can have the same tuple, one in each.
type key struct {
	tuple packet.Tuple
	zone  uint16
	reply bool
}

// sourceKey is what the kernel finds earlier source translations by (hash_by_src, net/netfilter/nf_nat_core.c).
type sourceKey struct {
	protocol packet.Protocol
	source   netip.Addr
	port     packet.Port
	zone     uint16
}

// NewTable indexes flows. They must not be changed afterwards.
func NewTable(flows []packet.Flow) *Table {
	t := &Table{Flows: flows, index: make(map[key]int, 2*len(flows)), sources: map[sourceKey][]int{}}
	for i := range flows {
		f := &flows[i]
		original, reply := keys(f)
		t.index[original], t.index[reply] = i, i
		s := bySource(&f.Original, f.Zone)
		t.sources[s] = append(t.sources[s], i)
	}
	return t
}

// keys returns what a flow's packets are found by in both directions.
func keys(f *packet.Flow) (original, reply key) {
	return key{f.Original, f.Zone.In(false), false}, key{f.Reply, f.Zone.In(true), true}
}

func bySource(t *packet.Tuple, zone packet.Zone) sourceKey {
	return sourceKey{t.Protocol, t.Source, t.SourcePort, zone.In(false)}
}

// identity returns a packet's tuple as conntrack knows it: without fields that its protocol does not have.
func identity(t packet.Tuple) packet.Tuple {
	switch {
	case isICMP(t.Protocol):
		t.DestinationPort = packet.Port{}
	case t.Protocol.HasPorts():
		t.Type, t.Code = 0, 0
	default:
		t.Type, t.Code = 0, 0
		t.SourcePort, t.DestinationPort = packet.Port{}, packet.Port{}
	}
	return t
}
