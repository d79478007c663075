package walk

import (
	"iter"
	"math/big"
	"reflect"
	"slices"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// Request is the packet to walk.
type Request struct {
	// Host is where it starts: the sender, or with Arrives a machine that it reaches.
	Host string
	// Packet has at least Protocol and Destination. Without a Source the sender's kernel chooses one, and a source port out of its range.
	Packet packet.Packet
	// Arrives is the interface by which the packet comes in from outside what is known ("" with In unknown); only with Forwarded.
	Arrives   string
	Forwarded bool // the packet was not made by Host: it came in
	// Echoes says that a program that gets a datagram answers with one of the same length.
	Echoes bool
	// OneWay leaves the reply out.
	OneWay bool
	// Flows are connections that hosts have beside those of their snapshots, by host.
	Flows map[string][]packet.Flow
	// Settled are connections as the kernel is known to have made them, by host: the ports that it chose are taken for those of the walk's
	// connections with the same first packet, which are ranges else.
	Settled map[string][]packet.Flow
	// Carriers are packets with which hosts are known to have carried the packet or its answer in VXLAN, by host: the ports that the kernel
	// chose are taken from them, which are ranges else.
	Carriers map[string][]Carrier
	// Early are base chains that hosts are known to have called, by host, in the order in which they did: they come first among those that
	// have the same priority at a hook.
	Early map[string][]Call
	// EveryRule notes rules that did not apply, too.
	EveryRule bool
	// OpenRules notes rules, too, that do nothing to the packet and for which it is unknown whether they applied (netfilter.OpenRule).
	OpenRules bool
	// Pin gives the answers to the first choices; the walk enumerates the rest.
	Pin []int
	// MaxOutcomes bounds the enumeration; 0 for DefaultMaxOutcomes.
	MaxOutcomes int
}

// DefaultMaxOutcomes is how many outcomes a walk enumerates before it says that there are more.
const DefaultMaxOutcomes = 4096

// maxSteps bounds the enumeration, too: packets that go round make many steps in every outcome.
const maxSteps = 100_000

// Result is every way the packet can go.
type Result struct {
	Request  Request
	Outcomes []Outcome
	// More says that there are more outcomes than were enumerated.
	More bool
	// Assumed are the things that had to be assumed because the snapshot does not know them, each once.
	Assumed []Assumption
	// Otherwise are outcomes where chains of the same priority, whose order is assumed, are called in the other order, one place of them
	// at a time: those in which something else becomes of the packet.
	Otherwise []Outcome
}

// Assumption is something that the snapshot does not know and how the walk went on.
type Assumption struct {
	Host string
	What string // "routes unknown; assuming the packet is forwarded"
	// Component is the part of the data path that it is about, as programs know it: "NetworkPolicy"; "" for no single one.
	Component string
	// Tied are the chains with the same priority whose order it is, which no snapshot has; zero for another assumption.
	Tied [2]ChainRef
	// Untraced says that no trace of the packet shows whether it holds: it is about other packets, or about who sends in its place.
	Untraced bool
}

// Outcome is one way.
type Outcome struct {
	// Probability is exact; nil where a choice on the way has no known weights.
	Probability *big.Rat
	Choices     []Decision
	There       []Step // the request
	End         End
	Back        []Step // the reply; nil where there is none
	BackEnd     *End   // what became of the reply
	// Unshown are the parts of hosts' states that the request met and that are not shown, or not shown whole: what the outcome says holds
	// as far as the rest shows. BackUnshown are those that the reply met.
	Unshown, BackUnshown []MissingState
	// Unread are the numbers of lines of a text that were not read and may change the outcome. It is not definite if there are some.
	Unread []int
}

// MissingState is a part of a host's state that is not shown, or a chain that is not shown whole.
type MissingState struct {
	Host  string
	Part  snapshot.Part    // "" for a chain
	Chain *netfilter.Chain // nil for a part
}

// Decision is a choice and the answer taken.
type Decision struct {
	netfilter.Choice
	Host   string
	Answer int
	Step   int // how many steps there were before, those of both ways counted: what was chosen shows in later ones
}

// Asks reports whether another choice asked the same: of the same rule on the same host, or of none, about the same values.
func (c *Decision) Asks(o *Decision) bool {
	return c.Host == o.Host && c.Rule == o.Rule && c.Kind == o.Kind && reflect.DeepEqual(c.About, o.About)
}

// Steps returns those of every outcome, there and back.
func (r *Result) Steps() iter.Seq[*Step] {
	return func(yield func(*Step) bool) {
		for i := range r.Outcomes {
			for s := range r.Outcomes[i].Steps() {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// Hosts returns the hosts that the packet or its answer came to in any outcome, sorted.
func (r *Result) Hosts() []string {
	var hosts []string
	for s := range r.Steps() {
		if len(hosts) == 0 || hosts[len(hosts)-1] != s.Host {
			hosts = append(hosts, s.Host)
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// Steps returns those of the way there, and of the way back.
func (o *Outcome) Steps() iter.Seq[*Step] {
	return func(yield func(*Step) bool) {
		for _, steps := range [...][]Step{o.There, o.Back} {
			for i := range steps {
				if !yield(&steps[i]) {
					return
				}
			}
		}
	}
}

// EndKind is how a packet's way ends.
type EndKind string

// The ends.
const (
	Delivered EndKind = "delivered" // to a socket or address of Host
	Left      EndKind = "left"      // the packet goes out of an interface whose other end is not in the snapshot
	Dropped   EndKind = "dropped"   // by a rule, a route, a check
	Rejected  EndKind = "rejected"  // dropped with an answer to the sender
	Undecided EndKind = "unknown"   // what becomes of the packet is unknown
	Looped    EndKind = "loop"      // it goes round and its TTL does not end that, or a chain jumps without end
)

// End is where a packet's way ended.
type End struct {
	Kind EndKind
	Host string
	// Packet is as it was at the end: its source is what the destination sees.
	Packet packet.Packet
	Why    string // in words; the last step has the rule
	// Listener is the socket that takes it, "" where none is known; Refused says that none does: none listens there, and a TCP RST
	// or ICMP port unreachable goes back; or no program waits for the answer, as Why says. Taken says that a socket which did not ask for
	// the answer takes it.
	Listener string
	owner    *snapshot.Owner // of the socket, where known
	owned    bool            // the reset that refuses it is a socket's
	Refused  bool
	Taken    bool
	Unsent   bool // the program gets an error at once: no packet was made
	// Disguise says which programs may show the process that takes the packet another source or destination than the packet's; "" for none.
	Disguise string
	// Link is the interface it left by (Left) or was delivered on.
	Link string
	// Forwarder is the machine outside the snapshot that gets the packet and forwards it (Left) or drops it.
	Forwarder string
	// Forgotten says that conntrack forgot the packet's connection here.
	Forgotten bool
	// Reject is what it was rejected with: "tcp-reset", "icmp-port-unreachable", …
	Reject string
	// Unread says that the packet gets to Host, whose state is not read (snapshot.UnreadError): Undecided.
	Unread bool
}

// Stage is what kind of step it is.
type Stage string

// The stages. Their steps have the fields named beside them.
const (
	Sent       Stage = "sent"     // by a socket of the host
	Received   Stage = "received" // on interface In
	Transmit   Stage = "transmitted"
	Tracked    Stage = "conntrack"  // looked up or made: Packet.Track
	Ruled      Stage = "rule"       // Visit
	Translated Stage = "translated" // by a binding that an earlier packet, or the rule before, made
	Routed     Stage = "routed"     // Route
	Bridged    Stage = "bridged"    // Bridge
	Resolved   Stage = "neighbour"  // Neighbour
	Checked    Stage = "checked"    // rp_filter, TTL, forwarding, martians
	Copy       Stage = "copied"     // Copied
	// A frame got into a packet of VXLAN, or out of it: Tunnel.
	Encapsulated Stage = "encapsulated"
	Decapsulated Stage = "decapsulated"
	Ended        Stage = "ended"
)

// Step is one thing that happened to the packet.
type Step struct {
	Host    string
	Stage   Stage
	Hook    netfilter.Hook
	Family  netfilter.Family
	Visit   *netfilter.Visit // Ruled
	Route   *fib.Answer      // Routed
	Bridge  *BridgeStep      // Bridged
	Resolve *ResolveStep     // Resolved
	Copied  *CopyPath        // Copy
	Tunnel  *TunnelStep      // Encapsulated, Decapsulated
	Packet  packet.Packet    // as it is after the step, with its flow; of Copy the copy as it is made
	Changes []packet.Change
	Why     string // in words, where the data does not say all
}

// Flow returns the packet's flow as it is after the step; nil where it is not tracked.
func (s *Step) Flow() *packet.Flow { return s.Packet.Track.Flow }

// BridgeStep is a bridge's decision.
type BridgeStep struct {
	Bridge string
	Ports  []string      // it goes out of; the bridge's own name for up the stack
	Entry  *fib.FDBEntry // that decided; nil for flooding
	Walked bool          // each copy of a flooded frame is walked up to its port
}

// CopyPath is the way of a copy of the packet: its steps and its end.
type CopyPath struct {
	Steps []Step
	End   End
}

// ResolveStep is how the next hop's link-layer address was found.
type ResolveStep struct {
	Link     string
	Address  string
	MAC      packet.MAC
	By       string // "neighbour entry", "asked", "FDB"
	Answerer string // host that answers
}
