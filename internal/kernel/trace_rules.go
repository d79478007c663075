package kernel

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/model/packet"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// traceTablePrefix begins the names of the tables that switch tracing on.
const traceTablePrefix = "packetwalk-trace-"

// IsTraceTable tells whether a table's name is that of a trace: its rules are no part of what the namespace filters with.
func IsTraceTable(name string) bool { return strings.HasPrefix(name, traceTablePrefix) }

func newTraceTable() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return traceTablePrefix + hex.EncodeToString(b[:])
}

// tracePriority is before every chain that the kernel's headers name: NF_IP_PRI_RAW_BEFORE_DEFRAG is -450, NF_BR_PRI_NAT_DST_BRIDGED -300.
const tracePriority = -500

const nfgenLen = 4 // struct nfgenmsg

// traceFamilies are the families of the tables: bridge for frames that never reach a hook of IP.
var traceFamilies = []uint8{unix.NFPROTO_INET, unix.NFPROTO_BRIDGE}

// traceHooks are the places where a packet comes into the namespace: off a wire and out of a socket. Their numbers (NF_INET_PRE_ROUTING,
// NF_INET_LOCAL_OUT) are the same for the family bridge.
var traceHooks = map[string]uint32{"prerouting": 0, "output": 3}

// addTraceRules makes the tables that switch tracing on in one transaction, owned by the socket.
func addTraceRules(c *netlink.Conn, table string, tuples, about []packet.Tuple) error {
	var rules, repeats []nf.Rule
	for _, t := range tuples {
		layout, err := layoutOf(t)
		if err != nil {
			return err
		}
		rules = append(rules, live("traces its packet", layout.packets(t), startTracing))
	}
	for _, t := range about {
		layout, err := layoutOf(t)
		if err != nil {
			return err
		}
		rules = append(rules, live("traces errors about it", layout.errors(t), startTracing))
		if ofOneConnection(t) {
			repeats = append(repeats, live("its SYN leaves once", layout.packets(t), dropRepeats))
		}
	}
	if len(rules) == 0 {
		return errors.New("no packets to trace were named")
	}
	var messages []netlink.Message
	for _, family := range traceFamilies {
		chains := map[string][]nf.Rule{"prerouting": rules, "output": rules}
		if family == unix.NFPROTO_INET { // a bridge sends one packet several times when it floods it
			chains["output"] = append(repeats, rules...)
		}
		messages = append(messages, traceTable(family, table, chains)...)
	}
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if err := commit(c, nf.Batch(messages, 0)); err != nil {
		return fmt.Errorf("add the rules that switch tracing on: %w (needs root, nf_tables and Linux 5.12)", err)
	}
	return nil
}

// ofOneConnection tells of tuples that only one connection's packets have. Those with a port out of many others' have, too, and what drops
// anything must not meet them.
func ofOneConnection(t packet.Tuple) bool {
	exact := func(p packet.Port) bool { return p.Known() && p.Number != 0 }
	return t.Protocol == packet.TCP && t.Destination.IsValid() && exact(t.SourcePort) && exact(t.DestinationPort)
}

// live is a rule, which says to whoever lists it what it is there for.
func live(purpose string, matches []check, then []nf.Expr) nf.Rule {
	return nf.Rule{Comment: "packetwalk walk --live: " + purpose, Exprs: append(exprs(matches), then...)}
}

// commit sends a batch and waits for the answer to its last message, or the first error.
func commit(c *netlink.Conn, batch []netlink.Message) error {
	size := 0
	for _, m := range batch {
		size += len(m.Data) + 16
	}
	if err := c.SetWriteBuffer(max(size*2, 1<<16)); err != nil {
		return err
	}
	if _, err := c.SendMessages(batch); err != nil {
		return err
	}
	_, err := c.Receive()
	return err
}

// traceTable makes a table with chains of rules, by the names of traceHooks.
func traceTable(family uint8, table string, rules map[string][]nf.Rule) []netlink.Message {
	t := nf.Table{Family: family, Name: table}
	messages := []netlink.Message{t.MakeOwned()}
	for name, hook := range traceHooks {
		c := nf.Chain{Name: name, Base: &nf.Base{Type: "filter", Hook: hook, Priority: tracePriority}, Rules: rules[name]}
		messages = append(append(messages, t.MakeChain(&c)), t.AddRules(&c)...)
	}
	return messages
}

// exprs are the expressions of a rule that the checks' packets match.
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

// startTracing is "meta nftrace set 1 accept": accept, so that the rules that follow do not match once more.
var startTracing = []nf.Expr{nf.Load([]byte{1}, 0), nf.SetMeta(unix.NFT_META_NFTRACE, 0), nf.Verdict(nf.Accept, "")}

// dropRepeats is "tcp flags & syn != 0 limit rate over 1/hour burst 1 packets drop": TCP repeats a SYN after a second, and what a repeated
// one meets is not what the first one met.
var dropRepeats = []nf.Expr{
	nf.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1, 0), nf.Bits(0, []byte{byte(packet.SYN)}, []byte{0}),
	nf.Compare(unix.NFT_CMP_NEQ, 0, []byte{0}),
	{Name: "limit", Data: nf.Attrs{
		{Kind: unix.NFTA_LIMIT_RATE, Value: uint64(1)}, {Kind: unix.NFTA_LIMIT_UNIT, Value: uint64(3600)},
		{Kind: unix.NFTA_LIMIT_BURST, Value: uint32(1)}, {Kind: unix.NFTA_LIMIT_TYPE, Value: uint32(unix.NFT_LIMIT_PKTS)},
		{Kind: unix.NFTA_LIMIT_FLAGS, Value: uint32(unix.NFT_LIMIT_F_INV)},
	}},
	nf.Verdict(nf.Drop, ""),
}
