package oracle

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/testing/flows"
)

// wired creates the namespace of the node on which packets are walked, and one namespace for all other hosts, which never answer.
func wired(ctx context.Context, dir, name string, v Settings) (node, others *netns.Namespace, err error) {
	if others, err = netns.Create(filepath.Join(dir, name+"-others")); err != nil {
		return nil, nil, err
	}
	if node, err = netns.Create(filepath.Join(dir, name)); err != nil {
		return nil, others, err
	}
	a, pods := addressesOf(v), podLink(v)
	family := "-4"
	if v.IPv6 {
		family = "-6"
	}
	var there, here strings.Builder
	for i, link := range []string{outside, pods} {
		mac := fmt.Sprintf("02:00:00:00:00:%02x", i+1) // of both ends, because ARP is off
		fmt.Fprintf(&there, "link add %s address %s type veth peer name other address %s\n", link, mac, mac)
		fmt.Fprintf(&there, "link set other up arp off netns %s name %s\nlink set %s up arp off\n", node.Path(), link, link)
		fmt.Fprintf(&here, "link set %s up\n", link)
	}
	fmt.Fprintf(&there, "route add default dev %s\nrule add from %s lookup 100\nroute add default dev %s table 100\n", outside, a.pods, pods)
	if v.IPv6 {
		slices.Reverse(a.node) // the kernel lists the newest first, and of equals chooses the first
	}
	for _, ip := range a.node {
		fmt.Fprintf(&here, "address add %s dev %s\n", single(ip), outside)
	}
	fmt.Fprintf(&here, "address add %s dev lo\nroute add default dev %s\nroute add %s dev %s\n", single(a.vip), outside, a.pods, pods)
	drop := "table inet silent {\n chain input {\n type filter hook input priority 0; policy drop;\n }\n}\n"
	settings := []string{"-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", "net.ipv4.conf.all.rp_filter=0",
		"net.ipv4.conf." + outside + ".rp_filter=0", "net.ipv4.conf." + pods + ".rp_filter=0"}
	for _, c := range []program.Command{
		{Path: "ip", Args: []string{family, "-batch", "-"}, Stdin: []byte(there.String()), In: others.Do},
		{Path: "nft", Args: []string{"-f", "-"}, Stdin: []byte(drop), In: others.Do},
		{Path: "ip", Args: []string{family, "-batch", "-"}, Stdin: []byte(here.String()), In: node.Do},
		{Path: "sysctl", Args: settings, In: node.Do},
	} {
		if _, err := c.Output(ctx); err != nil {
			return node, others, err
		}
	}
	return node, others, nil
}

// single returns an address as a single-address prefix for ip(8), without duplicate address detection.
func single(a netip.Addr) string {
	text := netip.PrefixFrom(a, a.BitLen()).String()
	if a.Is6() {
		text += " nodad"
	}
	return text
}

// What is sent in a world: so many packets, each as the first of so many flows.
const (
	landedPackets = 10
	flowsOfPacket = 100
)

// nowhere is what becomes of what is refused or dropped: conntrack has no flow of it.
const nowhere = "nowhere"

// land sends real flows, and compares where they went with what walks say.
func (m *tableModes) land(ctx context.Context, packets []probe, nodes []*node) (*Disagreement, error) {
	_, sticky := clients(packets, m.ours.ports)
	a := addressesOf(m.settings)
	var sent []probe
	for _, p := range packets {
		fromPod := a.pods.Contains(p.source)
		odd := p.arrives == outside && fromPod || p.arrives == podLink(m.settings) && !fromPod
		toItself := p.source == p.to.Addr() // conntrack notes it on its way out, whatever becomes of it on its way in
		if len(sent) < landedPackets && !odd && !toItself && !slices.Contains(sticky, p) {
			sent = append(sent, p)
		}
	}
	for i, others := range m.others {
		if err := addSources(ctx, others, sent); err != nil {
			return nil, err
		}
		for j := range sent {
			p := &sent[j]
			said, err := nodes[i].ways(p)
			if err != nil {
				return nil, err
			}
			went, err := went(m.namespaces[i], others, p)
			if err != nil {
				return nil, err
			}
			m.tally.Landed += flowsOfPacket
			if what := misses(said, went); what != "" {
				return &Disagreement{What: fmt.Sprintf("real flows in %s", m.namespaces[i].Path()), Diff: fmt.Sprintf(
					"%s\nwalks say %v\nflows went %v\n%s", p, said, went, what)}, nil
			}
		}
	}
	return nil, nil
}

// addSources gives the others the addresses that they send from.
func addSources(ctx context.Context, ns *netns.Namespace, sent []probe) error {
	var lines []string
	for i := range sent {
		if sent[i].arrives != "" {
			lines = append(lines, "address replace "+single(sent[i].source)+" dev lo\n")
		}
	}
	slices.Sort(lines)
	_, err := program.Command{Path: "ip", Args: []string{"-batch", "-"}, Stdin: []byte(strings.Join(slices.Compact(lines), "")),
		In: ns.Do}.Output(ctx)
	return err
}

// ways returns the places that a packet may reach, with their probabilities.
func (n *node) ways(p *probe) (outcomes, error) {
	r, err := walk.Walk(n, p.request())
	if err != nil {
		return nil, err
	}
	ways := outcomes{}
	for i := range r.Outcomes {
		odds, _, err := chance(r.Outcomes[i].Choices)
		if err != nil {
			return nil, err
		}
		e := &r.Outcomes[i].End
		text := nowhere
		if e.Kind == walk.Left || e.Kind == walk.Delivered && e.Packet.Protocol != packet.TCP { // a reset ends it at once: nothing listens
			text = flows.Way{Answers: netip.AddrPortFrom(e.Packet.Destination, e.Packet.DestinationPort.Number), To: e.Packet.Source}.String()
		}
		ways[text] += odds
	}
	return ways, nil
}

// went sends a packet as the first one of many flows, and counts where they went.
func went(node, others *netns.Namespace, p *probe) (map[string]int, error) {
	from := others
	if p.arrives == "" {
		from = node
	}
	if err := flows.Forget(node); err != nil {
		return nil, err
	}
	protocol := protocols[p.protocol]
	if err := flows.Send(from, protocol, p.source, []netip.AddrPort{p.to}, flowsOfPacket); err != nil {
		return nil, err
	}
	ways, err := flows.Tracked(node, protocol, p.source, flowsOfPacket, 1)
	if err != nil {
		return nil, err
	}
	counts := map[string]int{nowhere: flowsOfPacket}
	for way, n := range ways[0] {
		counts[way.String()] += n
		counts[nowhere] -= n
	}
	return counts, nil
}

// misses tells what went where it could not, and what did not go where it would have gone but once in 10^9 times.
func misses(said outcomes, went map[string]int) string {
	for way, n := range went {
		if n > 0 && said[way] == 0 {
			return fmt.Sprintf("%d to %s", n, way)
		}
	}
	for way, odds := range said {
		if went[way] == 0 && math.Pow(1-odds, flowsOfPacket) < 1e-9 {
			return "none to " + way
		}
	}
	return ""
}
