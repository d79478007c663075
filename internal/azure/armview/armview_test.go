package armview_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/model/conntrack"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/testing/goldentest"
)

// nodes are two machines as AKS makes them, each with a pod behind an interface of its own.
type nodes map[string]*snapshot.Host

func (n nodes) Names() []string { return []string{"node/n1", "node/n2"} }

func (n nodes) Host(name string) (*snapshot.Host, error) {
	if h := n[name]; h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
}

func (n nodes) Objects() snapshot.Objects {
	ip := netip.MustParseAddr
	return snapshot.Objects{
		Nodes: []snapshot.Node{
			{Name: "n1", IPs: []netip.Addr{ip("10.1.0.4")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}},
			{Name: "n2", IPs: []netip.Addr{ip("10.1.0.5")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}},
		},
		Pods: []snapshot.Pod{
			{Namespace: "default", Name: "a", Node: "n1", IPs: []netip.Addr{ip("10.1.64.10")}},
			{Namespace: "default", Name: "b", Node: "n2", IPs: []netip.Addr{ip("10.1.64.20")}},
		},
	}
}

func node(name, address string, pods ...string) *snapshot.Host {
	a := netip.MustParseAddr(address)
	h := &snapshot.Host{
		Name: "node/" + name, FIB: &fib.State{}, Rules: &netfilter.Ruleset{}, Flows: conntrack.NewTable(nil),
		Sysctls: map[string]string{"net.ipv4.ip_forward": "1", "net.ipv4.conf.eth0.forwarding": "1", "net.ipv4.conf.pod.forwarding": "1"},
	}
	h.FIB.Links = []fib.Link{
		{Index: 1, Name: "lo", Type: "loopback", Up: true, LowerUp: true},
		{Index: 2, Name: "eth0", Type: "ether", MAC: packet.MAC{0, 0x0d, 0x3a, 0, 0, a.As4()[3]}, MTU: 1500, Up: true, LowerUp: true},
		{Index: 3, Name: "pod", Type: "none", MTU: 1500, Up: true, LowerUp: true},
	}
	h.FIB.Addresses = []fib.Address{{Link: "eth0", Prefix: netip.PrefixFrom(a, 16), Scope: "global"}}
	h.FIB.Routes = []fib.Route{
		{Table: fib.TableLocal, Type: "local", Destination: netip.PrefixFrom(a, 32), Link: "eth0", Source: a, Scope: "host"},
		{Table: fib.TableMain, Type: "unicast", Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("10.1.0.1"),
			Link: "eth0", Scope: "global"},
		{Table: fib.TableMain, Type: "unicast", Destination: netip.MustParsePrefix("10.1.0.0/16"), Link: "eth0", Source: a, Scope: "link"},
	}
	for _, p := range pods {
		h.FIB.Routes = append(h.FIB.Routes, fib.Route{Table: fib.TableMain, Type: "unicast", Destination: netip.MustParsePrefix(p), Link: "pod",
			Scope: "link"})
	}
	for _, r := range [][2]int{{0, fib.TableLocal}, {32766, fib.TableMain}, {32767, fib.TableDefault}} {
		h.FIB.Rules = append(h.FIB.Rules, fib.Rule{Priority: r[0], Action: "lookup", Table: r[1], SuppressPrefixLength: -1, SuppressGroup: -1})
	}
	h.FIB.Index()
	h.Rules.Index()
	return h
}

func source() nodes {
	return nodes{"node/n1": node("n1", "10.1.0.4", "10.1.64.10/32", "10.244.1.0/24"),
		"node/n2": node("n2", "10.1.0.5", "10.1.64.20/32", "10.244.2.0/24")}
}

// request reads "[HOST ]SOURCE > DESTINATION:PORT [udp|icmp]". Without a host the packet is sent by the node n1; with one it comes in
// there, at the fabric from the internet.
func request(t *testing.T, line string) walk.Request {
	t.Helper()
	f := strings.Fields(line)
	r := walk.Request{Host: "node/n1"}
	if f[1] != ">" {
		r.Host, r.Forwarded, f = f[0], true, f[1:]
		r.Arrives = map[string]string{"fabric": "internet", "node/n1": "pod", "node/n2": "pod"}[r.Host]
	}
	to := netip.MustParseAddrPort(f[2])
	r.Packet = packet.Packet{Tuple: packet.Tuple{
		Protocol: packet.TCP, Source: netip.MustParseAddr(f[0]), Destination: to.Addr(), SourcePort: packet.Exactly(40000),
		DestinationPort: packet.Exactly(to.Port()),
	}, TTL: 64}
	switch {
	case len(f) < 4:
		r.Packet.TCPFlags = packet.SYN
	case f[3] == "udp":
		r.Packet.Protocol = packet.UDP
	default:
		r.Packet.Protocol, r.Packet.Type, r.Packet.SourcePort, r.Packet.DestinationPort = packet.ICMP, 8, packet.Port{}, packet.Port{}
	}
	return r
}

