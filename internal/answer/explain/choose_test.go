package explain

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// TestChoose: a number, an address, a host and the label of a choice pick outcomes.
func TestChoose(t *testing.T) {
	outcome := func(to, node, label string) walk.Outcome {
		a := netip.MustParseAddrPort(to)
		p := packet.Packet{Tuple: packet.Tuple{Protocol: packet.TCP, Destination: a.Addr(), DestinationPort: packet.Exactly(a.Port())}}
		return walk.Outcome{
			There: []walk.Step{{Host: node}}, End: walk.End{Kind: walk.Delivered, Host: "pod/default/p" + to, Packet: p},
			Choices: []walk.Decision{{Choice: netfilter.Choice{Options: []netfilter.Option{{Label: label}}}}},
		}
	}
	all := []walk.Outcome{
		outcome("10.0.0.1:80", "node/a", "0"), outcome("10.0.0.2:80", "node/a", "1"), outcome("10.0.0.1:80", "node/b", "2"),
	}
	for word, want := range map[string][]int{
		"2": {2}, "10.0.0.1": {1, 3}, "10.0.0.2:80": {2}, "node/a": {1, 2}, "b": {3}, "pod/default/p10.0.0.2:80": {2},
	} {
		r := &walk.Result{Outcomes: slices.Clone(all)}
		got, err := choose(r, word, &snapshot.Objects{})
		if err != nil || !slices.Equal(got, want) || len(r.Outcomes) != len(want) {
			t.Errorf("%s: %v, %v; want %v", word, got, err, want)
		}
	}
	for _, word := range []string{"0", "4", "10.0.0.3", ""} {
		err := new(Options).Choose(&walk.Result{Outcomes: slices.Clone(all)}, word, &snapshot.Objects{})
		if err == nil || !strings.Contains(err.Error(), "; there are\n1 of 3 (probability unknown): node a → pod default/p10.0.0.1:80") {
			t.Errorf("%q: %v", word, err)
		}
	}
}

// TestMayChoose: of a number the outcomes up to it may be picked, of another word those that it fits, or all where it fits none.
func TestMayChoose(t *testing.T) {
	all := []walk.Outcome{{End: walk.End{Host: "node/a"}}, {End: walk.End{Host: "node/b"}}, {End: walk.End{Host: "node/c"}}}
	for word, want := range map[string][]walk.Outcome{
		"": all, "1": all[:1], "2": all[:2], "9": all, "node/b": all[1:2], "c": all[2:], "fits none so far": all,
	} {
		t.Run(word, func(t *testing.T) {
			got := MayChoose(all, word, &snapshot.Objects{})
			if !slices.EqualFunc(got, want, func(a, b walk.Outcome) bool { return a.End.Host == b.End.Host }) {
				t.Errorf("got %d outcomes, want %d", len(got), len(want))
			}
		})
	}
}
