package verify

import (
	"flag"
	"fmt"
	"math"
	"math/big"
	"strings"
	"sync"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/syntax/nftables"
	"packetwalk.dev/internal/testing/kerneltest"
)

var oddsWorlds = flag.Int("odds", 8, "in how many worlds a random choice is tried with many flows")

// TestChiSquare compares with tables (Abramowitz and Stegun, table 26.8), and with closed forms.
func TestChiSquare(t *testing.T) {
	for _, c := range []struct{ a, x, q float64 }{
		{0.5, 3.841458820694124 / 2, 0.05}, {0.5, 10.827566170662733 / 2, 0.001}, {1, 13.815510557964274 / 2, 0.001},
		{2.5, 11.070497693516351 / 2, 0.05}, {5, 18.307038053275146 / 2, 0.05}, {5, 3.940299136119175 / 2, 0.95}, {1, 20, math.Exp(-20)},
	} {
		if got := upperGamma(c.a, c.x); math.Abs(got-c.q) > 1e-9*math.Max(1, c.q/1e-4) && math.Abs(got/c.q-1) > 1e-9 {
			t.Errorf("Q(%g, %g) = %g, want %g", c.a, c.x, got, c.q)
		}
	}
	for name, c := range map[string]struct {
		cells   []cell
		refuted bool
	}{
		"as expected":        {[]cell{{1000, 1020}, {1000, 980}}, false},
		"1/2 for 1/3":        {[]cell{{2000. / 3, 1000}, {4000. / 3, 1000}}, true},
		"1/2 for 0.45":       {[]cell{{900, 1000}, {1100, 1000}}, false}, // too little for so few
		"rare is merged":     {[]cell{{0.001, 1}, {999.999, 1000}, {1000, 999}}, false},
		"what cannot happen": {[]cell{{0, 1}, {2000, 1999}}, true},
		"one way":            {[]cell{{2000, 2000}}, false},
		"three":              {[]cell{{666, 1000}, {667, 500}, {667, 500}}, true},
	} {
		if p := chiSquare(c.cells); p < unlikelier != c.refuted {
			t.Errorf("%s: p = %g", name, p)
		}
	}
}

// TestWhatPacketsLeaveBehind: after a rule that notes where the client is the next flow goes another way, whatever the rule's text is.
func TestWhatPacketsLeaveBehind(t *testing.T) {
	for statement, want := range map[string]bool{
		`"update @m { ip saddr : ip daddr }"`: true,
		`{"map": {"op": "update", "elem": {"payload": {"protocol": "ip", "field": "saddr"}}, "data": 1, "map": "@m"}}`: true,
		`{"counter": null}`: false,
	} {
		rules, err := nftables.Parse([]byte(`{"nftables": [{"table": {"family": "ip", "name": "t", "handle": 1}},
			{"chain": {"family": "ip", "table": "t", "name": "c", "handle": 2}},
			{"rule": {"family": "ip", "table": "t", "chain": "c", "handle": 3, "comment": "no update @m", "expr": [` + statement + `]}}]}`))
		if err != nil {
			t.Fatal(err)
		}
		tables, err := nftables.Lower(rules)
		if err != nil {
			t.Fatal(err)
		}
		chain := tables[0].Chains[0]
		step := walk.Step{Visit: &netfilter.Visit{Chain: chain, Rule: &chain.Rules[0]}}
		if got := withoutOdds(walk.Outcome{Probability: big.NewRat(1, 1), There: []walk.Step{step}}); got != want {
			t.Errorf("%s: %v, want %v (%s)", statement, got, want, chain.Rules[0].Text)
		}
	}
}

// chancy tells of a world's text that there are random choices in it.
func chancy(w *World) bool {
	text := string(w.Text())
	return strings.Contains(text, "--mode random") || strings.Contains(text, "numgen random")
}

// TestOdds sends many flows through a random choice in each of several worlds, and compares how often each way was taken with how often
// it is predicted.
func TestOdds(t *testing.T) {
	kerneltest.NeedRoot(t)
	var mu sync.Mutex
	tested, looked := 0, 0
	next := *seed
	take := func() (uint64, bool) {
		mu.Lock()
		defer mu.Unlock()
		next++
		return next - 1, tested < *oddsWorlds && stop.Err() == nil && !t.Failed()
	}
	var wg sync.WaitGroup
	for range *parallel {
		wg.Go(func() {
			for {
				n, more := take()
				if !more {
					return
				}
				p, text, err := tryOdds(n)
				mu.Lock()
				looked++
				if err != nil {
					t.Errorf("seed %d: %v", n, err)
				}
				if text != "" {
					tested++
					t.Logf("seed %d: %s", n, text)
				}
				if p < unlikelier {
					t.Errorf("seed %d: that is not chance: %s", n, text)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("%d worlds, a random choice in %d of them", looked, tested)
	if tested < *oddsWorlds {
		t.Errorf("%d worlds with a random choice, want %d", tested, *oddsWorlds)
	}
}

// tryOdds makes an experiment in the world of a seed; the text is "" where there is none to make.
func tryOdds(seed uint64) (p float64, text string, err error) {
	w := Generate(seed)
	if !chancy(w) {
		return 1, "", nil
	}
	b, err := build(stop, runDirectory, w)
	if err != nil {
		return 1, "", nil // counted by TestWorlds
	}
	defer b.close()
	o, err := oddsOf(b.source(stop), w)
	if o == nil || err != nil {
		return 1, "", err
	}
	p, text, err = o.test(stop, b)
	return p, text, err
}

// TestOddsFindsFault: a model that takes one in three for one in two is found.
func TestOddsFindsFault(t *testing.T) {
	kerneltest.NeedRoot(t)
	for _, rule := range []string{"-m statistic --mode random --probability 0.33333333349", "-m statistic --mode random --probability 0.5"} {
		t.Run(rule, func(t *testing.T) {
			w, err := ParseWorld([]byte(fmt.Sprintf(chanceWorld, rule)))
			if err != nil {
				t.Fatal(err)
			}
			b, err := build(stop, runDirectory, w)
			if err != nil {
				t.Fatal(err)
			}
			defer b.close()
			b.tamper = func(text string) string {
				return strings.ReplaceAll(text, "--probability 0.33333333349", "--probability 0.5")
			}
			o, err := oddsOf(b.source(stop), w)
			if o == nil || err != nil {
				t.Fatalf("no experiment: %v", err)
			}
			p, text, err := o.test(stop, b)
			if err != nil {
				t.Fatal(err)
			}
			if wrong := strings.Contains(rule, "0.33"); p < unlikelier != wrong {
				t.Error(text)
			}
		})
	}
}

const chanceWorld = `
-- wires --
vm/client eth0 node/r c
vm/server eth0 node/r s
-- packets --
vm/client udp 10.9.9.9:80
-- vm/client/ip --
address add 10.1.0.2/24 dev eth0
route add default via 10.1.0.1
-- vm/server/ip --
address add 10.2.0.2/24 dev eth0
address add 10.2.0.3/24 dev eth0
route add default via 10.2.0.1
-- node/r/ip --
address add 10.1.0.1/24 dev c
address add 10.2.0.1/24 dev s
-- node/r/sysctl --
net/ipv4/ip_forward 1
-- node/r/iptables --
*nat
-A PREROUTING -d 10.9.9.9/32 %s -j DNAT --to-destination 10.2.0.2
-A PREROUTING -d 10.9.9.9/32 -j DNAT --to-destination 10.2.0.3
COMMIT
`
