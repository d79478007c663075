package netfilter

import (
	"net/netip"

	"packetwalk.dev/internal/model/packet"
)

// Statement is one test or one effect of a rule. Its String is its meaning in plain words, for example "destination in 10.0.0.0/16".
type Statement interface {
	// Eval tests or changes the packet. Break means that the rule does not apply; Continue goes on with the rule's next statement.
	Eval(c *Context) Verdict
	String() string
}

// Effect is a statement that does something. Statements without it are tests: their Eval changes nothing and answers Continue or Break
// only, so that the evaluation may try the tests in front of a rule's first effect in any order, and more than once.
type Effect interface {
	Statement
	Effect() EffectKind
}

// EffectKind is what an effect can do.
type EffectKind uint8

// The kinds of effects.
const (
	NoEffect EffectKind = iota // nothing that a walk sees: a log, a counter
	Modifies                   // the packet, its marks or its flow, whatever else
	Decides                    // gives a verdict, and changes nothing
)

// KeyedTest is a test that can hold only where a field of the packet, under a mask, has one of a few values. The index of a chain finds
// rules by the keys of the tests in front of their first effect.
type KeyedTest interface {
	Statement
	// Key returns false where there is no such field. The values are masked.
	Key() (Key, []Value, bool)
}

// VerdictKind is what a statement, a rule or a chain decides.
type VerdictKind uint8

// The verdicts.
const (
	Continue VerdictKind = iota // with the next statement or rule
	Break                       // the rule does not apply
	Accept                      // the packet leaves this hook's chain; later chains still see it
	Drop
	Reject // dropped, with an answer to the sender
	Return // to the calling chain; at a base chain's top, its policy
	Jump
	Goto
	Stolen    // taken by a local answer (arpreply)
	Undecided // the outcome is unknown: an unknown target, the reader of a queue
)

// String returns the verdict's name.
func (k VerdictKind) String() string {
	return [...]string{"continue", "break", "accept", "drop", "reject", "return", "jump", "goto", "stolen", "unknown"}[k]
}

// Verdict is a decision with what belongs to it.
type Verdict struct {
	Kind  VerdictKind
	Chain *Chain // Jump and Goto
	// Element is the element of a verdict map that has the verdict; nil for a rule's own.
	Element *Element
	Detail  string // Reject: what with ("tcp-reset", "icmp-port-unreachable"); Stolen: by what; Undecided: why
}

// Context is one packet at one hook of one machine, and what evaluation needs from around it.
type Context struct {
	Packet  *packet.Packet
	Family  Family // IPv4, IPv6, Bridge or ARP: of the packet at this hook
	Hook    Hook
	Chain   *Chain // that is being evaluated, Rule too
	Rule    *Rule
	Host    Host
	Chooser Chooser
	// Translate makes a binding for the packet's flow and changes the packet; nil outside nat chains.
	Translate func(packet.Translation) Verdict
	// Visits collects what was met. EveryRule adds the rules that did not apply; it goes with the plain evaluation, without the index.
	Visits    []Visit
	EveryRule bool
	// OpenRules adds rules that do nothing to the packet and for which it is unknown whether they applied; the verdict is Break.
	OpenRules bool
	// AskedOwner tells that a rule looked at the packet's owner, or its group, where that is assumed (packet.Local.AssumedOwner).
	AskedOwner bool
	// Unshown collects the partial chains that were evaluated.
	Unshown []*Chain

	choices   int  // made by the present rule
	probing   bool // tests are tried without asking: uncertain then tells that one would have asked
	uncertain bool
}

// Visit is one rule, or the end of a chain, that the packet met.
type Visit struct {
	Chain   *Chain
	Rule    *Rule // nil at the end of a chain: the verdict is its policy or Return
	Verdict Verdict
	// Failed is the statement that did not hold, for rules that did not apply (Verdict.Kind is Break); nil otherwise. Without EveryRule
	// there are such visits only of rules (of nft) that changed the packet before they failed.
	Failed  Statement
	Changes []packet.Change
	After   *packet.Packet // as the rule left it; nil where it changed nothing
	// Choices are the picks, among those of the walk, that this rule asked for: how many.
	Choices int
}

// Chooser decides what cannot be computed. The walk enumerates the answers.
type Chooser interface {
	// Choose returns the index of one of the options.
	Choose(Choice) int
}

// ChoiceKind tells why something cannot be computed.
type ChoiceKind uint8

// The kinds of choices. Weights are exact for Random, Hash and Counter, and not known for the others.
const (
	Random  ChoiceKind = iota // anew for every packet that asks: statistic, numgen random
	Hash                      // of the flow, the same for every packet of it: jhash, symhash, ECMP
	Counter                   // in turn: statistic nth, numgen inc
	History                   // depends on what happened before: limit, recent, a meter
	Unknown                   // a construct, a field or a state of the machine that is not known
)

// String returns the kind's name.
func (k ChoiceKind) String() string {
	return [...]string{"random", "hash", "counter", "history", "unknown"}[k]
}

// Choice is a question with more than one possible answer.
type Choice struct {
	Kind  ChoiceKind
	Chain *Chain // whose rule asks; nil outside rules
	Rule  *Rule
	// About is the statement that asks, with the values of the packet that it asks about: two choices that are deeply equal here ask the
	// same.
	About   any
	What    string // the same in words: `statistic mode random probability 0.5`
	Options []Option
	// Interface is the test where the packet's interface is unknown, else nil: what such tests say depends on each other.
	Interface *MatchInterface
}

// Option is one answer.
type Option struct {
	Label  string // "matches", "does not match", an address
	Weight uint64 // of the sum of all; 0 in every option where it is not known
}

// Host is what rules can ask about the machine. The second result is false where the answer is not known.
type Host interface {
	// IPSet finds a set of ipset(8).
	IPSet(name string) (*Set, bool)
	// Recent finds a list of recent addresses, which the walk's packets may change.
	Recent(name string) (RecentList, bool)
	// AddressType is the kind of an address in the machine's routing tables; link restricts it to an interface, "" does not.
	AddressType(a netip.Addr, link string) (AddressType, bool)
	// Route looks up where a packet to Destination goes; rpfilter and nft's fib ask for the way back, with the ends the other way round.
	Route(q RouteQuery) (RouteAnswer, bool)
	// Link tells the numbers of an interface.
	Link(name string) (Link, bool)
}

// AddressType is a type of address as addrtype and fib see it (RTN_…, include/uapi/linux/rtnetlink.h).
type AddressType uint8

// The address types.
const (
	Unspec AddressType = iota
	UnicastAddress
	LocalAddress
	BroadcastAddress
	AnycastAddress
	MulticastAddress
	BlackholeAddress
	UnreachableAddress
	ProhibitAddress
)

// RouteQuery asks for a route.
type RouteQuery struct {
	Source, Destination netip.Addr
	In                  string // interface it comes in by; "" for none
	Mark                uint32
	Back                bool // asked for the interface that the packet came in by alone
}

// RouteAnswer is the route's type and its interface.
type RouteAnswer struct {
	Type AddressType
	Link string
	Ways []Option // the next hops of a multipath route by their interfaces, instead of Link
	Back bool     // the interface is the packet's own, whichever that is
}

// Link is an interface as rules see it.
type Link struct {
	Index, Group int
	Type         uint16 // ARPHRD_…
	Kind         string // "veth", "bridge", …
	Master       string // the bridge that it is a port of; ""
	MAC          packet.MAC
}
