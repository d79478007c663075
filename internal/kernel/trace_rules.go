package kernel

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/model/packet"
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
	var rules, repeats [][]nftExpr
	for _, t := range tuples {
		layout, err := layoutOf(t)
		if err != nil {
			return err
		}
		rules = append(rules, append(exprs(layout.packets(t)), startTracing...))
	}
	for _, t := range about {
		layout, err := layoutOf(t)
		if err != nil {
			return err
		}
		rules = append(rules, append(exprs(layout.errors(t)), startTracing...))
		if t.Protocol == packet.TCP && t.Destination.IsValid() {
			repeats = append(repeats, append(exprs(layout.packets(t)), dropRepeats...))
		}
	}
	if len(rules) == 0 {
		return errors.New("no packets to trace were named")
	}
	batch := []netlink.Message{nfnlMessage(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.NFNL_SUBSYS_NFTABLES, nil)}
	for _, family := range traceFamilies {
		chains := map[string][][]nftExpr{"prerouting": rules, "output": rules}
		if family == unix.NFPROTO_INET { // a bridge sends one packet several times when it floods it
			chains["output"] = append(repeats, rules...)
		}
		messages, err := traceTable(family, table, chains)
		if err != nil {
			return err
		}
		batch = append(batch, messages...)
	}
	last := &batch[len(batch)-1]
	last.Header.Flags |= netlink.Acknowledge
	batch = append(batch, nfnlMessage(unix.NFNL_MSG_BATCH_END, 0, unix.NFNL_SUBSYS_NFTABLES, nil))
	if err := commit(c, batch); err != nil {
		return fmt.Errorf("add the rules that switch tracing on: %w (needs root, nf_tables and Linux 5.12)", err)
	}
	return nil
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
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	_, err := c.Receive()
	return err
}

func nfnlMessage(kind netlink.HeaderType, family uint8, resource uint16, attributes []byte) netlink.Message {
	data := []byte{family, unix.NFNETLINK_V0, byte(resource >> 8), byte(resource)}
	return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request}, Data: append(data, attributes...)}
}

func nftMessage(kind, family uint8, attributes attrs) (netlink.Message, error) {
	b, err := attributes.encode()
	m := nfnlMessage(netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8|uint16(kind)), family, 0, b)
	m.Header.Flags |= netlink.Create
	return m, err
}

// traceTable makes a table with chains of rules, by the names of traceHooks.
func traceTable(family uint8, table string, rules map[string][][]nftExpr) ([]netlink.Message, error) {
	var messages []netlink.Message
	var errs []error
	add := func(kind uint8, flags netlink.HeaderFlags, a attrs) {
		m, err := nftMessage(kind, family, a)
		m.Header.Flags |= flags
		messages, errs = append(messages, m), append(errs, err)
	}
	add(unix.NFT_MSG_NEWTABLE, netlink.Excl, attrs{{unix.NFTA_TABLE_NAME, table}, {unix.NFTA_TABLE_FLAGS, uint32(nftTableOwner)}})
	for chain, hook := range traceHooks {
		add(unix.NFT_MSG_NEWCHAIN, 0, attrs{
			{unix.NFTA_CHAIN_TABLE, table}, {unix.NFTA_CHAIN_NAME, chain}, {unix.NFTA_CHAIN_TYPE, "filter"},
			{unix.NFTA_CHAIN_HOOK, attrs{{unix.NFTA_HOOK_HOOKNUM, hook}, {unix.NFTA_HOOK_PRIORITY, int32(tracePriority)}}},
		})
		for _, rule := range rules[chain] {
			add(unix.NFT_MSG_NEWRULE, netlink.Append, attrs{
				{unix.NFTA_RULE_TABLE, table}, {unix.NFTA_RULE_CHAIN, chain}, {unix.NFTA_RULE_EXPRESSIONS, exprList(rule)},
			})
		}
	}
	return messages, errors.Join(errs...)
}

// nftTableOwner is NFT_TABLE_F_OWNER: the kernel removes the table when the socket that made it is closed.
const nftTableOwner = 0x2

// exprs are the expressions of a rule that the checks' packets match.
func exprs(checks []check) (all []nftExpr) {
	for _, c := range checks {
		switch c.at {
		case atFamily:
			all = append(all, meta(unix.NFT_META_PROTOCOL))
		case atProtocol:
			all = append(all, meta(unix.NFT_META_L4PROTO))
		case atNetwork:
			all = append(all, load(unix.NFT_PAYLOAD_NETWORK_HEADER, c.offset, uint32(len(c.value))))
		case atTransport:
			all = append(all, load(unix.NFT_PAYLOAD_TRANSPORT_HEADER, c.offset, uint32(len(c.value))))
		}
		if c.op == hasBit {
			all = append(all, mask(c.value[0]))
			c.value = []byte{0}
		}
		all = append(all, compare(uint32(c.op), c.value))
	}
	return all
}

