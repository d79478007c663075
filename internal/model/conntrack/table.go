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
}

// Table is one namespace's flows as they were when its state was taken. It is not changed by a walk: that works on a View.
type Table struct {
	Flows   []packet.Flow
	index   map[key]ref // made by NewTable
	sources map[sourceKey][]int
}

type key struct {
	tuple packet.Tuple
	zone  uint16
}

type ref struct {
	flow  int
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
	t := &Table{Flows: flows, index: make(map[key]ref, 2*len(flows)), sources: map[sourceKey][]int{}}
	for i := range flows {
		f := &flows[i]
		original, reply := keys(f)
		t.index[original] = ref{i, false}
		t.index[reply] = ref{i, true}
		s := bySource(&f.Original, f.Zone)
		t.sources[s] = append(t.sources[s], i)
	}
	return t
}

// keys are what a flow's packets are found by in both directions: the zone may count in one of them only (nf_ct_zone_id).
func keys(f *packet.Flow) (original, reply key) {
	original, reply = key{f.Original, f.Zone}, key{f.Reply, f.Zone}
	switch f.ZoneOnly {
	case packet.ZoneOriginal:
		reply.zone = 0
	case packet.ZoneReply:
		original.zone = 0
	}
	return original, reply
}

func bySource(t *packet.Tuple, zone uint16) sourceKey {
	return sourceKey{t.Protocol, t.Source, t.SourcePort, zone}
}

// identity is a packet's tuple as conntrack knows it: without fields that its protocol does not have.
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
