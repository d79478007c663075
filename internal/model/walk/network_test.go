package walk

import (
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/conntrack"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/iptables"
)

// net is a topology made by hand: hosts with interfaces and wires between them.
type network struct {
	t     *testing.T
	hosts map[string]*snapshot.Host
	order []string
	macs  byte
	known snapshot.Objects
}

func newNetwork(t *testing.T) *network {
	return &network{t: t, hosts: map[string]*snapshot.Host{}}
}

// Host implements snapshot.Source.
func (n *network) Host(name string) (*snapshot.Host, error) {
	h, ok := n.hosts[name]
	if !ok {
		return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	return h, nil
}

// Names implements snapshot.Source.
func (n *network) Names() []string { return n.order }

// Objects implements snapshot.Source.
func (n *network) Objects() snapshot.Objects { return n.known }

// host makes a host that forwards, with loopback.
func (n *network) host(name string) *host {
	s := &snapshot.Host{
		Name: name, FIB: &fib.State{}, Rules: &netfilter.Ruleset{}, Flows: conntrack.NewTable(nil),
		Sysctls: map[string]string{"net.ipv4.ip_forward": "1", "net.bridge.bridge-nf-call-iptables": "1"},
	}
	n.hosts[name], n.order = s, append(n.order, name)
	h := &host{n, s}
	h.link(fib.Link{Name: "lo", Type: "loopback"})
	h.address("lo", "127.0.0.1/8")
	return h
}

type host struct {
	*network
	*snapshot.Host
}

func (h *host) link(l fib.Link) {
	h.macs++
	l.Index, l.Up, l.LowerUp = len(h.FIB.Links)+1, true, true
	if l.Type == "" {
		l.Type, l.MAC = "ether", packet.MAC{2, 0, 0, 0, 0, h.macs}
	}
	h.FIB.Links = append(h.FIB.Links, l)
	h.Sysctls["net.ipv4.conf."+l.Name+".forwarding"] = "1"
}

func (h *host) address(link, prefix string) {
	p := netip.MustParsePrefix(prefix)
	scope := "global"
	if link == "lo" {
		scope = "host"
	}
	h.FIB.Addresses = append(h.FIB.Addresses, fib.Address{Link: link, Prefix: p, Scope: scope})
	local := netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
	h.FIB.Routes = append(h.FIB.Routes, fib.Route{Table: fib.TableLocal, Type: "local", Destination: local, Link: link, Source: p.Addr(),
		Scope: "host"})
	if p.Bits() < p.Addr().BitLen() && link != "lo" {
		h.FIB.Routes = append(h.FIB.Routes, fib.Route{Table: fib.TableMain, Type: "unicast", Destination: p.Masked(), Link: link,
			Source: p.Addr(), Scope: "link"})
	}
}

// route reads "PREFIX via GATEWAY dev LINK", "PREFIX dev LINK" or "TYPE PREFIX".
func (h *host) route(text string) {
	f := strings.Fields(text)
	r := fib.Route{Table: fib.TableMain, Type: "unicast", Scope: "global"}
	if f[0] == "blackhole" || f[0] == "unreachable" || f[0] == "prohibit" {
		r.Type, f = f[0], f[1:]
	}
	if f[0] == "default" {
		f[0] = "0.0.0.0/0"
	}
	r.Destination = netip.MustParsePrefix(f[0])
	for i := 1; i+1 < len(f); i += 2 {
		switch f[i] {
		case "via":
			r.Gateway = netip.MustParseAddr(f[i+1])
		case "dev":
			r.Link = f[i+1]
		}
	}
	h.FIB.Routes = append(h.FIB.Routes, r)
}

// bridge makes a bridge of ports that are there.
func (h *host) bridge(name string, ports ...string) {
	h.link(fib.Link{Name: name, Kind: "bridge", Bridge: &fib.Bridge{}})
	for i := range h.FIB.Links {
		for _, p := range ports {
			if l := &h.FIB.Links[i]; l.Name == p {
				l.Master, l.Port = name, &fib.Port{State: "forwarding", Hairpin: true, Learning: true, Flood: true, BroadcastFlood: true}
			}
		}
	}
}

func (h *host) iptables(rules string) { h.rules(netfilter.IPv4, rules) }

func (h *host) rules(f netfilter.Family, rules string) {
	h.t.Helper()
	tables, err := iptables.Parse([]byte(rules))
	if err != nil {
		h.t.Fatal(err)
	}
	lowered, err := iptables.Lower(tables, f, netfilter.IPTablesNFT)
	if err != nil {
		h.t.Fatal(err)
	}
	h.Rules.Tables = append(h.Rules.Tables, lowered...)
}

func (h *host) listen(protocol packet.Protocol, at string) {
	h.Listeners = append(h.Listeners, snapshot.Listener{Protocol: protocol, Local: netip.MustParseAddrPort(at), Process: "server"})
}

func (n *network) wire(a *host, la string, b *host, lb string) {
	a.link(fib.Link{Name: la, Kind: "veth"})
	b.link(fib.Link{Name: lb, Kind: "veth"})
	a.Peers = append(a.Peers, snapshot.Peer{Link: la, Host: b.Name, PeerLink: lb})
	b.Peers = append(b.Peers, snapshot.Peer{Link: lb, Host: a.Name, PeerLink: la})
}

// tcp walks a SYN from a host to an address and port.
func (n *network) tcp(from, to string) *Result {
	n.t.Helper()
	return n.walk(Request{Host: from, Packet: syn("", to)})
}

func syn(from, to string) packet.Packet {
	p := packet.Packet{Tuple: packet.Tuple{Protocol: packet.TCP}, TCPFlags: packet.SYN}
	d := netip.MustParseAddrPort(to)
	p.Destination, p.DestinationPort = d.Addr(), packet.Exactly(d.Port())
	if from != "" {
		s := netip.MustParseAddrPort(from)
		p.Source, p.SourcePort = s.Addr(), packet.Exactly(s.Port())
	}
	return p
}

func (n *network) walk(req Request) *Result {
	n.t.Helper()
	for _, h := range n.hosts {
		h.FIB.Index()
		h.Rules.Index()
	}
	result, err := Walk(n, req)
	if err != nil {
		n.t.Fatal(err)
	}
	return result
}

// chain returns client (10.1.0.2) - router - server (10.2.0.2, listens on 80).
func chain(t *testing.T) (n *network, client, router, server *host) {
	n = newNetwork(t)
	client, router, server = n.host("client"), n.host("router"), n.host("server")
	n.wire(client, "eth0", router, "left")
	n.wire(server, "eth0", router, "right")
	client.address("eth0", "10.1.0.2/24")
	router.address("left", "10.1.0.1/24")
	router.address("right", "10.2.0.1/24")
	server.address("eth0", "10.2.0.2/24")
	client.route("default via 10.1.0.1 dev eth0")
	server.route("default via 10.2.0.1 dev eth0")
	server.listen(packet.TCP, "0.0.0.0:80")
	return n, client, router, server
}

// ends says in short how a walk ended: kind, host, the tuple there and the TTL, for the request and the reply.
func ends(o Outcome) string {
	text := fmt.Sprintf("%s at %s: %s ttl %d", o.End.Kind, o.End.Host, o.End.Packet.Tuple, o.End.Packet.TTL)
	if o.End.Why != "" {
		text += " (" + o.End.Why + ")"
	}
	if o.BackEnd != nil {
		b := o.BackEnd
		text += fmt.Sprintf("; back %s at %s: %s ttl %d", b.Kind, b.Host, b.Packet.Tuple, b.Packet.TTL)
		if b.Why != "" {
			text += " (" + b.Why + ")"
		}
	}
	return text
}

func want(t *testing.T, r *Result, outcomes ...string) {
	t.Helper()
	var got []string
	for _, o := range r.Outcomes {
		p := "?"
		if o.Probability != nil {
			p = o.Probability.RatString()
		}
		got = append(got, p+" "+ends(o))
	}
	if strings.Join(got, "\n") != strings.Join(outcomes, "\n") {
		t.Errorf("got\n%s\nwant\n%s\n%s", strings.Join(got, "\n"), strings.Join(outcomes, "\n"), steps(r))
	}
}

func steps(r *Result) string {
	var b strings.Builder
	for _, o := range r.Outcomes {
		for _, s := range append(o.There, o.Back...) {
			fmt.Fprintf(&b, "%s %s %s %s %v %s", s.Host, s.Stage, s.Hook, s.Packet.Tuple, s.Changes, s.Why)
			if s.Visit != nil {
				fmt.Fprintf(&b, " %s %s", s.Visit.Chain.Ref(s.Visit.Rule), s.Visit.Verdict.Kind)
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}
