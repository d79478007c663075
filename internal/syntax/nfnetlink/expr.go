package nfnetlink

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Expr is one expression of a rule: its name and attributes.
type Expr struct {
	Name string
	Data Attrs
}

// Reg is a register of 32 bits, the first of those that a value takes: 0 to 15.
type Reg uint32

func (r Reg) number() uint32 { return unix.NFT_REG32_00 + uint32(r) }

// exprList returns the list of a rule's expressions.
func exprList(rule []Expr) Attrs {
	var list Attrs
	for _, e := range rule {
		list = append(list, Attr{unix.NFTA_LIST_ELEM, Attrs{{unix.NFTA_EXPR_NAME, e.Name}, {unix.NFTA_EXPR_DATA, e.Data}}})
	}
	return list
}

func data(value []byte) Attrs { return Attrs{{unix.NFTA_DATA_VALUE, value}} }

// Native returns a number in the machine's byte order, as marks, states and drawn numbers are in registers.
func Native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// Meta loads what the kernel keeps beside the packet (NFT_META_…).
func Meta(key uint32, to Reg) Expr {
	return Expr{"meta", Attrs{{unix.NFTA_META_KEY, key}, {unix.NFTA_META_DREG, to.number()}}}
}

// SetMeta sets it.
func SetMeta(key uint32, from Reg) Expr {
	return Expr{"meta", Attrs{{unix.NFTA_META_KEY, key}, {unix.NFTA_META_SREG, from.number()}}}
}

// Conntrack loads a field of the packet's flow (NFT_CT_…) that has no direction.
func Conntrack(key uint32, to Reg) Expr {
	return Expr{"ct", Attrs{{unix.NFTA_CT_DREG, to.number()}, {unix.NFTA_CT_KEY, key}}}
}

// ConntrackOriginal loads a field of the packets that began the flow.
func ConntrackOriginal(key uint32, to Reg) Expr {
	return conntrackIn(0, key, to) // IP_CT_DIR_ORIGINAL
}

// ConntrackReply loads a field of the packets that answer.
func ConntrackReply(key uint32, to Reg) Expr {
	return conntrackIn(1, key, to) // IP_CT_DIR_REPLY
}

func conntrackIn(direction byte, key uint32, to Reg) Expr {
	e := Conntrack(key, to)
	e.Data = append(e.Data, Attr{unix.NFTA_CT_DIRECTION, []byte{direction}})
	return e
}

// Payload loads bytes of a header (NFT_PAYLOAD_NETWORK_HEADER, …).
func Payload(base, offset, length uint32, to Reg) Expr {
	return Expr{"payload", Attrs{
		{unix.NFTA_PAYLOAD_DREG, to.number()}, {unix.NFTA_PAYLOAD_BASE, base},
		{unix.NFTA_PAYLOAD_OFFSET, offset}, {unix.NFTA_PAYLOAD_LEN, length},
	}}
}

// AddressType loads the kind of route (unix.RTN_…) to the address that flags name (unix.NFTA_FIB_F_…).
func AddressType(flags uint32, to Reg) Expr {
	return Expr{"fib", Attrs{{unix.NFTA_FIB_DREG, to.number()}, {unix.NFTA_FIB_RESULT, uint32(unix.NFT_FIB_RESULT_ADDRTYPE)},
		{unix.NFTA_FIB_FLAGS, flags}}}
}

// Random draws a number below mod.
func Random(mod uint32, to Reg) Expr {
	return Expr{"numgen", Attrs{{unix.NFTA_NG_DREG, to.number()}, {unix.NFTA_NG_MODULUS, mod},
		{unix.NFTA_NG_TYPE, uint32(unix.NFT_NG_RANDOM)}}}
}

// Bits keeps the bits of a mask, then turns those of xor.
func Bits(reg Reg, mask, xor []byte) Expr {
	return Expr{"bitwise", Attrs{
		{unix.NFTA_BITWISE_SREG, reg.number()}, {unix.NFTA_BITWISE_DREG, reg.number()}, {unix.NFTA_BITWISE_LEN, uint32(len(mask))},
		{unix.NFTA_BITWISE_MASK, data(mask)}, {unix.NFTA_BITWISE_XOR, data(xor)},
	}}
}

// Compare goes on only if a value compares with another (unix.NFT_CMP_…).
func Compare(op uint32, reg Reg, value []byte) Expr {
	return Expr{"cmp", Attrs{{unix.NFTA_CMP_SREG, reg.number()}, {unix.NFTA_CMP_OP, op}, {unix.NFTA_CMP_DATA, data(value)}}}
}

