package walk

import (
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
)

// TestCarrier: a link that is up without a carrier sends nothing (noop_qdisc) and gets no answer; a bridge passes its port over.
func TestCarrier(t *testing.T) {
	cut := func(h *host, link string) { h.FIB.Link(link).LowerUp = false }
	known := func(client *host) {
		client.FIB.Neighbours = append(client.FIB.Neighbours, fib.Neighbour{Link: "eth0", Address: netip.MustParseAddr("10.1.0.3"), MAC: packet.MAC{2, 9},
			State: "PERMANENT"})
	}
	for _, tt := range []struct {
		name    string
		change  func(client, node *host)
		arrives string // link of the node by which the packet comes in from outside
		to      string
		want    string // end of the first outcome
		reject  string
	}{
		{name: "as it should be", to: "10.1.0.3:80", want: "delivered at server"},
		{name: "neighbour is asked in vain", change: func(client, _ *host) { cut(client, "eth0") }, to: "10.1.0.3:80",
			want: "dropped at client: no host on eth0 answers for 10.1.0.3: it has no carrier", reject: "icmp-host-unreachable"},
		{name: "neighbour is known", change: func(client, _ *host) { cut(client, "eth0"); known(client) }, to: "10.1.0.3:80",
			want: "dropped at client: interface eth0 has no carrier"},
		{name: "bridge port", change: func(client, node *host) {
			cut(node, "first")
			node.FIB.Link("first").Port.State = "disabled"
			known(client)
		}, to: "10.1.0.3:80", want: "dropped at other: the frame is for 02:09:00:00:00:00"},
		{name: "bridge port whose state is unknown", change: func(client, node *host) {
			cut(node, "first")
			node.FIB.Link("first").Port = nil
			known(client)
		}, to: "10.1.0.3:80", want: "dropped at other: the frame is for 02:09:00:00:00:00"},
		{name: "bridge", change: func(_, node *host) { cut(node, "br0") }, arrives: "out", to: "10.1.0.3:80",
			want: "dropped at node: no host on br0 answers for 10.1.0.3: it has no carrier", reject: "icmp-host-unreachable"},
		{name: "out of the snapshot", change: func(_, node *host) { cut(node, "out") }, arrives: "side", to: "10.9.0.1:80",
			want: "dropped at node: no host on out answers for 10.8.0.9: it has no carrier", reject: "icmp-host-unreachable"},
		{name: "in from outside", change: func(_, node *host) { cut(node, "out") }, arrives: "out", to: "10.1.0.3:80",
			want: "unknown at node: the packet cannot come in by out, which has no carrier"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, node := floodingNode(t)
			client := &host{n, n.hosts["client"]}
			node.address("br0", "10.1.0.1/24")
			node.link(fib.Link{Name: "out"})
			node.link(fib.Link{Name: "side"})
			node.address("out", "10.8.0.1/24")
			node.route("10.9.0.0/24 via 10.8.0.9 dev out")
			node.FIB.Index() // for Link
			client.FIB.Index()
			if tt.change != nil {
				tt.change(client, node)
			}
			req := Request{Host: "client", Packet: syn("10.1.0.2:4000", tt.to), OneWay: true}
			if tt.arrives != "" {
				req = Request{Host: "node", Packet: syn("10.7.0.2:4000", tt.to), OneWay: true, Forwarded: true, Arrives: tt.arrives}
			}
			r := n.walk(req)
			end := &r.Outcomes[0].End
			got := string(end.Kind) + " at " + end.Host
			if end.Why != "" {
				got += ": " + end.Why
			}
			if !strings.HasPrefix(got, tt.want) || end.Reject != tt.reject {
				t.Errorf("%s, %q; want %s, %q\n%s", got, end.Reject, tt.want, tt.reject, steps(r))
			}
		})
	}
}
