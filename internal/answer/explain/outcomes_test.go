package explain

import (
	"bytes"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
)

func TestDifferences(t *testing.T) {
	one := func(node, source, end string) *explanation {
		from := netip.MustParseAddrPort(source)
		p := packet.Packet{}
		p.Protocol, p.Source, p.SourcePort = packet.TCP, from.Addr(), packet.Exactly(from.Port())
		return &explanation{outcome: &walk.Outcome{End: walk.End{Host: end, Packet: p}}, there: []hop{{host: node}}}
	}
	a := one("node/a", "10.0.0.1:4000", "pod/x")
	for _, c := range []struct {
		name  string
		other *explanation
		want  string
	}{
		{"last hop", one("node/a", "10.0.0.1:4000", "pod/y"), "the last hop"},
		{"nodes", one("node/b", "10.0.0.1:4000", "pod/x"), "the nodes on the way"},
		{"sources", one("node/a", "10.0.0.2:4000", "pod/x"), "the source address"},
		{"source ports", one("node/a", "10.0.0.1:4001", "pod/x"), "the source port"},
		{"all", one("node/b", "10.0.0.2:4000", "pod/y"), "the nodes on the way, the source address and the last hop"},
		{"rules", one("node/a", "10.0.0.1:4000", "pod/x"), "the rules on the way"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := differences([]*explanation{a, c.other}); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestPercent(t *testing.T) {
	for want, p := range map[string]*big.Rat{
		"? %": nil, "33 %": big.NewRat(1, 3), "100 %": big.NewRat(1, 1), "< 1 %": big.NewRat(1, 1000), "> 99 %": big.NewRat(999, 1000),
		"0 %": new(big.Rat),
	} {
		if got := percent(p); got != want {
			t.Errorf("%v: %s, want %s", p, got, want)
		}
	}
}

// manyEnds returns a walk whose outcomes differ in the last hop only.
func manyEnds(n int) *walk.Result {
	r := &walk.Result{}
	for i := range n {
		p := tcp("10.0.0.1:4000", fmt.Sprintf("10.1.0.%d:80", i))
		pod := fmt.Sprintf("pod/default/p%d", i)
		r.Outcomes = append(r.Outcomes, walk.Outcome{
			Probability: big.NewRat(1, int64(n)), There: []walk.Step{{Host: "node/a", Stage: walk.Sent, Packet: p}, {Host: pod, Stage: walk.Received, Packet: p}},
			End: walk.End{Kind: walk.Delivered, Host: pod, Packet: p},
		})
	}
	return r
}

// TestTable checks that a table has no row more than it needs: none for one outcome, and few for many that differ little.
func TestTable(t *testing.T) {
	text := func(t *testing.T, n int) string {
		var b bytes.Buffer
		if err := Text(&b, manyEnds(n), Options{}); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	t.Run("one outcome", func(t *testing.T) {
		if got := text(t, 1); strings.Contains(got, "outcome") {
			t.Errorf("a table for one outcome:\n%s", got)
		}
	})
	t.Run("many groups", func(t *testing.T) {
		r := manyEnds(100)
		for i := range r.Outcomes { // no two have the same shape
			for range i {
				r.Outcomes[i].There = append(r.Outcomes[i].There, walk.Step{Host: r.Outcomes[i].End.Host, Stage: walk.Checked,
					Changes: []packet.Change{{Field: "dscp", From: "0", To: "1"}}})
			}
		}
		var b bytes.Buffer
		if err := Text(&b, r, Options{}); err != nil {
			t.Fatal(err)
		}
		if rows := strings.Count(b.String(), "1 %  "); rows != mostRows {
			t.Errorf("%d rows, want %d", rows, mostRows)
		}
		if !strings.Contains(b.String(), "\n  -o short lists all outcomes\n") {
			t.Errorf("no word of the outcomes without a row")
		}
	})
	t.Run("many outcomes", func(t *testing.T) {
		got := text(t, 100)
		lines := strings.Split(got, "\n")
		for _, want := range []string{
			"100 outcomes, identical except for the last hop:",
			"    1  1 %  node a → pod default/p0",
			"   10  1 %  node a → pod default/p9",
			"  and 90 more like these (-o short lists all)",
			"outcome 1, step by step (--choose 2 shows outcome 2):",
		} {
			if !slices.Contains(lines, want) {
				t.Errorf("no line %q in:\n%s", want, got)
			}
		}
		if strings.Contains(got, "default/p10") {
			t.Errorf("a row for outcome 11:\n%s", got)
		}
	})
}
