package nfnetlink

import (
	"encoding/binary"
)

// Expr is one expression of a rule: its name and attributes.
type Expr struct {
	Name string
	Data Attrs
}

// Reg is a register of 32 bits, the first of those that a value takes: 0 to 15.
type Reg uint32

func (r Reg) number() uint32 { return reg32 + uint32(r) }

// exprList is the list of a rule's expressions.
func exprList(rule []Expr) Attrs {
	var list Attrs
	for _, e := range rule {
		list = append(list, Attr{attrListElement, Attrs{{attrExpressionName, e.Name}, {attrExpressionData, e.Data}}})
	}
	return list
}

func data(value []byte) Attrs { return Attrs{{attrDataValue, value}} }

// Native is a number in the machine's byte order, as marks, states and drawn numbers are in registers.
func Native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// Meta loads what the kernel keeps beside the packet (NFT_META_…).
func Meta(key uint32, to Reg) Expr {
	return Expr{"meta", Attrs{{attrMetaKey, key}, {attrMetaDreg, to.number()}}}
}

// SetMeta sets it.
func SetMeta(key uint32, from Reg) Expr {
	return Expr{"meta", Attrs{{attrMetaKey, key}, {attrMetaSreg, from.number()}}}
}

// Conntrack loads a field of the packet's flow (NFT_CT_…) that has no direction.
func Conntrack(key uint32, to Reg) Expr {
	return Expr{"ct", Attrs{{attrCtDreg, to.number()}, {attrCtKey, key}}}
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
	e.Data = append(e.Data, Attr{attrCtDirection, []byte{direction}})
	return e
}

// Payload loads bytes of a header (NFT_PAYLOAD_NETWORK_HEADER, …).
func Payload(base, offset, length uint32, to Reg) Expr {
	return Expr{"payload", Attrs{
		{attrPayloadDreg, to.number()}, {attrPayloadBase, base},
		{attrPayloadOffset, offset}, {attrPayloadLen, length},
	}}
}

// AddressType loads the kind of route ([RouteLocal], …) to the address that flags name ([FIBSource] or [FIBDestination]).
func AddressType(flags uint32, to Reg) Expr {
	return Expr{"fib", Attrs{{attrFIBDreg, to.number()}, {attrFIBResult, uint32(fibResultAddrtype)},
		{attrFIBFlags, flags}}}
}

// Random draws a number below mod.
func Random(mod uint32, to Reg) Expr {
	return Expr{"numgen", Attrs{{attrNumgenDreg, to.number()}, {attrNumgenModulus, mod},
		{attrNumgenType, uint32(numgenRandom)}}}
}

// Bits keeps the bits of a mask, then turns those of xor.
func Bits(reg Reg, mask, xor []byte) Expr {
	return Expr{"bitwise", Attrs{
		{attrBitwiseSreg, reg.number()}, {attrBitwiseDreg, reg.number()}, {attrBitwiseLen, uint32(len(mask))},
		{attrBitwiseMask, data(mask)}, {attrBitwiseXor, data(xor)},
	}}
}

// Compare goes on only if a value compares with another ([Equal] or [NotEqual]).
func Compare(op uint32, reg Reg, value []byte) Expr {
	return Expr{"cmp", Attrs{{attrCmpSreg, reg.number()}, {attrCmpOp, op}, {attrCmpData, data(value)}}}
}

// Load puts a value into a register.
func Load(value []byte, to Reg) Expr {
	return Expr{"immediate", Attrs{{attrImmediateDreg, to.number()}, {attrImmediateData, data(value)}}}
}

// In goes on only if a set has a key, NotIn only if it has not.
func In(set string, key Reg) Expr {
	return Expr{"lookup", Attrs{{attrLookupSet, set}, {attrLookupSreg, key.number()}}}
}

// NotIn is In's opposite.
func NotIn(set string, key Reg) Expr {
	const inverted = 1 // NFT_LOOKUP_F_INV
	e := In(set, key)
	e.Data = append(e.Data, Attr{attrLookupFlags, uint32(inverted)})
	return e
}

// Find loads what a map has for a key, and goes on only if it has something.
func Find(set string, key, to Reg) Expr {
	e := In(set, key)
	e.Data = append(e.Data, Attr{attrLookupDreg, to.number()})
	return e
}

// Follow takes the verdict that a map has for a key.
func Follow(set string, key Reg) Expr {
	e := In(set, key)
	e.Data = append(e.Data, Attr{attrLookupDreg, uint32(regVerdict)})
	return e
}

// Remember adds what is in a register to a dynamic map under a key, for the map's time. What is there already keeps its value, and its time
// begins anew.
func Remember(set string, key, value Reg) Expr {
	return Expr{"dynset", Attrs{{attrDynsetSetName, set}, {attrDynsetOp, uint32(dynsetUpdate)},
		{attrDynsetSregKey, key.number()}, {attrDynsetSregData, value.number()}}}
}

// Verdict ends the rule: Return, NFT_JUMP or NFT_GOTO with a chain, Accept or Drop.
func Verdict(code int32, chain string) Expr {
	return Expr{"immediate", Attrs{{attrImmediateDreg, uint32(regVerdict)},
		{attrImmediateData, verdict(code, chain)}}}
}

// Verdicts (include/uapi/linux/netfilter.h, and enum nft_verdicts of nf_tables.h).
const (
	Drop   int32 = 0
	Accept int32 = 1
	Jump   int32 = -3
	Goto   int32 = -4
	Return int32 = -5
)

func verdict(code int32, chain string) Attrs {
	v := Attrs{{attrVerdictCode, code}}
	if chain != "" {
		v = append(v, Attr{attrVerdictChain, chain})
	}
	return Attrs{{attrDataVerdict, v}}
}

// TranslateTo gives the flow the destination address and port of two registers.
func TranslateTo(family uint8, address, port Reg) Expr {
	return Expr{"nat", Attrs{{attrNATType, uint32(natDNAT)}, {attrNATFamily, uint32(family)},
		{attrNATRegAddrMin, address.number()}, {attrNATRegProtoMin, port.number()}}}
}

// Masquerade gives the flow the source address of the link that it leaves by, and a random port.
func Masquerade() Expr {
	return Expr{"masq", Attrs{{attrMasqFlags, uint32(natRandomFully)}}}
}

// Refuse answers with an ICMP error that the port cannot be reached.
func Refuse(family uint8) Expr {
	code := byte(3) // ICMP_PORT_UNREACH
	if family == IPv6 {
		code = 4 // ICMPV6_PORT_UNREACH
	}
	return Expr{"reject", Attrs{{attrRejectType, uint32(rejectICMP)}, {attrRejectICMPCode, []byte{code}}}}
}
