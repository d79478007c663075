package walk

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// partialNetwork is a network of which some hosts are not read.
type partialNetwork struct {
	*network
	unread string
}

// Host implements snapshot.Source.
func (n *partialNetwork) Host(name string) (*snapshot.Host, error) {
	if name == n.unread {
		return nil, &snapshot.UnreadError{Host: name, Err: errors.New("its pod does not run")}
	}
	h, err := n.network.Host(name)
	if err == nil {
		h.FIB.Index()
		h.Rules.Index()
	}
	return h, err
}

// TestUnread: an outcome that comes to a host which is not read ends there undecided, and the other outcomes are what they are. Of a sender
// that is not read there is no walk.
func TestUnread(t *testing.T) {
	n, a, b := clusterOf(t)
	b.listen(packet.TCP, "0.0.0.0:80")
	a.listen(packet.TCP, "0.0.0.0:80")
	a.rules(netfilter.IPv4, `*nat
:OUTPUT ACCEPT [0:0]
-A OUTPUT -d 10.96.0.1/32 -m statistic --mode random --probability 0.5 -j DNAT --to-destination 10.0.0.5:80
-A OUTPUT -d 10.96.0.1/32 -p tcp -j DNAT --to-destination 10.0.0.4:80
COMMIT
`)
	n.known.Pods = append(n.known.Pods, snapshot.Pod{Name: "connector", Node: "a", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.77")}})
	n.known.Nodes = append(n.known.Nodes, snapshot.Node{Name: "virtual", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.77")}})
	request := Request{Host: "node/a", Packet: syn("", "10.96.0.1:80")}
	r, err := Walk(&partialNetwork{n, "node/b"}, request)
	if err != nil || len(r.Outcomes) != 2 {
		t.Fatalf("%d outcomes, %v", len(r.Outcomes), err)
	}
	if e := &r.Outcomes[0].End; e.Kind != Undecided || !e.Unread || e.Host != "node/b" || e.Packet.DestinationEnd() != "10.0.0.5:80" ||
		e.Why != "node/b is not read: its pod does not run" || r.Outcomes[0].Probability == nil {
		t.Errorf("one that is not read: %s", ends(r.Outcomes[0]))
	}
	if e := &r.Outcomes[1].End; e.Kind != Delivered || e.Unread || e.Host != "node/a" {
		t.Errorf("one that is: %s", ends(r.Outcomes[1]))
	}
	var unread *snapshot.UnreadError
	if _, err := Walk(&partialNetwork{n, "node/a"}, request); !errors.As(err, &unread) || unread.Host != "node/a" {
		t.Errorf("the sender is not read: %v", err)
	}
	request.Packet = syn("", "10.0.0.77:80")
	if r, err = Walk(&partialNetwork{n, "node/virtual"}, request); err != nil || r.Outcomes[0].End.Unread {
		t.Errorf("a virtual node's connector is not the virtual node: %s, %v", ends(r.Outcomes[0]), err)
	}
}

// TestUnreadWire: the other end of a wire that is not read may answer for an address, and gets what is sent to it.
func TestUnreadWire(t *testing.T) {
	n, client, _, _ := chain(t)
	r, err := Walk(&partialNetwork{n, "router"}, Request{Host: "client", Packet: syn("", "10.2.0.2:80")})
	if err != nil || r.Outcomes[0].End.Kind != Undecided || !strings.Contains(r.Outcomes[0].End.Why, "the state of router is not read") {
		t.Errorf("without a neighbour: %s, %v", ends(r.Outcomes[0]), err)
	}
	client.FIB.Neighbours = []fib.Neighbour{{Link: "eth0", Address: netip.MustParseAddr("10.1.0.1"), MAC: packet.MAC{2, 9}, State: "STALE"}}
	r, err = Walk(&partialNetwork{n, "router"}, Request{Host: "client", Packet: syn("", "10.2.0.2:80")})
	if err != nil || !r.Outcomes[0].End.Unread || r.Outcomes[0].End.Host != "router" {
		t.Errorf("with one: %s, %v", ends(r.Outcomes[0]), err)
	}
}

// TestUnknownMAC: a text has interfaces without their MAC addresses. Whether a frame is for such an interface is assumed, and said.
func TestUnknownMAC(t *testing.T) {
	n, client, router, _ := chain(t)
	client.FIB.Neighbours = []fib.Neighbour{{Link: "eth0", Address: netip.MustParseAddr("10.1.0.1"), MAC: packet.MAC{2, 9}, State: "STALE"}}
	if o := n.tcp("client", "10.2.0.2:80").Outcomes[0]; o.End.Kind != Dropped || !strings.Contains(o.End.Why, "not this host's") {
		t.Errorf("the frame is for another station: %s", ends(o))
	}
	for i := range router.FIB.Links {
		router.FIB.Links[i].MAC = packet.MAC{}
	}
	r := n.tcp("client", "10.2.0.2:80")
	if words := "the MAC address of left is unknown"; !strings.Contains(assumptions(r), words) || r.Outcomes[0].End.Host != "server" {
		t.Errorf("%s, assumed: %s", ends(r.Outcomes[0]), assumptions(r))
	}
}
