package kernel

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
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
func addTraceRules(c *netlink.Conn, table string, tuples []packet.Tuple) error {
	var rules, repeats [][]nftExpr
	for _, t := range tuples {
		made, err := traceRules(t)
		if err != nil {
			return err
		}
		rules = append(rules, made...)
		if t.Protocol == packet.TCP {
			packets, _ := tupleExprs(t)
			repeats = append(repeats, append(packets, dropRepeats...))
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

// traceRules are the rules for packets with the tuple and for ICMP errors about them.
func traceRules(t packet.Tuple) ([][]nftExpr, error) {
	packets, err := tupleExprs(t)
	if err != nil {
		return nil, err
	}
	rules := [][]nftExpr{packets}
	if t.Source.IsValid() || t.Destination.IsValid() {
		rules = append(rules, errorExprs(t))
	}
	for i := range rules {
		rules[i] = append(rules[i], startTracing...)
	}
	return rules, nil
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

// ipLayout is where the fields of an IP header are, in bytes from its beginning.
type ipLayout struct {
	etherType                             packet.EtherType
	protocol, source, destination, length uint32
	icmp                                  packet.Protocol
	errorsLow, errorsHigh                 byte // ICMP types that are errors (RFC 792: 3, 4, 5, 11, 12; RFC 4443: below 128)
}

var (
	ipv4Layout = ipLayout{packet.EtherIPv4, 9, 12, 16, 20, packet.ICMP, 3, 12}
	ipv6Layout = ipLayout{packet.EtherIPv6, 6, 8, 24, 40, packet.ICMPv6, 1, 127}
)

func layoutOf(t packet.Tuple) (ipLayout, error) {
	source, destination := t.Source, t.Destination
	switch {
	case source.IsValid() && destination.IsValid() && source.Is4() != destination.Is4():
		return ipLayout{}, fmt.Errorf("%s: addresses of two families", t)
	case source.Is4() || destination.Is4(), !source.IsValid() && !destination.IsValid() && t.Protocol != packet.ICMPv6:
		return ipv4Layout, nil
	}
	return ipv6Layout, nil
}

func tupleExprs(t packet.Tuple) ([]nftExpr, error) {
	layout, err := layoutOf(t)
	if err != nil {
		return nil, err
	}
	e := beginExprs(layout, t.Protocol)
	e = append(e, addressExprs(unix.NFT_PAYLOAD_NETWORK_HEADER, layout.source, t.Source)...)
	e = append(e, addressExprs(unix.NFT_PAYLOAD_NETWORK_HEADER, layout.destination, t.Destination)...)
	e = append(e, portExprs(t, 0)...)
	switch t.Protocol {
	case packet.TCP:
		e = append(e, load(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1), mask(byte(packet.SYN|packet.RST)), compare(unix.NFT_CMP_NEQ, []byte{0}))
	case packet.ICMP, packet.ICMPv6:
		e = append(e, load(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1), compare(unix.NFT_CMP_EQ, []byte{t.Type}))
	}
	return e, nil
}

// errorExprs matches ICMP errors that quote a packet with the tuple. A quoted IPv4 header with options is not looked into.
func errorExprs(t packet.Tuple) []nftExpr {
	layout, _ := layoutOf(t)
	const quoted = 8 // where the quoted packet begins in an ICMP error
	const base = unix.NFT_PAYLOAD_TRANSPORT_HEADER
	e := append(beginExprs(layout, layout.icmp), load(base, 0, 1))
	e = append(e, compare(unix.NFT_CMP_GTE, []byte{layout.errorsLow}), compare(unix.NFT_CMP_LTE, []byte{layout.errorsHigh}))
	if layout.icmp == packet.ICMP {
		e = append(e, load(base, quoted, 1), compare(unix.NFT_CMP_EQ, []byte{0x45}))
	}
	e = append(e, load(base, quoted+layout.protocol, 1), compare(unix.NFT_CMP_EQ, []byte{byte(t.Protocol)}))
	e = append(e, addressExprs(base, quoted+layout.source, t.Source)...)
	e = append(e, addressExprs(base, quoted+layout.destination, t.Destination)...)
	return append(e, portExprs(t, quoted+layout.length)...)
}

func beginExprs(layout ipLayout, p packet.Protocol) []nftExpr {
	return []nftExpr{
		meta(unix.NFT_META_PROTOCOL), compare(unix.NFT_CMP_EQ, binary.BigEndian.AppendUint16(nil, uint16(layout.etherType))),
		meta(unix.NFT_META_L4PROTO), compare(unix.NFT_CMP_EQ, []byte{byte(p)}),
	}
}

func addressExprs(base, offset uint32, a netip.Addr) []nftExpr {
	if !a.IsValid() {
		return nil
	}
	b := a.AsSlice()
	return []nftExpr{load(base, offset, uint32(len(b))), compare(unix.NFT_CMP_EQ, b)}
}

// portExprs looks at the ports of a transport header that begins at offset, or at the identifier of an ICMP query.
func portExprs(t packet.Tuple, offset uint32) []nftExpr {
	switch {
	case t.Protocol.HasPorts():
		return append(spanExprs(offset, t.SourcePort), spanExprs(offset+2, t.DestinationPort)...)
	case t.Protocol == packet.ICMP || t.Protocol == packet.ICMPv6:
		return spanExprs(offset+4, t.SourcePort)
	}
	return nil
}

func spanExprs(offset uint32, p packet.Port) []nftExpr {
	low, high := p.Span()
	switch {
	case p == packet.Port{}:
		return nil
	case low == high:
		return []nftExpr{load(unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset, 2), compare(unix.NFT_CMP_EQ, binary.BigEndian.AppendUint16(nil, low))}
	}
	return []nftExpr{
		load(unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset, 2), compare(unix.NFT_CMP_GTE, binary.BigEndian.AppendUint16(nil, low)),
		compare(unix.NFT_CMP_LTE, binary.BigEndian.AppendUint16(nil, high)),
	}
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
