package conntrack

import "packetwalk.dev/internal/packet"

// Settings are the sysctls (net.netfilter.…) that change what conntrack makes of a packet.
type Settings struct {
	TCPLoose   bool // nf_conntrack_tcp_loose: pick up connections in their middle; on by default
	TCPLiberal bool // nf_conntrack_tcp_be_liberal
	// LocalPorts is net.ipv4.ip_local_port_range.
	LocalPorts [2]uint16
}

// Table is one namespace's flows as they were when its state was taken. It is not changed by a walk: that works on a View.
type Table struct {
	Flows []packet.Flow
	index map[key][]ref // made by NewTable
}

type key struct {
	tuple packet.Tuple
	zone  uint16
}

type ref struct {
	flow  int
	reply bool
}