// Load puts a value into a register.
func Load(value []byte, to Reg) Expr {
	return Expr{"immediate", Attrs{{unix.NFTA_IMMEDIATE_DREG, to.number()}, {unix.NFTA_IMMEDIATE_DATA, data(value)}}}
}

// In goes on only if a set has a key, NotIn only if it has not.
func In(set string, key Reg) Expr {
	return Expr{"lookup", Attrs{{unix.NFTA_LOOKUP_SET, set}, {unix.NFTA_LOOKUP_SREG, key.number()}}}
}

// NotIn returns In's opposite.
func NotIn(set string, key Reg) Expr {
	const inverted = 1 // NFT_LOOKUP_F_INV
	e := In(set, key)
	e.Data = append(e.Data, Attr{unix.NFTA_LOOKUP_FLAGS, uint32(inverted)})
	return e
}

// Find loads what a map has for a key, and goes on only if it has something.
func Find(set string, key, to Reg) Expr {
	e := In(set, key)
	e.Data = append(e.Data, Attr{unix.NFTA_LOOKUP_DREG, to.number()})
	return e
}

// Follow takes the verdict that a map has for a key.
func Follow(set string, key Reg) Expr {
	e := In(set, key)
	e.Data = append(e.Data, Attr{unix.NFTA_LOOKUP_DREG, uint32(unix.NFT_REG_VERDICT)})
	return e
}

// Remember adds what is in a register to a dynamic map under a key, for the map's time. What is there already keeps its value, and its time
// begins anew.
func Remember(set string, key, value Reg) Expr {
	return Expr{"dynset", Attrs{{unix.NFTA_DYNSET_SET_NAME, set}, {unix.NFTA_DYNSET_OP, uint32(unix.NFT_DYNSET_OP_UPDATE)},
		{unix.NFTA_DYNSET_SREG_KEY, key.number()}, {unix.NFTA_DYNSET_SREG_DATA, value.number()}}}
}

// Verdict ends the rule: Return, NFT_JUMP or NFT_GOTO with a chain, Accept or Drop.
func Verdict(code int32, chain string) Expr {
	return Expr{"immediate", Attrs{{unix.NFTA_IMMEDIATE_DREG, uint32(unix.NFT_REG_VERDICT)},
		{unix.NFTA_IMMEDIATE_DATA, verdict(code, chain)}}}
}

// Verdicts (include/uapi/linux/netfilter.h, and enum nft_verdicts of nf_tables.h).
const (
	Drop   int32 = 0
	Accept int32 = 1
	Jump   int32 = unix.NFT_JUMP
	Goto   int32 = unix.NFT_GOTO
	Return int32 = unix.NFT_RETURN
)

func verdict(code int32, chain string) Attrs {
	v := Attrs{{unix.NFTA_VERDICT_CODE, code}}
	if chain != "" {
		v = append(v, Attr{unix.NFTA_VERDICT_CHAIN, chain})
	}
	return Attrs{{unix.NFTA_DATA_VERDICT, v}}
}

// TranslateTo gives the flow the destination address and port of two registers.
func TranslateTo(family uint8, address, port Reg) Expr {
	return Expr{"nat", Attrs{{unix.NFTA_NAT_TYPE, uint32(unix.NFT_NAT_DNAT)}, {unix.NFTA_NAT_FAMILY, uint32(family)},
		{unix.NFTA_NAT_REG_ADDR_MIN, address.number()}, {unix.NFTA_NAT_REG_PROTO_MIN, port.number()}}}
}

// Masquerade gives the flow the source address of the link that it leaves by, and a random port.
func Masquerade() Expr {
	return Expr{"masq", Attrs{{unix.NFTA_MASQ_FLAGS, uint32(unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY)}}}
}

// Refuse answers with an ICMP error that the port cannot be reached.
func Refuse(family uint8) Expr {
	code := byte(3) // ICMP_PORT_UNREACH
	if family == unix.NFPROTO_IPV6 {
		code = 4 // ICMPV6_PORT_UNREACH
	}
	return Expr{"reject", Attrs{{unix.NFTA_REJECT_TYPE, uint32(unix.NFT_REJECT_ICMP_UNREACH)}, {unix.NFTA_REJECT_ICMP_CODE, []byte{code}}}}
}
