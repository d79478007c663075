package nfnetlink

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

var table = Table{Family: unix.NFPROTO_IPV4, Name: "t"}

// answer returns a message as a dump has it.
func answer(kind int, data []byte) netlink.Message {
	return netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind)}, Data: data}
}

// TestElementsReadBack: elements of each kind of set, many to a message, read as they were written.
func TestElementsReadBack(t *testing.T) {
	var many []Element
	for i := range 5000 {
		many = append(many, Element{Key: fmt.Sprintf("%08d", i), Value: fmt.Sprintf("%04d", i)})
	}
	for _, test := range []struct {
		set      Set
		elements []Element
	}{
		{Set{Name: "set"}, []Element{{Key: "aaaa"}, {Key: "bbbb", Comment: "who"}}},
		{Set{Name: "map", Data: []Field{Slot()}}, many},
		{Set{Name: "vmap", Verdicts: true}, []Element{{Key: "aaaa", Value: "chain/1", Comment: strings.Repeat("x", 128)}}},
		{Set{Name: "ranges", Ranges: true}, []Element{{Key: "aaaa", End: "bbbb"}}},
	} {
		messages := table.AddElements(&test.set, pointers(test.elements))
		for i := range messages {
			if len(messages[i].Data) > maxAttr {
				t.Errorf("%s: a message of %d bytes", test.set.Name, len(messages[i].Data))
			}
			messages[i] = answer(unix.NFT_MSG_NEWSETELEM, messages[i].Data)
		}
		got, err := Elements(messages)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.elements, got); diff != "" {
			t.Errorf("%s (-written +read):\n%s", test.set.Name, diff)
		}
	}
}

// TestOtherVerdicts: a verdict that is not ours is no chain's name.
func TestOtherVerdicts(t *testing.T) {
	for _, v := range []Attrs{verdict(Accept, ""), verdict(Jump, "chain")} {
		element := Attrs{{unix.NFTA_SET_ELEM_KEY, data([]byte("aaaa"))}, {unix.NFTA_SET_ELEM_DATA, v}}
		list := Attrs{{unix.NFTA_SET_ELEM_LIST_ELEMENTS, Attrs{{unix.NFTA_LIST_ELEM, element}}}}
		got, err := Elements([]netlink.Message{answer(unix.NFT_MSG_NEWSETELEM, list.Append(make([]byte, headerLen)))})
		if err != nil || len(got) != 1 || !strings.HasPrefix(got[0].Value, "\x00") {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// TestRulesOfTheTable: rules of other tables and their handles make no difference.
func TestRulesOfTheTable(t *testing.T) {
	c := Chain{Name: "c", Rules: []Rule{{"first", []Expr{Meta(unix.NFT_META_MARK, 0)}}, {"second", []Expr{Verdict(Drop, "")}}}}
	read := func(table Table, handle uint64) (answers []netlink.Message) {
		for _, m := range table.AddRules(&c) {
			data := Attrs{{unix.NFTA_RULE_HANDLE, handle}}.Append(m.Data)
			answers = append(answers, answer(unix.NFT_MSG_NEWRULE, data))
		}
		return answers
	}
	first, err := table.Rules(read(table, 1))
	if err != nil || len(first) != 1 || !strings.Contains(first["c"], "second") {
		t.Fatalf("%q, %v", first, err)
	}
	other := Table{Family: table.Family, Name: "other"}
	second, err := table.Rules(append(read(other, 3), read(table, 2)...))
	if diff := cmp.Diff(first, second); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

// TestTypeOf: what nft 1.0.6 keeps with "typeof ip daddr . meta l4proto . th dport . numgen random mod 2 : ip daddr . th dport".
func TestTypeOf(t *testing.T) {
	address := Address(unix.NFPROTO_IPV4)
	s := Set{Key: []Field{address, Protocol(), Port(), Slot()}, Data: []Field{address, Port()}, TypeOf: true}
	const want = "000400000000010400000000" +
		"036000040d0000000158" +
		"00140004070000" + "00010c00040c00000001040c000000" +
		"010e0004090000000106000410000000" +
		"02140004070000" + "00010c00040b000000010402000000" +
		"031a000417000000" + "011200040100000001040200000002040000" + "0000" +
		"043400040d000000012c" +
		"00140004070000" + "00010c00040c00000001040c000000" +
		"01140004070000" + "00010c00040b000000010402000000"
	if got := hex.EncodeToString(s.userdata()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func pointers(elements []Element) (all []*Element) {
	for i := range elements {
		all = append(all, &elements[i])
	}
	return all
}

// FuzzAnswers: no answer, however cut or nested, makes a reader panic.
func FuzzAnswers(f *testing.F) {
	set := Set{Name: "vmap", Verdicts: true}
	f.Add(table.AddElements(&set, []*Element{{Key: "aaaa", Value: "chain", Comment: "who"}})[0].Data)
	f.Add(table.MakeSet(&set, 1).Data)
	f.Add(table.AddRules(&Chain{Name: "c", Rules: []Rule{{"why", []Expr{Masquerade()}}}})[0].Data)
	f.Fuzz(func(_ *testing.T, data []byte) {
		for _, kind := range []int{unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_NEWSET, unix.NFT_MSG_NEWRULE, unix.NFT_MSG_NEWCHAIN} {
			answers := []netlink.Message{answer(kind, data)}
			_, _ = Elements(answers)
			_, _ = table.Sets(answers)
			_, _ = table.Chains(answers)
			_, _ = table.Hooks(answers)
			_, _ = table.Flags(answers)
			_ = Generation(answers)
			_, _ = table.Rules(answers)
		}
	})
}
