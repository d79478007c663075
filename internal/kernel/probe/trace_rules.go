package probe

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"packetwalk.dev/internal/model/witness"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/model/packet"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

func newTraceTable() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return witness.TraceTable + hex.EncodeToString(b[:])
}

// tracePriority is before every chain that the kernel's headers name: NF_IP_PRI_RAW_BEFORE_DEFRAG is -450, NF_BR_PRI_NAT_DST_BRIDGED -300.
const tracePriority = -500

const nfgenLen = 4 // struct nfgenmsg

// traceHooks are the places where a packet comes into the namespace: off a wire and out of a socket. Their numbers (NF_INET_PRE_ROUTING,
// NF_INET_LOCAL_OUT) are the same for the family bridge.
var traceHooks = map[string]uint32{"prerouting": 0, "output": 3}

// addTraceRules makes the tables that switch tracing on in one transaction, owned by the socket: for frames that never reach a hook of IP
// one more where the namespace has a bridge. Elsewhere the kernel would load its modules of bridges for it.
func addTraceRules(c *netlink.Conn, table string, filters []witness.PacketFilter, about []packet.Tuple, bridges bool) ([]nf.Table, error) {
	if len(filters)+len(about) == 0 {
		return nil, errors.New("no packets to trace were named")
	}
	rules := guards(filters, about)
	var repeats []nf.Rule
	for _, f := range filters {
		layout, err := layoutOf(f.Tuple)
		if err != nil {
			return nil, err
		}
		checks, err := layout.packets(f)
		if err != nil {
			return nil, err
		}
		rules = append(rules, live("traces its packet", checks, startTracing))
	}
	for _, t := range about {
		layout, err := layoutOf(t)
		if err != nil {
			return nil, err
		}
		rules = append(rules, live("traces errors about it", layout.errors(t), startTracing))
		if ofOneConnection(t) {
			checks, _ := layout.packets(witness.PacketFilter{Tuple: t}) // there is nothing carried that could be wrong
			repeats = append(repeats, live("its SYN leaves once", checks, dropRepeats))
		}
	}
	tables := []nf.Table{{Family: unix.NFPROTO_INET, Name: table}}
	messages := traceTable(tables[0], map[string][]nf.Rule{"prerouting": rules, "output": append(repeats, rules...)})
	if bridges { // a bridge sends one packet several times when it floods it
		tables = append(tables, nf.Table{Family: unix.NFPROTO_BRIDGE, Name: table})
		messages = append(messages, traceTable(tables[1], map[string][]nf.Rule{"prerouting": rules, "output": rules})...)
	}
	if err := send(c, messages); err != nil {
		return nil, fmt.Errorf("add the rules that switch tracing on: %w (needs root, nf_tables and Linux 5.12; 'packetwalk doctor' tries it)", err)
	}
	return tables, nil
}

// deleteTables deletes the tables that addTraceRules made.
func deleteTables(c *netlink.Conn, tables []nf.Table) error {
	var messages []netlink.Message
	for _, t := range tables {
		messages = append(messages, t.Delete())
	}
	return send(c, messages)
}

// send sends the messages as one transaction and waits 10 seconds at most for the kernel's answer.
func send(c *netlink.Conn, messages []netlink.Message) error {
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	return ruleset.SendBatch(c, nf.Batch(messages, 0))
}

// guards let at once pass what no filter chooses: every packet of the namespace comes by, and there may be hundreds of filters.
func guards(filters []witness.PacketFilter, about []packet.Tuple) []nf.Rule {
	protocols := []packet.Protocol{packet.ICMP, packet.ICMPv6}
	for _, t := range slices.Concat(witness.Tuples(filters), about) {
		if !slices.Contains(protocols, t.Protocol) {
			protocols = append(protocols, t.Protocol)
		}
	}
	others := []nf.Expr{nf.Meta(unix.NFT_META_L4PROTO, 0)}
	for _, p := range protocols {
		others = append(others, nf.Compare(unix.NFT_CMP_NEQ, 0, []byte{byte(p)}))
	}
	pass := nf.Verdict(nf.Accept, "")
	rules := []nf.Rule{live("not its protocol", nil, append(others, pass))}
	if slices.Contains(protocols, packet.TCP) {
		rules = append(rules, live("no first segment of a connection", nil, []nf.Expr{
			nf.Meta(unix.NFT_META_L4PROTO, 0), nf.Compare(unix.NFT_CMP_EQ, 0, []byte{byte(packet.TCP)}),
			nf.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1, 0), nf.Bits(0, []byte{byte(packet.SYN | packet.RST)}, []byte{0}),
			nf.Compare(unix.NFT_CMP_EQ, 0, []byte{0}), pass,
		}))
	}
	return rules
}

