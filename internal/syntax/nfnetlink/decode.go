package nfnetlink

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// attributes are those of a dump's message, which has to be of a kind; of others there is nothing.
func attributes(m netlink.Message, kind int) ([]byte, bool) {
	if int(m.Header.Type) != unix.NFNL_SUBSYS_NFTABLES<<8|kind || len(m.Data) < headerLen {
		return nil, false
	}
	return m.Data[headerLen:], true
}

// Names are the names in the answers to ListSets and ListChains that belong to the table.
func (t Table) Names(answers []netlink.Message) ([]string, error) {
	var names []string
	for _, m := range answers {
		kind, table, name := unix.NFT_MSG_NEWSET, uint16(unix.NFTA_SET_TABLE), uint16(unix.NFTA_SET_NAME)
		if int(m.Header.Type)&0xff == unix.NFT_MSG_NEWCHAIN {
			kind, table, name = unix.NFT_MSG_NEWCHAIN, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME
		}
		b, ok := attributes(m, kind)
		if !ok {
			continue
		}
		in, err := find(b, table)
		if err != nil {
			return nil, fmt.Errorf("read sets and chains: %w", err)
		}
		if n, err := find(b, name); err == nil && text(in) == t.Name {
			names = append(names, text(n))
		}
	}
	return names, nil
}

// without is a list of attributes, which has been read before, without those of some kinds.
func without(b []byte, kinds ...uint16) string {
	var rest []byte
	_ = each(b, func(kind uint16, value []byte) error {
		if !slices.Contains(kinds, kind) {
			rest = Attrs{{kind, value}}.Append(rest)
		}
		return nil
	})
	return string(rest)
}

// Rules are the rules of each chain in the answers to ListRules, as the kernel says them: expressions and comments.
func (t Table) Rules(answers []netlink.Message) (map[string]string, error) {
	rules := map[string]string{}
	for _, m := range answers {
		b, ok := attributes(m, unix.NFT_MSG_NEWRULE)
		if !ok {
			continue
		}
		table, err := find(b, unix.NFTA_RULE_TABLE)
		if err != nil {
			return nil, fmt.Errorf("read rules: %w", err)
		}
		if text(table) != t.Name {
			continue
		}
		chain, _ := find(b, unix.NFTA_RULE_CHAIN)
		rules[text(chain)] += without(b, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, unix.NFTA_RULE_HANDLE, unix.NFTA_RULE_POSITION)
	}
	return rules, nil
}

// Elements are the elements in the answers to ListElements of a set. A verdict other than to go to a chain is a value that no chain's name
// can be.
func Elements(answers []netlink.Message) ([]Element, error) {
	var elements []Element
	for _, m := range answers {
		b, ok := attributes(m, unix.NFT_MSG_NEWSETELEM)
		if !ok {
			continue
		}
		list, err := find(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		if err == nil {
			err = each(list, func(_ uint16, value []byte) error {
				e, err := element(value)
				elements = append(elements, e)
				return err
			})
		}
		if err != nil {
			return nil, fmt.Errorf("read elements: %w", err)
		}
	}
	return elements, nil
}

func element(b []byte) (e Element, err error) {
	const keyEnd = 10 // NFTA_SET_ELEM_KEY_END
	err = each(b, func(kind uint16, value []byte) error {
		var err error
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key, err = datum(value)
		case keyEnd:
			e.End, err = datum(value)
		case unix.NFTA_SET_ELEM_DATA:
			e.Value, err = datum(value)
		case unix.NFTA_SET_ELEM_USERDATA:
			if len(value) > 2 && value[0] == udataElementComment && int(value[1]) <= len(value)-2 {
				e.Comment = text(value[2 : 2+int(value[1])])
			}
		}
		return err
	})
	return e, err
}

// datum is a value's bytes, or the name of the chain of a verdict.
func datum(b []byte) (value string, err error) {
	err = each(b, func(kind uint16, v []byte) error {
		if kind == unix.NFTA_DATA_VALUE {
			value = string(v)
			return nil
		}
		chain, err := find(v, unix.NFTA_VERDICT_CHAIN)
		if err != nil {
			return err
		}
		code, err := find(v, unix.NFTA_VERDICT_CODE)
		value = text(chain)
		if len(code) != 4 || int32(binary.BigEndian.Uint32(code)) != unix.NFT_GOTO {
			value = fmt.Sprintf("\x00%x %s", code, value)
		}
		return err
	})
	return value, err
}
