package nfnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Attrs are netlink attributes in nf_tables' byte order, which is the network's.
type Attrs []Attr

// Attr has a value of type string (sent with a zero byte at its end), []byte, uint32, int32, uint64 or Attrs (nested).
type Attr struct {
	Kind  uint16
	Value any
}

const attrHeader = 4 // struct nlattr: length and kind

// maxAttr is the most that an attribute holds, with its header: its length has 16 bits.
const maxAttr = 1<<16 - 1

// Append appends the attributes as they are sent. It panics on a value of another type, and on one that is too long.
func (a Attrs) Append(dst []byte) []byte {
	for _, x := range a {
		kind := x.Kind
		if _, nested := x.Value.(Attrs); nested {
			kind |= unix.NLA_F_NESTED
		}
		at := len(dst)
		dst = begin(dst, kind)
		switch v := x.Value.(type) {
		case string:
			dst = append(append(dst, v...), 0)
		case []byte:
			dst = append(dst, v...)
		case uint32:
			dst = binary.BigEndian.AppendUint32(dst, v)
		case int32:
			dst = binary.BigEndian.AppendUint32(dst, uint32(v))
		case uint64:
			dst = binary.BigEndian.AppendUint64(dst, v)
		case Attrs:
			dst = v.Append(dst)
		default:
			panic(fmt.Sprintf("attribute %d has a value of type %T", x.Kind, v))
		}
		dst = end(dst, at)
	}
	return dst
}

// begin begins an attribute, end ends the one that began at an offset.
func begin(dst []byte, kind uint16) []byte {
	return binary.NativeEndian.AppendUint16(append(dst, 0, 0), kind)
}

func end(dst []byte, at int) []byte {
	n := len(dst) - at
	if n > maxAttr {
		panic(fmt.Sprintf("an attribute of %d bytes", n))
	}
	binary.NativeEndian.PutUint16(dst[at:], uint16(n))
	for len(dst)%4 != 0 {
		dst = append(dst, 0)
	}
	return dst
}

// typeMask is NLA_TYPE_MASK: the kind without its flags.
const typeMask = 0x3fff

var errShort = errors.New("an attribute ends before its length")

// each calls f for each attribute, until it fails.
func each(b []byte, f func(kind uint16, value []byte) error) error {
	for len(b) >= attrHeader {
		n := int(binary.NativeEndian.Uint16(b))
		if n < attrHeader || n > len(b) {
			return errShort
		}
		if err := f(binary.NativeEndian.Uint16(b[2:])&typeMask, b[attrHeader:n]); err != nil {
			return err
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	if len(b) > 0 {
		return errShort
	}
	return nil
}

// find returns the first attribute of a kind; nil where there is none.
func find(b []byte, kind uint16) (found []byte, err error) {
	err = each(b, func(k uint16, value []byte) error {
		if k == kind && found == nil {
			found = value
		}
		return nil
	})
	return found, err
}

// text returns a string without the zero byte at its end.
func text(value []byte) string {
	if n := len(value); n > 0 && value[n-1] == 0 {
		value = value[:n-1]
	}
	return string(value)
}
