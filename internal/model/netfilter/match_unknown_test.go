package netfilter

import (
	"reflect"
	"testing"
)

// TestUnknownByInterface: what a test that is not understood said of a packet says nothing of it when it comes by another interface.
func TestUnknownByInterface(t *testing.T) {
	var asked recorder
	for _, in := range []string{"a", "b", "a"} {
		p := syn(nil)
		p.In = in
		(&UnknownTest{Text: "-m odd"}).Eval(&Context{Packet: p, Hook: Prerouting, Chooser: &asked})
	}
	if reflect.DeepEqual(asked[0], asked[1]) || !reflect.DeepEqual(asked[0], asked[2]) {
		t.Errorf("asked about %v", asked)
	}
}

// recorder is a Chooser that notes what it is asked about.
type recorder []any

func (r *recorder) Choose(q Choice) int {
	*r = append(*r, q.About)
	return 0
}

func TestUnderstood(t *testing.T) {
	for _, s := range []Statement{&UnknownTest{Text: "-m foo"}, &UnknownEffect{Text: "-j FOO"}} {
		if r := (&Rule{Statements: []Statement{&MatchTTL{}, s}}); r.Understood() {
			t.Errorf("%s is said to be understood", s)
		}
	}
	if r := (&Rule{Statements: []Statement{&MatchTTL{}, &MatchHistory{}}}); !r.Understood() {
		t.Error("a rule that depends on history is not understood")
	}
}

// TestUnknownChainTracks: a rule set with a chain that is not shown is assumed to make the kernel track connections and translate.
func TestUnknownChainTracks(t *testing.T) {
	table := &Table{Name: "nat", Family: IPv4}
	table.Chains = []*Chain{{Table: table, Name: "POSTROUTING", Base: &Base{Type: "nat", Hook: Postrouting},
		Rules: []Rule{rule(&JumpTo{Name: "X"})}}}
	rules := &Ruleset{Tables: []*Table{table}}
	rules.Index()
	if tracked, _ := rules.Tracks(IPv4); !tracked {
		t.Error("connections are said not to be tracked")
	}
}
