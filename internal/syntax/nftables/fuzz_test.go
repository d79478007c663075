package nftables

import (
	"os"
	"testing"

	"packetwalk.dev/internal/testing/ruletest"
)

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
		printed := rs.Root.Append(nil)
		again, err := Parse(printed)
		if err != nil {
			t.Fatalf("printed, it does not parse: %v\n%s", err, printed)
		}
		if second := again.Root.Append(nil); string(second) != string(printed) {
			t.Fatalf("printed %q, then %q", printed, second)
		}
		_ = rs.Foreign()
		tables, err := Lower(rs)
		if err != nil {
			return
		}
		ruletest.Evaluate(t, tables)
	})
}
