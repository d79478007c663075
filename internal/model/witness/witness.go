// Package witness holds what a kernel says of packets: the answers to a probe, frames on links, traces of rules, and connections. And what
// a resolver says of a name.
package witness

import (
	"errors"
	"net/netip"
	"strings"

	"packetwalk.dev/internal/model/packet"
)

// Answer is what a probe's sender learnt.
type Answer string

// The answers.
const (
	Connected   Answer = "connected"   // TCP
	Answered    Answer = "answered"    // UDP, ICMP: a packet came back
	Refused     Answer = "refused"     // a TCP RST, or ICMP port unreachable
	Unreachable Answer = "unreachable" // another ICMP error, or no route here
	NotSent     Answer = "not sent"    // the kernel refused to send it (an OUTPUT rule dropped it, for example)
	TimedOut    Answer = "timed out"
)

// Result is what came of a probe.
type Result struct {
	Tuple  packet.Tuple // as the socket has it: its source is the address that the kernel chose
	Answer Answer
	ICMP   *ICMPError // where an ICMP error was the answer
	Err    error      // the socket's error; nil where it had none
}

// ICMPError is an error that a router or host sent back.
type ICMPError struct {
	From       netip.Addr
	Type, Code uint8
}

// ErrUnsendable says that no socket of the namespace can send such a packet.
var ErrUnsendable = errors.New("no socket can send it")

// CapturedPacket is one packet at one interface.
type CapturedPacket struct {
	Link      string        // the interface
	Bridge    bool          // the interface is a bridge: the packet is seen at its port, too
	Out       bool          // it leaves by the interface
	Packet    packet.Packet // its Cast is set; interfaces are not
	Transport []byte        // transport header and payload
	Label     uint32        // of its IP header: see [Label]
}

// PacketFilter chooses packets for a trace or a capture, as few of others' as can be: those that have the tuple, and of TCP those of them
// that make and refuse a connection, with SYN or RST. In a tuple an address that is the zero Addr, or its family's unspecified one, and a
// port that is the zero Port match any; ports that are spans match every number in them.
type PacketFilter struct {
	packet.Tuple
	// Payload is how the payload of a datagram begins, or of an ICMP query; none for any.
	Payload []byte
	// Carried is what a packet of VXLAN carries; nil for anything.
	Carried *packet.Tuple
}

// Filters choose by tuples alone.
func Filters(tuples ...packet.Tuple) []PacketFilter {
	filters := make([]PacketFilter, len(tuples))
	for i, t := range tuples {
		filters[i].Tuple = t
	}
	return filters
}

// Tuples returns those of filters, each once.
func Tuples(filters []PacketFilter) (tuples []packet.Tuple) {
	seen := map[packet.Tuple]bool{}
	for _, f := range filters {
		if !seen[f.Tuple] {
			seen[f.Tuple] = true
			tuples = append(tuples, f.Tuple)
		}
	}
	return tuples
}

// TraceKind tells what an event reports (enum nft_trace_types).
type TraceKind string

// The kinds. A TraceReturn is the end of a chain that was jumped to, without a rule that said so.
const (
	TraceEntered TraceKind = "entered" // the trace's own rule switched tracing on: the packet came into the namespace, or was sent in it
	TraceRule    TraceKind = "rule"
	TracePolicy  TraceKind = "policy"
	TraceReturn  TraceKind = "return"
)

// TraceEvent is one rule that matched, or one chain's end.
type TraceEvent struct {
	// ID is the same for all events of one packet buffer. The kernel reuses it, and gives a new one when the packet changes its input
	// interface (from a bridge's port to the bridge): see [GroupTrace].
	ID      uint32
	Family  string // of the table: "ip", "ip6", "inet", "bridge", "arp", "netdev"
	Table   string
	Chain   string
	Handle  uint64 // of the rule; 0 for TracePolicy and TraceReturn
	Kind    TraceKind
	Verdict string // "accept", "drop", "continue", "return", "jump", "goto", "stolen", "queue", "repeat", "break"
	Target  string // chain of a jump or goto
	Mark    uint32 // after the rule
	// Packet is as it was when the base chain was called; nil in all events of a base chain but the first. Its interfaces are not named.
	Packet *packet.Packet
	// Transport is the beginning of the transport header, as it was then: 20 bytes or less.
	Transport []byte
	Label     uint32 // of its IP header: see [Label]
}

// Traversal is one packet's way through one base chain and the chains it jumps to: what one call of a netfilter hook did.
type Traversal struct {
	Packet    packet.Packet // as the base chain got it; the zero Packet where the kernel did not say
	Transport []byte        // beginning of its transport header
	Events    []TraceEvent
}

// GroupTrace puts the events of one namespace, in the order in which they were read, into traversals, in the order of their first events.
// An event that has a packet begins one; those that follow with the same ID belong to it.
func GroupTrace(events []TraceEvent) []Traversal {
	var all []*Traversal
	open := map[uint32]*Traversal{}
	for _, e := range events {
		t := open[e.ID]
		if t == nil || e.Packet != nil {
			t = &Traversal{Transport: e.Transport}
			if e.Packet != nil {
				t.Packet = *e.Packet
			}
			open[e.ID] = t
			all = append(all, t)
		}
		t.Events = append(t.Events, e)
	}
	grouped := make([]Traversal, len(all))
	for i, t := range all {
		grouped[i] = *t
	}
	return grouped
}

// Flow is one connection that the kernel tracks: the tuple of its first packet, and the one that replies are expected to have.
type Flow struct {
	Protocol                      uint8 // IPPROTO_…
	Source, Destination           netip.AddrPort
	ReplySource, ReplyDestination netip.AddrPort
	Mark                          uint32
	Status                        uint32 // IPS_… bits, include/uapi/linux/netfilter/nf_conntrack_common.h
	TimeoutSeconds                uint32
	TCPState                      uint8 // TCP_CONNTRACK_…, include/uapi/linux/netfilter/nf_conntrack_tcp.h; 0 of other protocols
}

// TraceTable begins the names of the tables by which packets are traced.
const TraceTable = "packetwalk-trace-"

// IsTraceTable reports whether a table is one by which packets are traced: its rules are no part of what a namespace filters with.
func IsTraceTable(name string) bool { return strings.HasPrefix(name, TraceTable) }

// HostsFile is a Lookup's Server where the sender's hosts file has the addresses, and no name server was asked.
const HostsFile = "/etc/hosts"

// Lookup holds the addresses that a resolver found for a name; none where it has none or did not answer.
type Lookup struct {
	Name      string // whole, as it was asked for in the end: a search list may have completed it
	Addresses []netip.Addr
	More      int // further addresses
	// Server is the address of the name server, or the file, that has them; without addresses it is the first server that was asked.
	Server  string
	OverTCP bool // the resolver asks by TCP alone
	// Unanswered says which addresses are unknown, and why; "" where all questions were answered.
	Unanswered string
}
