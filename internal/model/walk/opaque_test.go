package walk

import (
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// undecided checks that the only outcome of a walk is unknown, for a reason that contains words.
func undecided(t *testing.T, what string, r *Result, words string) {
	t.Helper()
	if o := r.Outcomes[0]; len(r.Outcomes) != 1 || o.End.Kind != Undecided || !strings.Contains(o.End.Why, words) {
		t.Errorf("%s: %s, want it unknown: %s", what, ends(o), words)
	}
}

// TestNobodyKnownAnswers: a walk does not say that no host answers where an unknown one may.
func TestNobodyKnownAnswers(t *testing.T) {
	for _, kind := range []string{"bond", "vlan", "macvlan", "ipvlan", "netkit", "openvswitch", "team", "gretap", "tun"} {
		n := newNetwork(t)
		node := n.host("node")
		node.link(fib.Link{Name: "x0", Kind: kind})
		node.address("x0", "10.0.0.4/24")
		node.route("default via 10.0.0.1 dev x0")
		undecided(t, kind, n.tcp("node", "203.0.113.9:443"), "x0 is of kind "+kind)
		n.hosts["node"].FIB.Links[1].Up = false
		if o := n.tcp("node", "203.0.113.9:443").Outcomes[0]; o.End.Kind != Dropped {
			t.Errorf("%s that is down: %s", kind, ends(o))
		}
	}
}

// TestWireToSwitch: the host's end of a pod's wire may belong to a switch that is not walked (OVN-Kubernetes: Open vSwitch).
func TestWireToSwitch(t *testing.T) {
	n := newNetwork(t)
	pod, node := n.host("pod/a/b"), n.host("node/n")
	n.wire(pod, "eth0", node, "abcdef")
	node.link(fib.Link{Name: "ovs-system", Kind: "openvswitch"})
	node.FIB.Links[1].Master = "ovs-system"
	pod.address("eth0", "10.128.0.7/23")
	pod.route("default via 10.128.0.1 dev eth0")
	node.address("ovs-system", "10.128.0.2/23")
	undecided(t, "asked", n.tcp("pod/a/b", "203.0.113.9:443"), "abcdef belongs to ovs-system of kind openvswitch")
}

// TestNetkit: a wire of that kind has programs of its own, also where both ends are known.
func TestNetkit(t *testing.T) {
	n := newNetwork(t)
	pod, node := n.host("pod/a/b"), n.host("node/n")
	n.wire(pod, "eth0", node, "lxc1")
	pod.FIB.Links[1].Kind, node.FIB.Links[1].Kind = "netkit", "netkit"
	pod.address("eth0", "10.128.0.7/24")
	node.address("lxc1", "10.128.0.1/24")
	undecided(t, "a pod", n.tcp("pod/a/b", "10.128.0.1:80"), "eth0 gets the programs of netkit")
	// The kernel tells the programs of both at the node's end.
	node.FIB.Links[1].Program, node.FIB.Links[1].ProgramOut = "BPF program from_pod (id 7, netkit)", "BPF program to_pod (id 8, netkit)"
	undecided(t, "from the pod", n.tcp("pod/a/b", "10.128.0.1:80"), "what passes eth0 gets BPF program from_pod (id 7, netkit)")
	undecided(t, "to the pod", n.tcp("node/n", "10.128.0.7:80"), "what passes lxc1 gets BPF program to_pod (id 8, netkit)")
}

// TestProgramMayAnswer checks that a program at the wire may answer a question, or forward it. An answer of a known host counts all the
// same.
func TestProgramMayAnswer(t *testing.T) {
	for _, answers := range []bool{false, true} {
		n, client, router, _ := chain(t)
		router.FIB.Links[1].Program = "a BPF program (tcx)"
		to := "10.2.0.2:80"
		if !answers {
			client.route("10.3.0.0/16 via 10.1.0.77 dev eth0")
			to = "10.3.0.1:80"
		}
		words := "what comes in by left gets a BPF program (tcx)"
		undecided(t, to, n.tcp("client", to), words)
		if at := n.tcp("client", to).Outcomes[0].End.Host; (at == "router") != answers {
			t.Errorf("%s: ended at %s", to, at)
		}
	}
}

// TestSandbox: what a sandbox with a separate network stack sends and does with what it gets is unknown. Its namespace may have no address.
func TestSandbox(t *testing.T) {
	for _, addresses := range []bool{true, false} {
		n, client, _, server := chain(t)
		server.Sandbox = "runtimeClassName gvisor, handler runsc"
		if !addresses {
			server.FIB.Addresses = nil
		}
		const words = "a separate network stack (runtimeClassName gvisor, handler runsc), which is not read"
		undecided(t, "to a sandbox", n.tcp("client", "10.2.0.2:80"), words)
		server.Sandbox, client.Sandbox = "", server.Sandbox
		undecided(t, "from a sandbox", n.tcp("client", "10.2.0.2:80"), words)
	}
}

// TestBridgeOverBond: a frame for a station that a bridge has not seen may leave by a port that is not walked.
func TestBridgeOverBond(t *testing.T) {
	n := newNetwork(t)
	node, vm := n.host("node"), n.host("vm")
	node.link(fib.Link{Name: "bond0", Kind: "bond"})
	n.wire(node, "vnet0", vm, "eth0")
	vm.address("eth0", "10.0.0.9/24")
	node.bridge("br0", "bond0", "vnet0")
	node.address("br0", "10.0.0.4/24")
	node.route("default via 10.0.0.1 dev br0")
	undecided(t, "no neighbour", n.tcp("node", "203.0.113.9:443"), "bond0 is of kind bond")
	if o := n.tcp("node", "10.0.0.9:80").Outcomes[0]; o.End.Kind != Delivered || o.End.Host != "vm" {
		t.Errorf("the one who is known answers: %s", ends(o))
	}
	node.FIB.Neighbours = []fib.Neighbour{{Link: "br0", Address: netip.MustParseAddr("10.0.0.1"), MAC: packet.MAC{2, 9, 9, 9, 9, 9}, State: "STALE"}}
	undecided(t, "no station", n.tcp("node", "203.0.113.9:443"), "bond0 is of kind bond")
}

// TestLinkDoesNotAsk checks that a link without ARP sends no request and answers none. The frame has the link's own address
// (arp_constructor).
func TestLinkDoesNotAsk(t *testing.T) {
	n, client, _, _ := chain(t)
	client.FIB.Links[1].NoARP = true
	if o := n.tcp("client", "10.2.0.2:80").Outcomes[0]; o.End.Kind != Dropped || o.End.Host != "router" ||
		!strings.Contains(o.End.Why, "the frame is for "+client.FIB.Links[1].MAC.String()) {
		t.Error(ends(o))
	}
	n, _, router, _ := chain(t)
	router.FIB.Links[1].NoARP = true
	if o := n.tcp("client", "10.2.0.2:80").Outcomes[0]; o.End.Kind != Dropped || !strings.Contains(o.End.Why, "no host on eth0 answers") {
		t.Error(ends(o))
	}
}

// TestProgramsNotKnown: a program that is known counts where others may be there; that none are is said of both directions.
func TestProgramsNotKnown(t *testing.T) {
	n, client, router, _ := chain(t)
	missing := map[snapshot.Part]string{snapshot.Programs: "bpf: no such device"}
	client.Missing = missing
	words := "programs on its links unknown; assuming there are none"
	if r := n.walk(Request{Host: "client", Packet: syn("", "10.2.0.2:80"), OneWay: true}); !strings.Contains(assumptions(r), words) {
		t.Errorf("sent: %s", assumptions(r))
	}
	router.Missing = missing
	router.FIB.Links[1].Program = "an XDP program (id 7)"
	undecided(t, "XDP", n.tcp("client", "10.2.0.2:80"), "an XDP program (id 7)")
}

// TestProgramAtLoopback: what a host sends to itself passes the programs and qdiscs of lo.
func TestProgramAtLoopback(t *testing.T) {
	for _, out := range []bool{false, true} {
		n, client, _, _ := chain(t)
		lo, words := client.FIB.Link("lo"), "what comes in by lo gets"
		if lo.Program = "filter"; out {
			lo.Program, lo.ProgramOut, words = "", "qdisc netem 1: (root)", "what leaves by lo gets qdisc netem 1: (root)"
		}
		undecided(t, words, n.tcp("client", "127.0.0.1:80"), words)
	}
}
