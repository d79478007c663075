package walk

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/syntax/ebtables"
)

// kubenetNode returns a node with a promiscuous bridge, its gateway address, two pods and a service in front of each.
func kubenetNode(t *testing.T, kernel string, hairpin bool) *network {
	n := newNetwork(t)
	node, one, two := n.host("node"), n.host("one"), n.host("two")
	n.wire(node, "veth1", one, "eth0")
	n.wire(node, "veth2", two, "eth0")
	node.bridge("cbr0", "veth1", "veth2")
	for i := range node.FIB.Links {
		l := &node.FIB.Links[i]
		l.Promiscuous = l.Name == "cbr0"
		if l.Port != nil {
			l.Port.Hairpin = hairpin
		}
	}
	node.FIB.Kernel = kernel
	node.address("cbr0", "192.168.0.1/24")
	one.address("eth0", "192.168.0.2/24")
	two.address("eth0", "192.168.0.3/24")
	for _, pod := range []*host{one, two} {
		pod.route("default via 192.168.0.1 dev eth0")
		pod.listen(packet.TCP, "0.0.0.0:80")
	}
	node.iptables(nat("-A PREROUTING -d 10.0.0.2/32 -p tcp -j DNAT --to-destination 192.168.0.2",
		"-A PREROUTING -d 10.0.0.3/32 -p tcp -j DNAT --to-destination 192.168.0.3",
		"-A POSTROUTING -s 192.168.0.2/32 -d 192.168.0.2/32 -j MASQUERADE"))
	mac := node.FIB.Link("cbr0").MAC.String()
	e, err := ebtables.Parse([]byte("*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\n:KUBE-DEDUP ACCEPT\n-A OUTPUT -j KUBE-DEDUP\n" +
		"-A KUBE-DEDUP -p IPv4 -s " + mac + " -o veth+ --ip-src 192.168.0.1 -j ACCEPT\n-A KUBE-DEDUP -p IPv4 -s " + mac +
		" -o veth+ --ip-src 192.168.0.0/24 -j DROP\n"))
	if err != nil {
		t.Fatal(err)
	}
	tables, err := ebtables.Lower(e)
	if err != nil {
		t.Fatal(err)
	}
	node.Rules.Tables = append(node.Rules.Tables, tables...)
	return n
}

// TestPromiscuousBridge: a packet that a service turns round on the bridge also goes up to the node; each pod gets it once. A pod that
// reaches itself needs hairpin ports, or before Linux 6.9 the copy.
func TestPromiscuousBridge(t *testing.T) {
	const (
		self   = "1 delivered at one: tcp 192.168.0.1:4000 > 192.168.0.2:80 ttl 64; back delivered at one: tcp 10.0.0.2:80 > 192.168.0.2:4000 ttl 64"
		other  = "1 delivered at two: tcp 192.168.0.2:4000 > 192.168.0.3:80 ttl 64; back delivered at one: tcp 10.0.0.3:80 > 192.168.0.2:4000 ttl 64"
		byCopy = "1 delivered at one: tcp 192.168.0.1:4000 > 192.168.0.2:80 ttl 63; back delivered at one: tcp 10.0.0.2:80 > 192.168.0.2:4000 ttl 63"
		lost   = "1 dropped at node: tcp 192.168.0.2:4000 > 192.168.0.2:80 ttl 64 (the frame would leave by port veth1, where it came in: hairpin is off)"
	)
	for _, tt := range []struct {
		kernel  string
		hairpin bool
		to      string
		want    string
		ended   string // how the copy did; "" for none beside the packet
	}{
		{"6.18.44", true, "10.0.0.3:80", other, "dropped by filter KUBE-DEDUP 2"},
		{"5.4.0-1100-azure", true, "10.0.0.3:80", other, "dropped by filter KUBE-DEDUP 2"},
		{"6.18.44", true, "10.0.0.2:80", self, "dropped by filter KUBE-DEDUP 2"},
		{"6.18.44", false, "10.0.0.2:80", lost, "dropped by filter KUBE-DEDUP 2"},
		{"5.4.0-1100-azure", false, "10.0.0.2:80", byCopy, ""},
		{"6.18.44", true, "192.168.0.3:80", strings.ReplaceAll(other, "10.0.0.3", "192.168.0.3"), "the frame is for "},
	} {
		n := kubenetNode(t, tt.kernel, tt.hairpin)
		r := n.walk(Request{Host: "one", Packet: syn("192.168.0.2:4000", tt.to)})
		want(t, r, tt.want)
		ended := ""
		for _, s := range r.Outcomes[0].There {
			if s.Copied != nil {
				ended = s.Copied.End.Why
			}
		}
		if !strings.HasPrefix(ended, tt.ended) || tt.ended == "" && ended != "" {
			t.Errorf("Linux %s, hairpin %v, to %s: the copy: %q, want %q\n%s", tt.kernel, tt.hairpin, tt.to, ended, tt.ended, steps(r))
		}
	}
}