// TestWalks: resources and walks in, what the walks' ends see and which rules of Azure's decided out.
func TestWalks(t *testing.T) {
	goldentest.Run(t, "testdata/*.txtar", 2, func(t *testing.T, in []txtar.File) []txtar.File {
		r := armview.NewResources()
		if err := r.Read("resources.json", in[0].Data); err != nil {
			t.Fatal(err)
		}
		src := extend(t, source(), r)
		var b strings.Builder
		for line := range strings.Lines(string(in[1].Data)) {
			result, err := walk.Walk(src, request(t, line))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "%s", line)
			for i := range result.Outcomes {
				b.WriteString(outcome(&result.Outcomes[i]))
			}
		}
		for _, n := range src.Notes() {
			fmt.Fprintln(&b, n)
		}
		return []txtar.File{{Name: "walks", Data: []byte(b.String())}}
	})
}

// TestNoHop: a packet comes to a machine with the TTL with which it left another one, as in a lab and in Azure. That of a TTL that has run
// out is no less.
func TestNoHop(t *testing.T) {
	r := armview.NewResources()
	archive, err := txtar.ParseFile("testdata/kubenet.txtar")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Read("resources.json", archive.Files[0].Data); err != nil {
		t.Fatal(err)
	}
	for ttl, want := range map[uint8]uint8{64: 63, 2: 1} { // the sending node forwards for its pod
		q := request(t, "node/n1 10.244.1.7 > 10.244.2.8:443")
		q.Packet.TTL = ttl
		result, err := walk.Walk(extend(t, source(), r), q)
		if err != nil {
			t.Fatal(err)
		}
		var got uint8
		for _, s := range result.Outcomes[0].There {
			if s.Host == "node/n2" && s.Stage == walk.Received && got == 0 {
				got = s.Packet.TTL
			}
		}
		if got != want {
			t.Errorf("TTL %d at the sending pod, %d at the other node, want %d", ttl, got, want)
		}
	}
}

func extend(t *testing.T, src snapshot.Source, r *armview.Resources) *armview.AzureSource {
	t.Helper()
	e, err := armview.Extend(src, r)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestFloatingReply shows that a back end of a rule with floating IP, as AKS's are, answers from the front end's address. The reply follows
// the routes of the back end's subnet. No other host may send from that address.
func TestFloatingReply(t *testing.T) {
	for name, c := range map[string]struct{ file, line, want string }{
		"to the internet":       {"outbound_rules", "fabric 198.51.100.80 > 203.0.113.20:80", "back: left fabric: through internet"},
		"to a firewall":         {"firewall_inbound", "fabric 198.51.100.80 > 203.0.113.20:80", "back: dropped fabric: asymmetric routing"},
		"sender is no back end": {"outbound_rules", "203.0.113.99 > 198.51.100.80:443", "dropped fabric: 203.0.113.99 > 198.51.100.80:443"},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := txtar.ParseFile("testdata/" + c.file + ".txtar")
			if err != nil {
				t.Fatal(err)
			}
			r := armview.NewResources()
			floating := strings.Replace(string(a.Files[0].Data), `"frontendPort": 80,`, `"frontendPort": 80, "enableFloatingIP": true,`, 1)
			if err := r.Read("resources.json", []byte(floating)); err != nil {
				t.Fatal(err)
			}
			hosts := source()
			for _, h := range hosts {
				for _, address := range []string{"203.0.113.20", "203.0.113.99"} { // as a service proxy has it, in effect
					ip := netip.MustParseAddr(address)
					h.FIB.Addresses = append(h.FIB.Addresses, fib.Address{Link: "lo", Prefix: netip.PrefixFrom(ip, 32), Scope: "host"})
					h.FIB.Routes = append(h.FIB.Routes, fib.Route{Table: fib.TableLocal, Type: "local", Destination: netip.PrefixFrom(ip, 32),
						Link: "lo", Source: ip, Scope: "host"})
				}
				h.FIB.Index()
			}
			result, err := walk.Walk(extend(t, hosts, r), request(t, c.line))
			if err != nil {
				t.Fatal(err)
			}
			for i := range result.Outcomes {
				if got := outcome(&result.Outcomes[i]); !strings.Contains(got, c.want) {
					t.Errorf("%s, want %q in it", got, c.want)
				}
			}
		})
	}
}

// withFirewall are the nodes and a machine that forwards and translates nothing.
type withFirewall struct{ nodes }

func (w withFirewall) Names() []string { return append(w.nodes.Names(), "vm/firewall") }

