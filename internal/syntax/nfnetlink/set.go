package nfnetlink

import (
	"encoding/binary"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Set is a set, or a map: without its elements.
type Set struct {
	Name string
	Key  []Field
	Data []Field // of a map from values to values
	// Verdicts makes it a map to verdicts.
	Verdicts bool
	// Ranges lets elements be ranges, in each field by itself.
	Ranges bool
	// Timeout makes it one that rules add to, with at most Size elements; each goes when nothing has touched it for that long.
	Timeout time.Duration
	Size    uint32
	// TypeOf keeps the fields' expressions, by which nft lists a set that has fields without a type of their own.
	TypeOf bool
}

// Field is one field of a key or a value.
type Field struct {
	Type   uint32 // nft's number of the datatype (its include/datatype.h)
	Len    uint32 // in bytes; in a register it takes a multiple of four
	Native bool   // in the machine's byte order
	typeof typeOf // an expression of the type
}

// typeOf is an expression as nft keeps it with a set: the number of its kind, and its parameters.
type typeOf struct {
	kind       uint32
	parameters []uint32
}

// Kinds of expressions (enum expr_types of nft's include/expression.h).
const (
	kindPayload = 7
	kindMeta    = 9
	kindConcat  = 13
	kindNumgen  = 23
)

// Address returns the field for addresses of a family: those of destinations.
func Address(family uint8) Field {
	if family == unix.NFPROTO_IPV6 {
		return Field{8, 16, false, typeOf{kindPayload, []uint32{descIP6, 9}}}
	}
	return Field{7, 4, false, typeOf{kindPayload, []uint32{descIP, 12}}}
}

// Numbers of protocols (enum proto_desc_id of nft's include/proto.h).
const (
	descTH  = 11
	descIP  = 12
	descIP6 = 13
)

// Protocol returns the field for transport protocols.
func Protocol() Field { return Field{12, 1, false, typeOf{kindMeta, []uint32{unix.NFT_META_L4PROTO}}} }

// Port returns the field for ports: those of destinations.
func Port() Field {
	return Field{13, 2, false, typeOf{kindPayload, []uint32{descTH, 2}}}
}

// Slot returns the field for numbers drawn by Random.
func Slot() Field {
	return Field{4, 4, true, typeOf{kindNumgen, []uint32{unix.NFT_NG_RANDOM, 2, 0}}}
}

func widths(fields []Field) (total uint32) {
	for _, f := range fields {
		total += (f.Len + 3) &^ 3
	}
	return total
}

// types returns nft's number of a type: that of a concatenation has six bits for each field.
func types(fields []Field) (number uint32) {
	for _, f := range fields {
		number = number<<6 | f.Type
	}
	return number
}

// MakeSet makes a set, if it is not there. id is its number in the transaction.
func (t Table) MakeSet(s *Set, id uint32) netlink.Message {
	const concat = 0x80               // NFT_SET_CONCAT
	const verdictType = 0xffffff00    // NFT_DATA_VERDICT
	const descConcat, fieldLen = 2, 1 // NFTA_SET_DESC_CONCAT, NFTA_SET_FIELD_LEN
	var flags uint32
	var desc Attrs
	a := Attrs{{unix.NFTA_SET_TABLE, t.Name}, {unix.NFTA_SET_NAME, s.Name}, {unix.NFTA_SET_ID, id},
		{unix.NFTA_SET_KEY_TYPE, types(s.Key)}, {unix.NFTA_SET_KEY_LEN, s.keyLen()}, {unix.NFTA_SET_USERDATA, s.userdata()}}
	switch {
	case s.Verdicts:
		flags |= unix.NFT_SET_MAP
		a = append(a, Attr{unix.NFTA_SET_DATA_TYPE, uint32(verdictType)}, Attr{unix.NFTA_SET_DATA_LEN, uint32(0)})
	case s.Data != nil:
		flags |= unix.NFT_SET_MAP
		a = append(a, Attr{unix.NFTA_SET_DATA_TYPE, types(s.Data)}, Attr{unix.NFTA_SET_DATA_LEN, widths(s.Data)})
	}
	if s.Timeout > 0 {
		flags |= unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL
		a = append(a, Attr{unix.NFTA_SET_TIMEOUT, uint64(s.Timeout.Milliseconds())})
		desc = append(desc, Attr{unix.NFTA_SET_DESC_SIZE, s.Size})
	}
	if s.Ranges {
		flags |= unix.NFT_SET_INTERVAL | concat
		var fields Attrs
		for _, f := range s.Key {
			fields = append(fields, Attr{unix.NFTA_LIST_ELEM, Attrs{{fieldLen, f.Len}}})
		}
		desc = append(desc, Attr{descConcat, fields})
	}
	a = append(a, Attr{unix.NFTA_SET_FLAGS, flags}, Attr{unix.NFTA_SET_DESC, desc})
	return t.message(unix.NFT_MSG_NEWSET, netlink.Create, a)
}

// keyLen returns a key's length: that of a single field is not rounded.
func (s *Set) keyLen() uint32 {
	if len(s.Key) == 1 {
		return s.Key[0].Len
	}
	return widths(s.Key)
}

// DeleteSet deletes a set that no rule looks into.
func (t Table) DeleteSet(name string) netlink.Message {
	return t.message(unix.NFT_MSG_DELSET, 0, Attrs{{unix.NFTA_SET_TABLE, t.Name}, {unix.NFTA_SET_NAME, name}})
}

// What nft keeps with sets, rules and elements for its listings (libnftnl's include/libnftnl/udata.h).
const (
	udataRuleComment    = 0
	udataElementComment = 0
	udataKeyByteOrder   = 0
	udataDataByteOrder  = 1
	udataKeyTypeOf      = 3
	udataDataTypeOf     = 4
)

// MaxComment is how many bytes of a comment nft takes; what is longer is cut.
const MaxComment = 128

func appendComment(dst []byte, kind byte, comment string) []byte {
	comment = comment[:min(len(comment), MaxComment)]
	return append(append(append(dst, kind, byte(len(comment)+1)), comment...), 0)
}

func (s *Set) userdata() []byte {
	order := func(fields []Field) uint32 {
		if len(fields) == 1 && !fields[0].Native {
			return 2 // BYTEORDER_BIG_ENDIAN
		}
		return 0 // BYTEORDER_INVALID: each field has its own
	}
	b := udataNumber(nil, udataKeyByteOrder, order(s.Key))
	if s.Data != nil {
		b = udataNumber(b, udataDataByteOrder, order(s.Data))
	}
	if s.TypeOf {
		b = udataNest(b, udataKeyTypeOf, func(b []byte) []byte { return appendTypeOf(b, s.Key) })
		if s.Data != nil {
			b = udataNest(b, udataDataTypeOf, func(b []byte) []byte { return appendTypeOf(b, s.Data) })
		}
	}
	return b
}

func udataNumber(b []byte, kind byte, v uint32) []byte {
	return binary.NativeEndian.AppendUint32(append(b, kind, 4), v)
}

func udataNest(b []byte, kind byte, f func([]byte) []byte) []byte {
	at := len(b)
	b = f(append(b, kind, 0))
	b[at+1] = byte(len(b) - at - 2)
	return b
}

// appendTypeOf appends the expression of a key or a value: a concatenation where there are several fields.
func appendTypeOf(b []byte, fields []Field) []byte {
	const kind, parameters = 0, 1 // NFTNL_UDATA_SET_TYPEOF_EXPR, _DATA; of a concatenation's parts _SUB_TYPE, _SUB_DATA
	one := func(b []byte, f *Field) []byte {
		return udataNest(udataNumber(b, kind, f.typeof.kind), parameters, func(b []byte) []byte {
			for i, v := range f.typeof.parameters {
				b = udataNumber(b, byte(i), v)
			}
			return b
		})
	}
	if len(fields) == 1 {
		return one(b, &fields[0])
	}
	return udataNest(udataNumber(b, kind, kindConcat), parameters, func(b []byte) []byte {
		for i := range fields {
			b = udataNest(b, byte(i), func(b []byte) []byte { return one(b, &fields[i]) })
		}
		return b
	})
}
