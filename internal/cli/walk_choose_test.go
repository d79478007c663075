package cli

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
)

// TestChoose: a number, an address, a host and the label of a choice pick outcomes.
func TestChoose(t *testing.T) {
	outcome := func(to, node, label string) walk.Outcome {
		a := netip.MustParseAddrPort(to)
		p := packet.Packet{Tuple: packet.Tuple{Protocol: packet.TCP, Destination: a.Addr(), DestinationPort: packet.Exactly(a.Port())}}
		return walk.Outcome{
			There: []walk.Step{{Host: node}}, End: walk.End{Kind: walk.Delivered, Host: "pod/default/p" + to, Packet: p},
			Choices: []walk.Chosen{{Choice: netfilter.Choice{Options: []netfilter.Option{{Label: label}}}}},
		}
	}
	all := []walk.Outcome{
		outcome("10.0.0.1:80", "node/a", "0"), outcome("10.0.0.2:80", "node/a", "1"), outcome("10.0.0.1:80", "node/b", "2"),
	}
	for word, want := range map[string][]int{
		"2": {2}, "10.0.0.1": {1, 3}, "10.0.0.2:80": {2}, "node/a": {1, 2}, "b": {3}, "pod/default/p10.0.0.2:80": {2},
	} {
		r := &walk.Result{Outcomes: slices.Clone(all)}
		got, err := choose(r, word, nil)
		if err != nil || !slices.Equal(got, want) || len(r.Outcomes) != len(want) {
			t.Errorf("%s: %v, %v; want %v", word, got, err, want)
		}
	}
	for _, word := range []string{"0", "4", "10.0.0.3", ""} {
		_, err := choose(&walk.Result{Outcomes: slices.Clone(all)}, word, []string{"one end", "other end"})
		if err == nil || !strings.Contains(err.Error(), "1: one end\n2: other end") {
			t.Errorf("%q: %v", word, err)
		}
	}
}
