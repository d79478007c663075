package nftables

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/testing/flows"
)

// sh runs commands of ip and sysctl in a namespace, one a line.
func sh(t *testing.T, ns *netns.Namespace, lines string) {
	t.Helper()
	for line := range strings.Lines(lines) {
		f := strings.Fields(line)
		if _, err := (program.Command{Path: f[0], Args: f[1:], In: ns.Do}).Output(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func moveLink(name string, to *netns.Namespace) error {
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetNsFd(l, to.FD())
	}
	return err
}

// nowhere is what becomes of what is refused or dropped: conntrack has no flow of it.
const nowhere = "nowhere"

// went returns the ways that flows went, by destination.
func went(t *testing.T, ns *netns.Namespace, protocol packet.Protocol, from netip.Addr, each, destinations int) [][]string {
	t.Helper()
	ways, err := flows.Tracked(ns, protocol, from, each, destinations)
	if err != nil {
		t.Fatal(err)
	}
	lists := make([][]string, destinations)
	for i := range lists {
		count := 0
		for way, n := range ways[i] {
			count += n
			lists[i] = append(lists[i], way.String())
		}
		if slices.Sort(lists[i]); count < each {
			lists[i] = append(lists[i], nowhere)
		}
	}
	return lists
}

// ends returns the ways that a walk predicts.
func ends(t *testing.T, n *oneNode, request walk.Request) []string {
	t.Helper()
	r, err := walk.Walk(n, request)
	if err != nil {
		t.Fatal(err)
	}
	var ways []string
	for i := range r.Outcomes {
		end := &r.Outcomes[i].End
		toItself := request.Packet.Source == end.Packet.Destination // noted on its way out, whatever becomes of it on its way in
		text := nowhere
		switch {
		case end.Kind == walk.Delivered && request.Packet.Protocol == packet.TCP: // it is refused and forgotten at once: no process listens
		case end.Kind == walk.Left, end.Kind == walk.Delivered, toItself:
			text = flows.Way{Answers: netip.AddrPortFrom(end.Packet.Destination, end.Packet.DestinationPort.Number), To: end.Packet.Source}.String()
		}
		ways = append(ways, text)
	}
	slices.Sort(ways)
	return slices.Compact(ways)
}

// TestWalksAgainstKernel: where real flows from the node, from outside and from a pod's address go through the table of a random world is
// where walks of its listing say, and each outcome of those comes about.
func TestWalksAgainstKernel(t *testing.T) {
	const each = 120
	config := proxy.Config{Family: service.IPv4, MasqueradeBit: 14, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}
	config.Detector.CIDR = netip.MustParsePrefix("10.1.0.0/16")
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 99))
		w := &randomWorld{r: r, services: map[int]*corev1.Service{}, slices: map[int]*discoveryv1.EndpointSlice{}}
		for range 20 {
			w.change()
		}
		for _, s := range w.services {
			s.Spec.SessionAffinity = corev1.ServiceAffinityNone // the second flow would not go where the first could
		}
		node, client := namespace(t, fmt.Sprint("node", seed)), namespace(t, fmt.Sprint("client", seed))
		sh(t, client, `ip link set lo up
ip link add eth0 type veth peer name other
ip link add void type veth peer name pods
ip link set void up
ip addr add 198.51.100.77/32 dev eth0
ip addr add 10.1.0.77/32 dev eth0
ip link set eth0 up`)
		if err := client.Do(func() error { return errors.Join(moveLink("other", node), moveLink("pods", node)) }); err != nil {
			t.Fatal(err)
		}
		sh(t, node, `ip link set lo up
ip link set other name eth0
ip addr add 10.13.0.4/24 dev eth0
ip link set eth0 up
ip addr add 10.1.255.1/32 dev pods
ip link set pods up arp off
ip route add 10.1.0.0/16 dev pods
ip route add default dev eth0
sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0`)
		sh(t, client, "ip route add 10.13.0.4 dev eth0\nip route add default via 10.13.0.4 dev eth0")
		mustSync(t, syncerIn(t, node, config), w.ports())
		var to []netip.AddrPort
		for _, p := range randomPackets(r, 20) {
			to = append(to, netip.AddrPortFrom(p.Packet.Destination, p.Packet.DestinationPort.Number))
		}
		slices.SortFunc(to, netip.AddrPort.Compare)
		to = slices.Compact(to)
		model := nodeWith(t, node)
		for _, protocol := range []packet.Protocol{packet.UDP, packet.TCP, packet.SCTP} {
			for _, from := range []string{"10.13.0.4", "198.51.100.77", "10.1.0.77"} {
				source := netip.MustParseAddr(from)
				ns := client
				if from == "10.13.0.4" {
					ns = node
				}
				if err := flows.Send(ns, protocol, source, to, each); err != nil {
					t.Fatal(err)
				}
				went := went(t, node, protocol, source, each, len(to))
				for i, destination := range to {
					request := firstPacket(protocol, source, destination)
					if want := ends(t, model, request); !slices.Equal(want, went[i]) {
						t.Errorf("seed %d: %s from %s to %s went %q, walks say %q", seed, protocol, from, destination, went[i], want)
					}
				}
			}
		}
	}
}
