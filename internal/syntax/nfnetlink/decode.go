package nfnetlink

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// attributes returns those of a dump's message, which has to be of a kind; of others there is nothing.
func attributes(m netlink.Message, kind int) ([]byte, bool) {
	if int(m.Header.Type) != unix.NFNL_SUBSYS_NFTABLES<<8|kind || len(m.Data) < headerLen {
		return nil, false
	}
	return m.Data[headerLen:], true
}

// inTable calls f with the attributes of each answer of a kind that belongs to the table.
func (t Table) inTable(answers []netlink.Message, kind int, table uint16, f func(b []byte) error) error {
	for _, m := range answers {
		b, ok := attributes(m, kind)
		if !ok {
			continue
		}
		in, err := find(b, table)
		if err == nil && text(in) == t.Name {
			err = f(b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Sets returns the shapes of the table's sets in the answers to ListSets, by name.
func (t Table) Sets(answers []netlink.Message) (map[string]string, error) {
	return t.shapes(answers, unix.NFT_MSG_NEWSET, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME, setShape)
}

// Shape returns what of a set cannot be changed, as Sets has it: the types of keys and values, flags, timeout and size.
func (s *Set) Shape() string { return setShape(Table{}.MakeSet(s, 0).Data[headerLen:]) }

func setShape(b []byte) string {
	desc, _ := find(b, unix.NFTA_SET_DESC)
	return selectKinds(b, unix.NFTA_SET_KEY_TYPE, unix.NFTA_SET_KEY_LEN, unix.NFTA_SET_DATA_TYPE, unix.NFTA_SET_FLAGS, unix.NFTA_SET_TIMEOUT) +
		selectKinds(desc, unix.NFTA_SET_DESC_SIZE)
}

// Hooks returns what calls the table's chains in the answers to ListChains, by name; empty where nothing does.
func (t Table) Hooks(answers []netlink.Message) (map[string]string, error) {
	return t.shapes(answers, unix.NFT_MSG_NEWCHAIN, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, chainShape)
}

// Hook returns what calls a chain, which cannot be changed, as Hooks has it.
func (c *Chain) Hook() string { return chainShape(Table{}.MakeChain(c).Data[headerLen:]) }

func chainShape(b []byte) string { return selectKinds(b, unix.NFTA_CHAIN_TYPE, unix.NFTA_CHAIN_HOOK) }

func (t Table) shapes(answers []netlink.Message, kind int, table, name uint16, shape func([]byte) string) (map[string]string, error) {
	shapes := map[string]string{}
	err := t.inTable(answers, kind, table, func(b []byte) error {
		of, err := find(b, name)
		shapes[text(of)] = shape(b)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read shapes: %w", err)
	}
	return shapes, nil
}

// selectKinds returns those of a list of attributes that are of some kinds, in the order of the kinds and without what is zero, which the
// kernel does not say.
func selectKinds(b []byte, kinds ...uint16) (shape string) {
	for _, kind := range kinds {
		if value, err := find(b, kind); err == nil && strings.Trim(string(value), "\x00") != "" {
			shape += string(Attrs{{kind, value}}.Append(nil))
		}
	}
	return shape
}

// Chains returns the table's chains in the answers to ListChains: what the kernel says of each, but for its number and its use.
func (t Table) Chains(answers []netlink.Message) (map[string]string, error) {
	chains := map[string]string{}
	err := t.inTable(answers, unix.NFT_MSG_NEWCHAIN, unix.NFTA_CHAIN_TABLE, func(b []byte) error {
		name, err := find(b, unix.NFTA_CHAIN_NAME)
		chains[text(name)] = dropKinds(b, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, unix.NFTA_CHAIN_HANDLE, unix.NFTA_CHAIN_USE,
			unix.NFTA_CHAIN_COUNTERS)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read chains: %w", err)
	}
	return chains, nil
}

// Flags returns the table's flags (NFT_TABLE_F_…) in the answer to Get.
func (t Table) Flags(answers []netlink.Message) (flags uint32, err error) {
	err = t.inTable(answers, unix.NFT_MSG_NEWTABLE, unix.NFTA_TABLE_NAME, func(b []byte) error {
		value, err := find(b, unix.NFTA_TABLE_FLAGS)
		if len(value) == 4 {
			flags = binary.BigEndian.Uint32(value)
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read table: %w", err)
	}
	return flags, nil
}

// Generation returns the number in the answer to GetGeneration; 0 where there is none.
func Generation(answers []netlink.Message) uint32 {
	for _, m := range answers {
		if b, ok := attributes(m, unix.NFT_MSG_NEWGEN); ok {
			if id, err := find(b, unix.NFTA_GEN_ID); err == nil && len(id) == 4 {
				return binary.BigEndian.Uint32(id)
			}
		}
	}
	return 0
}

// dropKinds returns a list of attributes, which has been read before, without those of some kinds.
func dropKinds(b []byte, kinds ...uint16) string {
	var rest []byte
	_ = each(b, func(kind uint16, value []byte) error {
		if !slices.Contains(kinds, kind) {
			rest = Attrs{{kind, value}}.Append(rest)
		}
		return nil
	})
	return string(rest)
}

// Rules returns the rules of each chain in the answers to ListRules, as the kernel says them: expressions and comments.
func (t Table) Rules(answers []netlink.Message) (map[string]string, error) {
	rules := map[string]string{}
	err := t.inTable(answers, unix.NFT_MSG_NEWRULE, unix.NFTA_RULE_TABLE, func(b []byte) error {
		chain, err := find(b, unix.NFTA_RULE_CHAIN)
		rules[text(chain)] += dropKinds(b, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, unix.NFTA_RULE_HANDLE, unix.NFTA_RULE_POSITION)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	return rules, nil
}

// Elements returns the elements in the answers to ListElements of a set. A verdict other than to go to a chain is a value that no chain's
// name can be.
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

// datum returns a value's bytes, or the name of the chain of a verdict.
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
		if len(code) != 4 || int32(binary.BigEndian.Uint32(code)) != Goto {
			value = fmt.Sprintf("\x00%x %s", code, value)
		}
		return err
	})
	return value, err
}
