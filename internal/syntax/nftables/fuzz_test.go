package nftables

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// otherAnswer takes another answer each time.
type otherAnswer int

func (o *otherAnswer) Choose(c netfilter.Choice) int { *o++; return int(*o) % max(len(c.Options), 1) }

// evaluate runs a few packets through every base chain: nothing may panic, and only runaway jumps may end in an error.
func evaluate(t *testing.T, tables []*netfilter.Table) {
	t.Helper()
	rs := &netfilter.Ruleset{Tables: tables}
	rs.Index()
	four := packet.Tuple{Protocol: packet.TCP, Source: netip.MustParseAddr("10.0.0.1"), Destination: netip.MustParseAddr("1.2.3.4"),
		SourcePort: packet.OneOf(1000, 2000, 1500), DestinationPort: packet.Exactly(80)}
	six := packet.Tuple{Protocol: packet.ICMPv6, Source: netip.MustParseAddr("fd00::1"), Destination: netip.MustParseAddr("fd00::2"), Type: 128}
	packets := []packet.Packet{{Tuple: four, Local: packet.Local{In: "eth0", Track: packet.Track{Flow: &packet.Flow{Original: four, Reply: four.Reply()}}}},
		{Tuple: six, Local: packet.Local{Out: "eth0"}}, {ARP: &packet.ARP{Sender: four.Source, Target: four.Destination}, Local: packet.Local{In: "eth0"}}, {}}
	var chooser otherAnswer
	for _, table := range tables {
		for _, c := range table.Chains {
			if c.Base == nil {
				continue
			}
			for _, p := range packets {
				ctx := &netfilter.Context{Packet: &p, Family: table.Family, Hook: c.Base.Hook, Chooser: &chooser, Host: linkHost{},
					Translate: func(packet.Translation) netfilter.Verdict { return netfilter.Verdict{Kind: netfilter.Accept} }}
				if _, err := c.Run(ctx); err != nil && !errors.Is(err, netfilter.ErrRunaway) {
					t.Fatal(err)
				}
			}
			for i := range c.Rules {
				for _, s := range c.Rules[i].Statements {
					_ = s.String()
				}
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"fabric-world-a", "kube-proxy", "statements", "others", "xtables"} {
		data, err := os.ReadFile("testdata/" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		rs, err := Parse(data)
		if err != nil {
			f.Fatal(err)
		}
		// Small pieces: a table, its first chain and one rule each.
		var frame []Node
		for _, item := range rs.Root.Members[0].Value.Items {
			kind, _, _ := item.only()
			if kind == "table" {
				frame = nil
			}
			if kind != "rule" {
				frame = append(frame, item)
				continue
			}
			one := Node{Kind: Object, Members: []Member{{"nftables", Node{Kind: Array, Items: append(frame[:len(frame):len(frame)], item)}}}}
			if b := one.Append(nil); len(b) < 2000 {
				f.Add(b)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		rs, err := Parse(data)
		if err != nil {
			return
		}
		printed := rs.JSON()
		again, err := Parse(printed)
		if err != nil {
			t.Fatalf("printed, it does not parse: %v\n%s", err, printed)
		}
		if second := again.JSON(); string(second) != string(printed) {
			t.Fatalf("printed %q, then %q", printed, second)
		}
		_ = rs.Foreign()
		tables, err := Lower(rs)
		if err != nil {
			return
		}
		evaluate(t, tables)
	})
}

func FuzzEBTables(f *testing.F) {
	data, err := os.ReadFile("testdata/ebtables.txt")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(data))
	f.Fuzz(func(t *testing.T, text string) {
		e, err := ParseEBTables([]byte(text))
		if err != nil {
			return
		}
		printed := e.String()
		again, err := ParseEBTables([]byte(printed))
		if err != nil {
			t.Fatalf("printed, it does not parse: %v\n%s", err, printed)
		}
		if second := again.String(); second != printed {
			t.Fatalf("printed %q, then %q", printed, second)
		}
		tables, err := LowerEBTables(e)
		if err != nil {
			return
		}
		evaluate(t, tables)
	})
}