// ofOneConnection tells of tuples that only one connection's packets have. Those with a port out of many others' have, too, and what drops
// anything must not meet them.
func ofOneConnection(t packet.Tuple) bool {
	exact := func(p packet.Port) bool { return p.Known() && p.Number != 0 }
	return t.Protocol == packet.TCP && t.Destination.IsValid() && exact(t.SourcePort) && exact(t.DestinationPort)
}

// live returns a rule, which says to whoever lists it what it is there for.
func live(purpose string, matches []check, then []nf.Expr) nf.Rule {
	return nf.Rule{Comment: "packetwalk walk --live: " + purpose, Exprs: append(exprs(matches), then...)}
}

// traceTable makes a table with chains of rules, by the names of traceHooks.
func traceTable(t nf.Table, rules map[string][]nf.Rule) []netlink.Message {
	messages := []netlink.Message{t.MakeOwned()}
	for name, hook := range traceHooks {
		c := nf.Chain{Name: name, Base: &nf.Base{Type: "filter", Hook: hook, Priority: tracePriority}, Rules: rules[name]}
		messages = append(append(messages, t.MakeChain(&c)), t.AddRules(&c)...)
	}
	return messages
}

// exprs returns the expressions of a rule that the checks' packets match.
func exprs(checks []check) (all []nf.Expr) {
	for _, c := range checks {
		switch c.at {
		case atFamily:
			all = append(all, nf.Meta(unix.NFT_META_PROTOCOL, 0))
		case atProtocol:
			all = append(all, nf.Meta(unix.NFT_META_L4PROTO, 0))
		case atNetwork:
			all = append(all, nf.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, c.offset, uint32(len(c.value)), 0))
		case atTransport:
			all = append(all, nf.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, c.offset, uint32(len(c.value)), 0))
		}
		if c.op == hasBit {
			all = append(all, nf.Bits(0, c.value, []byte{0}))
			c.value = []byte{0}
		}
		all = append(all, nf.Compare(uint32(c.op), 0, c.value))
	}
	return all
}

// startTracing is "limit rate 500/second burst 500 packets meta nftrace set 1 accept": the kernel writes a message for each rule that a
// traced packet meets, so that of a flood of others' packets that look like the probe's not all are; accept, so that the rules that follow
// do not match once more.
var startTracing = []nf.Expr{
	limit(500, time.Second, 500, 0), nf.Load([]byte{1}, 0), nf.SetMeta(unix.NFT_META_NFTRACE, 0), nf.Verdict(nf.Accept, ""),
}

func limit(rate uint64, per time.Duration, burst, flags uint32) nf.Expr {
	return nf.Expr{Name: "limit", Data: nf.Attrs{
		{Kind: unix.NFTA_LIMIT_RATE, Value: rate}, {Kind: unix.NFTA_LIMIT_UNIT, Value: uint64(per / time.Second)},
		{Kind: unix.NFTA_LIMIT_BURST, Value: burst}, {Kind: unix.NFTA_LIMIT_TYPE, Value: uint32(unix.NFT_LIMIT_PKTS)},
		{Kind: unix.NFTA_LIMIT_FLAGS, Value: flags},
	}}
}

// dropRepeats is "tcp flags & syn != 0 limit rate over 1/hour burst 1 packets drop": TCP repeats a SYN after a second, and what a repeated
// one meets is not what the first one met.
var dropRepeats = []nf.Expr{
	nf.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1, 0), nf.Bits(0, []byte{byte(packet.SYN)}, []byte{0}),
	nf.Compare(unix.NFT_CMP_NEQ, 0, []byte{0}),
	limit(1, time.Hour, 1, unix.NFT_LIMIT_F_INV),
	nf.Verdict(nf.Drop, ""),
}