// TestForwarderKeepsSource shows that the internet never sees a private address: Azure drops what a machine forwards to it untranslated.
// The packet comes through Azure's network twice, with one connection.
func TestForwarderKeepsSource(t *testing.T) {
	a, err := txtar.ParseFile("testdata/firewall_interface.txtar")
	if err != nil {
		t.Fatal(err)
	}
	r := armview.NewResources()
	if err := r.Read("resources.json", a.Files[0].Data); err != nil {
		t.Fatal(err)
	}
	hosts := source()
	firewall := node("firewall", "10.1.200.4")
	firewall.Name = "vm/firewall"
	firewall.FIB.Link("eth0").MAC = packet.MAC{0, 0x0d, 0x3a, 0, 0, 0xc8}
	hosts["vm/firewall"] = firewall
	src := extend(t, withFirewall{hosts}, r)
	for _, to := range []string{"198.51.100.80:443", "203.0.113.20:80"} {
		result, err := walk.Walk(src, request(t, "10.1.0.4 > "+to))
		if err != nil {
			t.Fatal(err)
		}
		for i := range result.Outcomes {
			got, want := outcome(&result.Outcomes[i]), "dropped fabric: 10.1.0.4 > "+to
			if !strings.Contains(got, want) || !strings.Contains(got, "not the NIC's address") {
				t.Errorf("got %s", got)
			}
		}
	}
}

func outcome(o *walk.Outcome) string {
	var why []string
	for _, s := range o.There {
		if s.Host == armview.Host && s.Visit != nil && s.Visit.Rule != nil && s.Visit.Rule.Comment != "" && s.Visit.Rule.Comment != vnet.NoHop {
			why = append(why, s.Visit.Rule.Comment)
		}
	}
	end := o.End.Host
	if o.End.Kind == walk.Left {
		end += " by " + o.End.Link
	}
	if o.End.Forwarder != "" {
		end += ", seen by " + o.End.Forwarder
	}
	text := fmt.Sprintf("  %s %s: %s > %s", o.End.Kind, end, o.End.Packet.Source, o.End.Packet.DestinationEnd())
	if o.End.Why != "" && o.End.Kind != walk.Left {
		text += "\n    " + o.End.Why
	}
	if o.BackEnd != nil {
		text += fmt.Sprintf("\n    back: %s %s", o.BackEnd.Kind, o.BackEnd.Host)
		if o.BackEnd.Why != "" {
			text += ": " + o.BackEnd.Why
		}
	}
	return text + "\n    " + strings.Join(slices.Compact(why), "; ") + "\n"
}

// TestNothingRead: nothing is assumed absent because it was not read.
func TestNothingRead(t *testing.T) {
	src := extend(t, source(), armview.NewResources())
	result, err := walk.Walk(src, request(t, "10.1.0.4 > 203.0.113.9:443"))
	if err != nil {
		t.Fatal(err)
	}
	end := result.Outcomes[0].End
	if end.Kind != walk.Undecided || !strings.Contains(end.Why, "the interface of node n1 was not read") {
		t.Errorf("%s: %s", end.Kind, end.Why)
	}
}

// FuzzRead: whatever stands in a file, reading and walking end.
func FuzzRead(f *testing.F) {
	for _, s := range []string{`[]`, `{"id":"/a/networkInterfaces/x"}`,
		`{"value":[{"id":"/x/virtualNetworks/v","properties":{"subnets":[{"id":""}]}}]}`} {
		f.Add([]byte(s))
	}
	seeds, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(seeds) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, name := range seeds {
		a, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(a.Files[0].Data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := armview.NewResources()
		if r.Read("resources.json", data) != nil {
			return
		}
		src, err := armview.Extend(source(), r)
		if err == nil {
			_, err = walk.Walk(src, request(t, "10.1.0.4 > 203.0.113.9:443"))
		}
		if _, other := errors.AsType[*armview.MismatchError](err); err != nil && !other {
			t.Fatal(err)
		}
	})
}

// TestWithDoubts shows that a lab's fabric asks where its kernel decides by one of two readings, before the verdict and once.
func TestWithDoubts(t *testing.T) {
	drop := &netfilter.Decision{Verdict: netfilter.Verdict{Kind: netfilter.Drop}}
	comment := vnet.DoubtAccess.Comment("no-internet (300)")
	chain := &netfilter.Chain{Name: "nsg/a/out/v", Rules: []netfilter.Rule{
		{Number: 1, Statements: []netfilter.Statement{&netfilter.MatchProtocol{Protocol: packet.TCP}, drop}, Comment: comment},
		{Number: 2, Statements: []netfilter.Statement{drop}, Comment: vnet.DoubtRule.Comment("no-8443 (310)")},
	}}
	fabric := &snapshot.Host{Name: armview.Host, Rules: &netfilter.Ruleset{Tables: []*netfilter.Table{{Chains: []*netfilter.Chain{chain}}}}}
	src := armview.WithDoubts(nodes{armview.Host: fabric})
	for range 2 {
		if _, err := src.Host(armview.Host); err != nil {
			t.Fatal(err)
		}
	}
	asking := chain.Rules[0].Statements
	if len(asking) != 3 || asking[1].String() != "not understood: "+vnet.InternetDoubt || asking[2] != drop {
		t.Errorf("doubted rule: %v", asking)
	}
	if len(chain.Rules[1].Statements) != 1 {
		t.Errorf("rule with a certain verdict: %v", chain.Rules[1].Statements)
	}
}
