package snapshot_test

import (
	"slices"
	"testing"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
)

// TestChanges reads one state twice, where nothing has changed, and then changes one thing after the other.
func TestChanges(t *testing.T) {
	read := func() snapshot.Source {
		f, err := capture.Open("../../capture/testdata/world-a.pwcap.tar.gz")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return capture.NewSource(f.Origin())
	}
	one, two := read(), read()
	for _, name := range one.Names() {
		a, err := one.Host(name)
		if err != nil {
			t.Fatal(err)
		}
		b, err := two.Host(name)
		if err != nil {
			t.Fatal(err)
		}
		if changed := snapshot.Changes(a, b); changed != nil {
			t.Errorf("%s: the same state, but %v", name, changed)
		}
		for _, c := range b.Rules.Tables {
			for _, chain := range c.Chains {
				if n := len(chain.Rules); n > 0 {
					chain.Rules = chain.Rules[:n-1]
				}
			}
		}
		if got := snapshot.Changes(a, b); len(b.Rules.Tables) > 0 && !slices.Equal(got, []snapshot.Part{snapshot.Rules}) {
			t.Errorf("%s: without some rules: %v", name, got)
		}
	}
}

// TestChangesOfCounters: what nft counts in a rule is no change.
func TestChangesOfCounters(t *testing.T) {
	host := func(text string) *snapshot.Host {
		chain := &netfilter.Chain{Name: "c", Rules: []netfilter.Rule{{Text: text}}}
		rules := &netfilter.Ruleset{Tables: []*netfilter.Table{{Name: "t", Chains: []*netfilter.Chain{chain}}}}
		return &snapshot.Host{FIB: &fib.State{}, Rules: rules}
	}
	before := host("tcp dport 80 counter packets 0 bytes 0 drop")
	if changed := snapshot.Changes(before, host("tcp dport 80 counter packets 12 bytes 720 drop")); changed != nil {
		t.Errorf("counters count: %v", changed)
	}
	changed := snapshot.Changes(before, host("tcp dport 81 counter packets 0 bytes 0 drop"))
	if !slices.Equal(changed, []snapshot.Part{snapshot.Rules}) {
		t.Errorf("another port: %v", changed)
	}
}
