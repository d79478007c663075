package explain

import (
	"bytes"
	"math/big"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/walk"
)

// TestShare: fractions as short as they can be read, and said to be near where they are not exact.
func TestShare(t *testing.T) {
	for _, tt := range []struct {
		p    *big.Rat
		want string
	}{
		{big.NewRat(1, 1), "1"},
		{big.NewRat(1, 2), "1/2"},
		{big.NewRat(8, 15), "8/15"},
		{big.NewRat(429496730, 1<<31), "about 1/5"},      // --probability 0.20000000019
		{big.NewRat(214748365, 3*(1<<30)), "about 1/15"}, // behind a load balancer of three nodes
		{big.NewRat(1, 123457), "about 0.000008"},
		{big.NewRat(700001, 1234567), "about 0.567001"},
		{big.NewRat(1<<31-1, 1<<31), "about 1"},
	} {
		if got := share(tt.p); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.p, got, tt.want)
		}
	}
}

// TestThreeEndpoints: a third each, though the kernel's 31 bits do not hold a third.
func TestThreeEndpoints(t *testing.T) {
	third := big.NewRat(715827883, 1<<31)
	rest := new(big.Rat).Sub(big.NewRat(1, 1), third)
	half := new(big.Rat).Mul(rest, big.NewRat(1, 2))
	var g []*explanation
	for _, p := range []*big.Rat{third, half, half} {
		g = append(g, &explanation{outcome: &walk.Outcome{Probability: p}})
	}
	if got := odds(g); got != "probability about 1/3 each" {
		t.Errorf("three endpoints: %q", got)
	}
	if got := odds(g[:1]); got != "probability about 1/3" {
		t.Errorf("one of them: %q", got)
	}
}

// TestWidth: on a terminal no line is longer than it, but for words that are; all words are there.
func TestWidth(t *testing.T) {
	e := fromInternet(t)
	o := Options{Owners: ownersOf(e.objects)}
	var whole bytes.Buffer
	if err := Text(&whole, e.result, o); err != nil {
		t.Fatal(err)
	}
	for _, width := range []int{40, 60, 72, 100} {
		var b bytes.Buffer
		o.Width = width
		if err := Text(&b, e.result, o); err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(b.String(), "\n") {
			words := strings.Fields(line)
			if n := utf8.RuneCountInString(line); n > width && utf8.RuneCountInString(words[len(words)-1]) < width/2 {
				t.Errorf("%d columns of %d: %s", n, width, line)
			}
		}
		if got, want := strings.Fields(b.String()), strings.Fields(whole.String()); !slices.Equal(got, want) {
			t.Errorf("in %d columns other words:\n%s", width, b.String())
		}
	}
}

// TestAssumptionsByValue: what was asked of two rules is two questions, also where the words are the same; what was asked of one rule twice
// and answered differently tells nothing.
func TestAssumptionsByValue(t *testing.T) {
	chain := &netfilter.Chain{Table: &netfilter.Table{Name: "filter"}, Name: "INPUT"}
	one, other := &netfilter.Rule{Number: 1, Handle: 1}, &netfilter.Rule{Number: 1, Handle: 2} // of iptables and of nft, say
	ask := func(rule *netfilter.Rule, about string, answer int) walk.Decision {
		return walk.Decision{Host: "node/a", Answer: answer, Choice: netfilter.Choice{
			Kind: netfilter.Unknown, Chain: chain, Rule: rule, About: about, What: "limit",
			Options: []netfilter.Option{{Label: "matches"}, {Label: "does not match"}},
		}}
	}
	for _, c := range []struct {
		choices []walk.Decision
		want    []string
	}{
		{[]walk.Decision{ask(one, "a", 0), ask(other, "a", 1)},
			[]string{"provided that filter INPUT 1 matches (limit)", "provided that filter INPUT 1 does not match (limit)"}},
		{[]walk.Decision{ask(one, "a", 0), ask(one, "a", 1)}, nil},
		{[]walk.Decision{ask(one, "a", 0), ask(one, "b", 0)}, []string{"provided that filter INPUT 1 matches (limit)"}},
	} {
		got := summary{conditions: taken([]*explanation{{outcome: &walk.Outcome{Choices: c.choices, There: make([]walk.Step, 1)}}})}.words()
		if !slices.Equal(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
