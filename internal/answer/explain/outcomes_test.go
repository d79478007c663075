package explain

import (
	"net/netip"
	"testing"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
)

func TestDifferences(t *testing.T) {
	one := func(node, source string) *explanation {
		p := packet.Packet{}
		p.Protocol, p.Source, p.SourcePort = packet.TCP, netip.MustParseAddr(source), packet.Exactly(4000)
		return &explanation{outcome: &walk.Outcome{End: walk.End{Packet: p}}, there: []hop{{host: node}}}
	}
	for _, c := range []struct {
		name string
		g    []*explanation
		want string
	}{
		{"last hop", []*explanation{one("node/a", "10.0.0.1"), one("node/a", "10.0.0.1")}, "the last hop"},
		{"nodes", []*explanation{one("node/a", "10.0.0.1"), one("node/b", "10.0.0.1")}, "the last hop and the nodes on the way"},
		{"sources", []*explanation{one("node/a", "10.0.0.1"), one("node/a", "10.0.0.2")}, "the last hop and the source address and port"},
		{"both", []*explanation{one("node/a", "10.0.0.1"), one("node/b", "10.0.0.2")},
			"the last hop, the nodes on the way and the source address and port"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := differences(c.g); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
