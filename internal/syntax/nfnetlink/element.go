package nfnetlink

import (
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Element is an element of a set or map, its fields as registers have them: each filled up to a multiple of four bytes.
type Element struct {
	Key string
	End string // of a range: the last key
	// Value is what a map has for the key: fields, or the name of the chain to go to.
	Value   string
	Comment string // at most 128 bytes
}

// maxElements is how many bytes of elements go into one message, whose list of them is one attribute.
const maxElements = 60 << 10

// AddElements adds elements to a set.
func (t Table) AddElements(s *Set, elements []*Element) []netlink.Message {
	return t.elements(unix.NFT_MSG_NEWSETELEM, netlink.Create, s, elements, true)
}

// DeleteElements deletes elements from a set, whatever their values are.
func (t Table) DeleteElements(s *Set, elements []*Element) []netlink.Message {
	return t.elements(unix.NFT_MSG_DELSETELEM, 0, s, elements, false)
}

func (t Table) elements(kind int, flags netlink.HeaderFlags, s *Set, elements []*Element, whole bool) (messages []netlink.Message) {
	for len(elements) > 0 {
		b := Attrs{{unix.NFTA_SET_ELEM_LIST_TABLE, t.Name}, {unix.NFTA_SET_ELEM_LIST_SET, s.Name}}.
			Append([]byte{t.Family, unix.NFNETLINK_V0, 0, 0})
		list := len(b)
		b = slices.Grow(b, min(maxElements, len(elements)*128))
		b = begin(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS|unix.NLA_F_NESTED)
		for len(elements) > 0 && len(b)-list < maxElements {
			b = appendElement(b, s, elements[0], whole)
			elements = elements[1:]
		}
		messages = append(messages, t.raw(kind, flags, end(b, list)))
	}
	return messages
}

func appendElement(b []byte, s *Set, e *Element, whole bool) []byte {
	at := len(b)
	b = begin(b, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED)
	b = appendValue(b, unix.NFTA_SET_ELEM_KEY, e.Key)
	if e.End != "" {
		const keyEnd = 10 // NFTA_SET_ELEM_KEY_END
		b = appendValue(b, keyEnd, e.End)
	}
	switch {
	case !whole:
	case s.Verdicts:
		b = Attrs{{unix.NFTA_SET_ELEM_DATA, verdict(Goto, e.Value)}}.Append(b)
	case s.Data != nil:
		b = appendValue(b, unix.NFTA_SET_ELEM_DATA, e.Value)
	}
	if whole && e.Comment != "" {
		comment := len(b)
		b = end(appendComment(begin(b, unix.NFTA_SET_ELEM_USERDATA), udataElementComment, e.Comment), comment)
	}
	return end(b, at)
}

func appendValue(b []byte, kind uint16, value string) []byte {
	outer := len(b)
	b = begin(b, kind|unix.NLA_F_NESTED)
	inner := len(b)
	b = append(begin(b, unix.NFTA_DATA_VALUE), value...)
	return end(end(b, inner), outer)
}