// startTracing is "meta nftrace set 1 accept": accept, so that the rules that follow do not match once more.
var startTracing = []nftExpr{
	{"immediate", attrs{{unix.NFTA_IMMEDIATE_DREG, uint32(unix.NFT_REG_1)},
		{unix.NFTA_IMMEDIATE_DATA, attrs{{unix.NFTA_DATA_VALUE, []byte{1}}}}}},
	{"meta", attrs{{unix.NFTA_META_KEY, uint32(unix.NFT_META_NFTRACE)}, {unix.NFTA_META_SREG, uint32(unix.NFT_REG_1)}}},
	{"immediate", attrs{{unix.NFTA_IMMEDIATE_DREG, uint32(unix.NFT_REG_VERDICT)},
		{unix.NFTA_IMMEDIATE_DATA, attrs{{unix.NFTA_DATA_VERDICT, attrs{{unix.NFTA_VERDICT_CODE, uint32(1)}}}}}}},
}

// dropRepeats is "tcp flags & syn != 0 limit rate over 1/hour burst 1 packets drop": TCP repeats a SYN after a second, and what a repeated
// one meets is not what the first one met.
var dropRepeats = []nftExpr{
	load(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1), mask(byte(packet.SYN)), compare(unix.NFT_CMP_NEQ, []byte{0}),
	{"limit", attrs{
		{unix.NFTA_LIMIT_RATE, binary.BigEndian.AppendUint64(nil, 1)}, {unix.NFTA_LIMIT_UNIT, binary.BigEndian.AppendUint64(nil, 3600)},
		{unix.NFTA_LIMIT_BURST, uint32(1)}, {unix.NFTA_LIMIT_TYPE, uint32(unix.NFT_LIMIT_PKTS)},
		{unix.NFTA_LIMIT_FLAGS, uint32(unix.NFT_LIMIT_F_INV)},
	}},
	{"immediate", attrs{{unix.NFTA_IMMEDIATE_DREG, uint32(unix.NFT_REG_VERDICT)},
		{unix.NFTA_IMMEDIATE_DATA, attrs{{unix.NFTA_DATA_VERDICT, attrs{{unix.NFTA_VERDICT_CODE, uint32(0)}}}}}}},
}

// nftExpr is one expression of an nf_tables rule: its name and attributes. All of them use register 1.
type nftExpr struct {
	name string
	data attrs
}

func meta(key uint32) nftExpr {
	return nftExpr{"meta", attrs{{unix.NFTA_META_KEY, key}, {unix.NFTA_META_DREG, uint32(unix.NFT_REG_1)}}}
}

func load(base, offset, length uint32) nftExpr {
	return nftExpr{"payload", attrs{
		{unix.NFTA_PAYLOAD_DREG, uint32(unix.NFT_REG_1)}, {unix.NFTA_PAYLOAD_BASE, base},
		{unix.NFTA_PAYLOAD_OFFSET, offset}, {unix.NFTA_PAYLOAD_LEN, length},
	}}
}

func mask(bits byte) nftExpr {
	return nftExpr{"bitwise", attrs{
		{unix.NFTA_BITWISE_SREG, uint32(unix.NFT_REG_1)}, {unix.NFTA_BITWISE_DREG, uint32(unix.NFT_REG_1)}, {unix.NFTA_BITWISE_LEN, uint32(1)},
		{unix.NFTA_BITWISE_MASK, attrs{{unix.NFTA_DATA_VALUE, []byte{bits}}}}, {unix.NFTA_BITWISE_XOR, attrs{{unix.NFTA_DATA_VALUE, []byte{0}}}},
	}}
}

func compare(op uint32, value []byte) nftExpr {
	return nftExpr{"cmp", attrs{
		{unix.NFTA_CMP_SREG, uint32(unix.NFT_REG_1)}, {unix.NFTA_CMP_OP, op},
		{unix.NFTA_CMP_DATA, attrs{{unix.NFTA_DATA_VALUE, bytes.Clone(value)}}},
	}}
}

func exprList(rule []nftExpr) attrs {
	var list attrs
	for _, e := range rule {
		list = append(list, attr{unix.NFTA_LIST_ELEM, attrs{{unix.NFTA_EXPR_NAME, e.name}, {unix.NFTA_EXPR_DATA, e.data}}})
	}
	return list
}

// attrs are netlink attributes in nf_tables' byte order, which is the network's.
type attrs []attr

// attr has a value of type string (sent with a zero byte at its end), []byte, uint32, int32 or attrs (nested).
type attr struct {
	kind  uint16
	value any
}

func (a attrs) encode() ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	if err := a.encodeTo(ae); err != nil {
		return nil, err
	}
	return ae.Encode()
}

func (a attrs) encodeTo(ae *netlink.AttributeEncoder) error {
	ae.ByteOrder = binary.BigEndian
	for _, x := range a {
		switch v := x.value.(type) {
		case string:
			ae.String(x.kind, v)
		case []byte:
			ae.Bytes(x.kind, v)
		case uint32:
			ae.Uint32(x.kind, v)
		case int32:
			ae.Uint32(x.kind, uint32(v))
		case attrs:
			ae.Nested(x.kind, v.encodeTo)
		default:
			return fmt.Errorf("attribute %d has a value of type %T", x.kind, v)
		}
	}
	return nil
}
