package conntrack

import "packetwalk.dev/internal/model/packet"

// The states of a TCP flow in the kernel's order (enum tcp_conntrack), by the names that conntrack(8) prints.
const (
	none = iota
	synSent
	synRecv
	established
	finWait
	closeWait
	lastAck
	timeWait
	closed
	synSent2
	ignore  // the packet may be one or the other: the state stays
	invalid // the packet is no part of the flow
)

var tcpNames = []string{"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE",
	"SYN_SENT2"}

// tcpTimeouts are the kernel's, in seconds, by state (tcp_timeouts, net/netfilter/nf_conntrack_proto_tcp.c).
var tcpTimeouts = []int{0, 120, 60, 432000, 120, 60, 30, 120, 10, 120}

// Kinds of segments (enum tcp_bit_set).
const (
	synSet = iota
	synAckSet
	finSet
	ackSet
	rstSet
	noneSet
)

// tcpNext are the next states by direction (original, reply), kind of segment and present state (tcp_conntracks,
// net/netfilter/nf_conntrack_proto_tcp.c). Sequence numbers, which the kernel looks at too, are not known here.
var tcpNext = [2][6][10]int{
	{
		synSet:    {synSent, synSent, ignore, ignore, ignore, ignore, ignore, synSent, synSent, synSent2},
		synAckSet: {invalid, invalid, synRecv, invalid, invalid, invalid, invalid, invalid, invalid, synRecv},
		finSet:    {invalid, invalid, finWait, finWait, lastAck, lastAck, lastAck, timeWait, closed, invalid},
		ackSet:    {established, invalid, established, established, closeWait, closeWait, timeWait, timeWait, closed, invalid},
		rstSet:    {invalid, closed, closed, closed, closed, closed, closed, closed, closed, closed},
		noneSet:   {invalid, invalid, invalid, invalid, invalid, invalid, invalid, invalid, invalid, invalid},
	},
	{
		synSet:    {invalid, synSent2, invalid, invalid, invalid, invalid, invalid, synSent, invalid, synSent2},
		synAckSet: {invalid, synRecv, ignore, ignore, ignore, ignore, ignore, ignore, ignore, synRecv},
		finSet:    {invalid, invalid, finWait, finWait, lastAck, lastAck, lastAck, timeWait, closed, invalid},
		ackSet:    {invalid, ignore, synRecv, established, closeWait, closeWait, timeWait, timeWait, closed, ignore},
		rstSet:    {invalid, closed, closed, closed, closed, closed, closed, closed, closed, closed},
		noneSet:   {invalid, invalid, invalid, invalid, invalid, invalid, invalid, invalid, invalid, invalid},
	},
}

// segment returns the kind of a segment, as get_conntrack_index does.
func segment(f packet.TCPFlags) int {
	switch {
	case f&packet.RST != 0:
		return rstSet
	case f&packet.SYN != 0 && f&packet.ACK != 0:
		return synAckSet
	case f&packet.SYN != 0:
		return synSet
	case f&packet.FIN != 0:
		return finSet
	case f&packet.ACK != 0:
		return ackSet
	}
	return noneSet
}

// valid reports whether a combination of flags passes tcp_error (tcp_valid_flags); PSH, ECE and CWR do not count.
func valid(f packet.TCPFlags) bool {
	switch f & (packet.FIN | packet.SYN | packet.RST | packet.ACK | packet.URG) {
	case packet.SYN, packet.SYN | packet.URG, packet.SYN | packet.ACK, packet.RST, packet.RST | packet.ACK, packet.FIN | packet.ACK,
		packet.FIN | packet.ACK | packet.URG, packet.ACK, packet.ACK | packet.URG:
		return true
	}
	return false
}

func tcpState(name string) int {
	for i, n := range tcpNames {
		if n == name {
			return i
		}
	}
	return established // not said: a flow that is there
}

// beginTCP gives a new flow its state (tcp_new): a SYN opens it, and with tcp_loose other segments make a flow that was there before.
func (v *View) beginTCP(f *packet.Flow, flags packet.TCPFlags) bool {
	next := tcpNext[0][segment(flags)][none]
	if !valid(flags) || next == invalid || next != synSent && !v.settings.TCPLoose {
		return false
	}
	set(f, next)
	return true
}

// reopens tells of a SYN for a flow that is over: the flow is forgotten and a new one made (nf_conntrack_tcp_packet, case
// TCP_CONNTRACK_SYN_SENT).
func reopens(e entry, flags packet.TCPFlags) bool {
	state := tcpState(e.flow.State)
	return state >= timeWait && state != synSent2 && tcpNext[direction(e.reply)][segment(flags)][state] == synSent
}

func direction(reply bool) int {
	if reply {
		return 1
	}
	return 0
}

// advance takes a flow to its next state. It returns false for a segment that is no part of the flow.
func (v *View) advance(e entry, flags packet.TCPFlags) bool {
	if !valid(flags) {
		return false
	}
	state := tcpState(e.flow.State)
	next := tcpNext[direction(e.reply)][segment(flags)][state]
	switch next {
	case invalid:
		return false
	case ignore:
		return true
	}
	if next == established && (state == synRecv || state == established) && e.flow.Status&packet.SeenReply != 0 {
		e.flow.Status |= packet.Assured
	}
	set(e.flow, next)
	return true
}

func set(f *packet.Flow, state int) {
	f.State, f.Timeout = tcpNames[state], tcpTimeouts[state]
}
