package walk

import (
	"math/big"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"packetwalk.dev/internal/capture/excerpt"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/writers"
)

// seed makes a snapshot of a listing out of an article about AKS.
func seed(t *testing.T, name, more string) snapshot.Source {
	t.Helper()
	a, err := txtar.ParseFile(filepath.Join("../../capture/pastedtext/testdata/fragments", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	src, err := excerpt.Read(writers.Book(&snapshot.Objects{}), nil, "", append(a.Files[0].Data, more...))
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// seedEnd is one end of a walk: where the packet goes, and whether with the sender's address.
type seedEnd struct {
	to          string
	masqueraded bool
	probability *big.Rat
}

// TestSeeds walks through nodes of which only the articles' excerpts are known.
func TestSeeds(t *testing.T) {
	half, sure := big.NewRat(1, 2), big.NewRat(1, 1)
	const agent = "$ sudo iptables -t nat -nvL IP-MASQ-AGENT\n" // shown again, as it was before the change
	for _, c := range []struct {
		name, seed, more, from, to string
		want                       []seedEnd
	}{
		{"Part 1: from outside, policy Cluster", "grep-service", "", "109.125.120.58:51535", "51.144.176.251:80",
			[]seedEnd{{"10.13.76.26:80", true, half}, {"10.13.76.7:80", true, half}}},
		{"Part 1: another port of the same address is not the service's", "grep-service", "", "109.125.120.58:51535", "51.144.176.251:81",
			[]seedEnd{{"51.144.176.251:81", false, sure}}},
		{"Part 1: shown again in parts, the same", "grep-repeated", "", "109.125.120.58:51535", "51.144.176.251:80",
			[]seedEnd{{"10.13.76.26:80", true, half}, {"10.13.76.7:80", true, half}}},
		{"Part 1: a pod to the cluster IP, itself among the endpoints", "grep-service", "", "10.13.76.7:40000", "10.0.159.58:80",
			[]seedEnd{{"10.13.76.26:80", false, half}, {"10.13.76.7:80", true, half}}},
		{"Part 1: a VM to the cluster IP", "grep-service", "", "10.13.1.4:40000", "10.0.159.58:80",
			[]seedEnd{{"10.13.76.26:80", true, half}, {"10.13.76.7:80", true, half}}},
		{"Part 1: policy Local", "local-policy", "", "167.220.197.180:13829", "13.93.66.174:80",
			[]seedEnd{{"10.13.76.15:80", false, half}, {"10.13.76.30:80", false, half}}},
		{"Part 1: a pod to the outside", "local-policy", "", "10.13.76.15:40000", "93.184.216.34:80",
			[]seedEnd{{"93.184.216.34:80", true, sure}}},
		{"Part 1: a pod to a VM", "local-policy", "", "10.13.76.15:40000", "10.13.1.4:80", []seedEnd{{"10.13.1.4:80", false, sure}}},
		{"Part 2: a kubenet pod to a VM", "kubenet-postrouting", "", "192.168.1.2:40000", "10.13.1.4:80",
			[]seedEnd{{"10.13.1.4:80", true, sure}}},
		{"Part 2: a kubenet pod to one on another node", "kubenet-postrouting", "", "192.168.0.9:40000", "192.168.1.2:80",
			[]seedEnd{{"192.168.1.2:80", false, sure}}},
		{"Azure CNI: to a VNet that the agent was told of", "azure-listings", "", "10.220.2.28:40000", "10.1.0.4:80",
			[]seedEnd{{"10.1.0.4:80", false, sure}}},
		{"Azure CNI: the same without the agent's entry", "azure-listings", agent + "Chain IP-MASQ-AGENT (1 references)\n" +
			"   14   911 MASQUERADE  all  --  *      *       0.0.0.0/0            0.0.0.0/0\n", "10.220.2.28:40000", "10.1.0.4:80",
			[]seedEnd{{"10.1.0.4:80", true, sure}}},
		{"Calico: out of its pool", "calico-listings", pools("10.240.0.0/16"), "10.240.0.20:40000", "172.17.0.4:80",
			[]seedEnd{{"172.17.0.4:80", true, sure}}},
		{"Calico: to what is made a pool", "calico-listings", pools("10.240.0.0/16", "172.17.0.0/16"), "10.240.0.20:40000", "172.17.0.4:80",
			[]seedEnd{{"172.17.0.4:80", false, sure}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkEnds(t, walkForwarded(t, seed(t, c.seed, c.more), c.from, c.to), c.from, c.want)
		})
	}
}

// pools returns the listing by ipset of Calico's set of all pools.
func pools(members ...string) string {
	return "\n$ sudo ipset list cali40all-ipam-pools\nName: cali40all-ipam-pools\nType: hash:net\nRevision: 6\n" +
		"Header: family inet hashsize 1024 maxelem 1048576\nSize in memory: 512\nReferences: 1\nMembers:\n" + strings.Join(members, "\n") + "\n"
}

// TestSeedCalico asks Part 5's question: who masquerades what a pod sends to the virtual node? Not the ip-masq-agent. Calico's chain, which
// decides first, is not in the text: until it is, the result is unknown.
func TestSeedCalico(t *testing.T) {
	const from, to = "10.13.76.17:40000", "10.13.100.6:8080"
	r := walkForwarded(t, seed(t, "calico-masq-agent", ""), from, to)
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		t.Logf("%v %s: %s, %s", o.Probability, o.End.Kind, o.End.Why, o.End.Packet.SourceEnd())
		if o.End.Kind == Left && o.Probability != nil {
			t.Errorf("taken to be certain: %s", o.End.Packet.SourceEnd())
		}
	}
	said := false
	for i := range r.Outcomes {
		for _, step := range r.Outcomes[i].There {
			said = said || step.Visit != nil && strings.Contains(step.Visit.Verdict.Detail, "cali-nat-outgoing")
		}
	}
	if !said {
		t.Error("no outcome says that cali-nat-outgoing is not known")
	}
	// With that chain empty the agent's list decides, and the packet keeps its source.
	const empty = "\n$ sudo iptables -t nat -S cali-nat-outgoing\n-N cali-nat-outgoing\n"
	checkEnds(t, walkForwarded(t, seed(t, "calico-masq-agent", empty), from, to), from, []seedEnd{{to, false, big.NewRat(1, 1)}})
	const outside = "40.118.18.202:443"
	checkEnds(t, walkForwarded(t, seed(t, "calico-masq-agent", empty), from, outside), from, []seedEnd{{outside, true, big.NewRat(1, 1)}})
}

// walkForwarded takes the first packet of a TCP connection, which came in from outside, through the node.
func walkForwarded(t *testing.T, src snapshot.Source, from, to string) *Result {
	t.Helper()
	a, b := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	r, err := Walk(src, Request{Host: src.Names()[0], Forwarded: true, OneWay: true, Packet: packet.Packet{
		Tuple: packet.Tuple{Protocol: packet.TCP, Source: a.Addr(), Destination: b.Addr(),
			SourcePort: packet.Exactly(a.Port()), DestinationPort: packet.Exactly(b.Port())},
		TCPFlags: packet.SYN, TTL: 64,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func checkEnds(t *testing.T, r *Result, from string, wants []seedEnd) {
	t.Helper()
	if len(r.Outcomes) != len(wants) {
		t.Errorf("%d outcomes, want %d", len(r.Outcomes), len(wants))
	}
	met := map[string]bool{}
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		p := o.End.Packet
		t.Logf("%v %s: %s, %s > %s", o.Probability, o.End.Kind, o.End.Why, p.SourceEnd(), p.DestinationEnd())
		if o.End.Kind != Left {
			t.Errorf("ended %s: %s", o.End.Kind, o.End.Why)
		}
		for _, w := range wants {
			if w.to == p.DestinationEnd() && w.masqueraded == !strings.HasPrefix(p.SourceEnd(), netip.MustParseAddrPort(from).Addr().String()+":") &&
				o.Probability != nil && o.Probability.Cmp(w.probability) == 0 {
				met[w.to] = true
			}
		}
	}
	for _, w := range wants {
		if !met[w.to] {
			t.Errorf("no outcome is %s, masqueraded %v, probability %s", w.to, w.masqueraded, w.probability)
		}
	}
	for _, a := range r.Assumed {
		t.Logf("assumed: %s", a.What)
	}
}