// floodingNode returns a network in which a node's bridge floods every frame of client to server and other.
func floodingNode(t *testing.T) (n *network, node *host) {
	n = newNetwork(t)
	client, node, server, other := n.host("client"), n.host("node"), n.host("server"), n.host("other")
	n.wire(node, "in", client, "eth0")
	n.wire(node, "first", server, "eth0")
	n.wire(node, "last", other, "eth0")
	node.bridge("br0", "in", "first", "last")
	for _, l := range node.FIB.Links {
		if l.Port != nil {
			l.Port.Learning, l.Port.Hairpin = false, false
		}
	}
	client.address("eth0", "10.1.0.2/24")
	server.address("eth0", "10.1.0.3/24")
	server.listen(packet.TCP, "0.0.0.0:80")
	return n, node
}

// TestFloodedCopies shows that copies are of one connection: the nat chains see the copy that leaves by the port which joined last, and
// bind for all.
func TestFloodedCopies(t *testing.T) {
	const physdev = "-A POSTROUTING -p tcp -m physdev --physdev-is-bridged --physdev-out %s -j SNAT --to-source 10.1.0.9"
	for out, source := range map[string]string{"last": "10.1.0.9", "first": "10.1.0.2"} {
		n, node := floodingNode(t)
		node.iptables(nat(fmt.Sprintf(physdev, out)))
		o := n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.1.0.3:80"), OneWay: true}).Outcomes[0]
		if o.End.Kind != Delivered || o.End.Host != "server" || o.End.Packet.Source.String() != source {
			t.Errorf("SNAT by %s: %s", out, ends(o))
		}
	}
}

// TestFloodedCopiesShareMark: each copy of a flooded frame meets the mark that the copy before it left in the connection.
func TestFloodedCopiesShareMark(t *testing.T) {
	const flip = "-j CONNMARK --set-xmark 0x1/0x0" // once for each copy
	for _, tt := range []struct {
		name, rules string
		mark        uint32
		end         string
	}{
		{"both copies", "-A FORWARD " + flip, 0, "delivered at server"},
		{"the other copy alone", "-A FORWARD -m physdev --physdev-out last " + flip, 1, "delivered at server"},
		{"dropped for the other copy's mark", "-A FORWARD -m connmark --mark 1 -j DROP\n-A FORWARD " + flip, 1, "dropped at node"},
		{"passed for the other copy's mark", "-A FORWARD -m physdev --physdev-out first -m connmark --mark 0 -j DROP\n-A FORWARD " + flip,
			0, "delivered at server"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, node := floodingNode(t)
			node.iptables("*filter\n:FORWARD ACCEPT\n" + tt.rules + "\nCOMMIT\n")
			r := n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", "10.1.0.3:80"), OneWay: true})
			o, mark := &r.Outcomes[0], uint32(0)
			for _, s := range o.There {
				if s.Host == "node" && s.Flow() != nil {
					mark = s.Flow().Mark
				}
			}
			if got := ends(*o); mark != tt.mark || !strings.HasPrefix(got, tt.end) {
				t.Errorf("mark %d, %s; want %d, %s\n%s", mark, got, tt.mark, tt.end, steps(r))
			}
		})
	}
}

// TestFloodedCopiesAtEgress: each copy of a flooded frame leaves before the next one meets the rules, whichever of them goes on.
func TestFloodedCopiesAtEgress(t *testing.T) {
	for _, to := range []string{"10.1.0.3:80", "10.1.0.4:80"} {
		t.Run(to, func(t *testing.T) {
			n, node := floodingNode(t)
			other := &host{n, n.hosts["other"]}
			other.address("eth0", "10.1.0.4/24")
			other.listen(packet.TCP, "0.0.0.0:80")
			node.iptables("*filter\n:FORWARD ACCEPT\n-A FORWARD -p tcp -j CONNMARK --set-xmark 0x1/0x0\nCOMMIT\n")
			node.device(netfilter.Egress, []string{"first", "last"}, isTCP, &netfilter.Decision{Verdict: netfilter.Verdict{Kind: netfilter.Accept}})
			o := n.walk(Request{Host: "client", Packet: syn("10.1.0.2:4000", to), OneWay: true}).Outcomes[0]
			var met []string
			note := func(all []Step) {
				for _, s := range all {
					if s.Host == "node" && s.Visit != nil && s.Visit.Rule != nil {
						met = append(met, s.Hook.String()+" "+cmp.Or(s.Packet.BridgeOut, s.Packet.Out))
					}
				}
			}
			for _, s := range o.There {
				if s.Copied != nil {
					note(s.Copied.Steps)
				}
				note([]Step{s})
			}
			const want = "forward last, egress last, forward first, egress first"
			if got := strings.Join(met, ", "); got != want || o.End.Kind != Delivered {
				t.Errorf("%s, %s; want %s", o.End.Kind, got, want)
			}
		})
	}
}
