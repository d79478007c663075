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
		root, err := parseNode(data)
		if err != nil {
			f.Fatal(err)
		}
		// Small pieces: a table, its first chain and one rule each.
		var frame []Node
		for _, item := range root.Items[0].Items {
			kind, _, _ := item.singleMember()
			if kind == "table" {
				frame = nil
			}
			if kind != "rule" {
				frame = append(frame, item)
				continue
			}
			one := Node{Kind: Object, Items: []Node{{Kind: Array, Name: "nftables", Items: append(frame[:len(frame):len(frame)], item)}}}
			if b := one.Append(nil); len(b) < 2000 {
				f.Add(b)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		root, err := parseNode(data)
		if err != nil {
			if rs, err := Parse(data); err == nil {
				if _, err := Lower(rs); err == nil {
					t.Fatal("no JSON, and yet a rule set")
				}
			}
			return
		}
		printed := root.Append(nil)
		again, err := parseNode(printed)
		if err != nil {
			t.Fatalf("printed, it does not parse: %v\n%s", err, printed)
		}
		if second := again.Append(nil); string(second) != string(printed) {
			t.Fatalf("printed %q, then %q", printed, second)
		}
		rs, err := Parse(data)
		if err != nil {
			return
		}
		_ = rs.Foreign()
		tables, err := Lower(rs)
		if err != nil {
			return
		}
		ruletest.Evaluate(t, tables)
	})
}

// parseNode reads one value of JSON.
func parseNode(data []byte) (Node, error) {
	d := decoder{text: string(data)}
	n, err := d.value(0)
	return n, d.ended(err)
}
