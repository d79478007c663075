package ports

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"packetwalk.dev/internal/model/conntrack"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// flow returns a TCP connection from client to server that leaves as source.
func flow(client, source, server string) packet.Flow {
	c, s, d := netip.MustParseAddrPort(client), netip.MustParseAddrPort(source), netip.MustParseAddrPort(server)
	return packet.Flow{
		Original: packet.Tuple{
			Protocol: packet.TCP, Source: c.Addr(), SourcePort: packet.Exactly(c.Port()), Destination: d.Addr(), DestinationPort: packet.Exactly(d.Port()),
		},
		Reply: packet.Tuple{
			Protocol: packet.TCP, Source: d.Addr(), SourcePort: packet.Exactly(d.Port()), Destination: s.Addr(), DestinationPort: packet.Exactly(s.Port()),
		},
		State: "ESTABLISHED",
	}
}

func host(rules *netfilter.Ruleset, flows ...packet.Flow) *snapshot.Host {
	return &snapshot.Host{Name: "node/a", Rules: rules, Flows: conntrack.NewTable(flows)}
}

func TestCount(t *testing.T) {
	const db = "198.51.100.10:5432"
	waiting := flow("10.244.0.6:40002", "10.224.0.4:40002", db)
	waiting.State = "TIME_WAIT"
	udp := flow("10.244.0.5:53000", "10.224.0.4:53000", "198.51.100.53:53")
	udp.Original.Protocol, udp.Reply.Protocol, udp.State = packet.UDP, packet.UDP, ""
	ping := flow("10.244.0.5:1", "10.224.0.4:1", "198.51.100.10:0")
	ping.Original.Protocol, ping.Reply.Protocol = packet.ICMP, packet.ICMP
	service := flow("198.51.100.9:5000", "10.224.0.4:5000", "10.244.1.7:8080")
	service.Original.Destination, service.Original.DestinationPort = netip.MustParseAddr("203.0.113.10"), packet.Exactly(80)
	flows := []packet.Flow{
		flow("10.244.0.5:40000", "10.224.0.4:40000", db),
		flow("10.244.0.5:40001", "10.224.0.4:1024", db),
		waiting,
		flow("10.224.0.4:50000", "10.224.0.4:50000", db),                                // the host's own, towards a destination that others use, too
		flow("10.224.0.4:50001", "10.224.0.4:50001", "10.224.0.5:443"),                  // only the host's own
		flow("10.244.0.5:40000", "10.244.0.5:40000", "10.244.1.9:80"),                   // forwarded as it is
		flow("[fd00::5]:40000", "[2001:db8::4]:40000", "[2001:db8:1::10]:443"), service, // a Service's client
		udp, ping,
	}
	use := func(source, destination string, protocol packet.Protocol, inUse, timeWait int, clients ...Client) Use {
		return Use{
			Key: Key{Host: "node/a", Protocol: protocol, Source: netip.MustParseAddr(source), Destination: netip.MustParseAddrPort(destination)}, InUse: inUse,
			TimeWait: timeWait, Limit: MasqueradePorts, Clients: clients,
		}
	}
	client := func(address string, inUse int) Client { return Client{netip.MustParseAddr(address), inUse} }
	want := []Use{
		use("10.224.0.4", db, packet.TCP, 4, 1, client("10.244.0.5", 2), client("10.224.0.4", 1), client("10.244.0.6", 1)),
		use("10.224.0.4", "10.244.1.7:8080", packet.TCP, 1, 0, client("198.51.100.9", 1)),
		use("10.224.0.4", "198.51.100.53:53", packet.UDP, 1, 0, client("10.244.0.5", 1)),
		use("2001:db8::4", "[2001:db8:1::10]:443", packet.TCP, 1, 0, client("fd00::5", 1)),
	}
	equal := func(a, b Use) bool {
		return a.Key == b.Key && a.InUse == b.InUse && a.TimeWait == b.TimeWait && a.Limit == b.Limit && slices.Equal(a.Clients, b.Clients)
	}
	if got := Count(host(&netfilter.Ruleset{}, flows...), nil); !slices.EqualFunc(got, want, equal) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
	own := Count(host(&netfilter.Ruleset{}, flows...), func(client, _ netip.Addr) bool { return client == netip.MustParseAddr("10.244.0.5") })
	isOwn := func(u Use) bool { return u.Client.IsValid() && u.Destination == netip.MustParseAddrPort(db) }
	if i := slices.IndexFunc(own, isOwn); i < 0 || own[i].InUse != 2 {
		t.Errorf("the client with ports for itself has none in %+v", own)
	}
	if got := Count(&snapshot.Host{Name: "node/a"}, nil); got != nil {
		t.Errorf("without connections: %+v", got)
	}
}

// TestPortsShared: two connections with one source port count once, and the port waits only if both wait.
func TestPortsShared(t *testing.T) {
	first := flow("10.244.0.5:40000", "10.224.0.4:2000", "198.51.100.10:80")
	second := flow("10.244.0.6:40000", "10.224.0.4:2000", "198.51.100.10:80") // in another zone
	second.Zone = packet.Zone{ID: 7}
	first.State = "TIME_WAIT"
	for _, flows := range [][]packet.Flow{{first, second}, {second, first}} {
		if u := Count(host(&netfilter.Ruleset{}, flows...), nil)[0]; u.InUse != 1 || u.TimeWait != 0 {
			t.Errorf("%d in use, %d in TIME_WAIT", u.InUse, u.TimeWait)
		}
	}
}

// TestLimit: it is unknown where a rule may choose other ports, or where rules are unknown.
func TestLimit(t *testing.T) {
	ruleset := func(statements ...netfilter.Statement) *netfilter.Ruleset {
		table := &netfilter.Table{Name: "nat"}
		table.Chains = []*netfilter.Chain{{Table: table, Name: "POSTROUTING", Rules: []netfilter.Rule{{Number: 1, Statements: statements}}}}
		return &netfilter.Ruleset{Tables: []*netfilter.Table{table}}
	}
	source := packet.Translation{Source: true}
	withPorts := packet.Translation{Source: true, PortLow: 2000, PortHigh: 2999}
	dnat := packet.Translation{PortLow: 80, PortHigh: 80}
	for name, c := range map[string]struct {
		rules  *netfilter.Ruleset
		unread map[snapshot.Part]string
		want   int
		reason string
	}{
		"masquerade":        {rules: ruleset(&netfilter.Translate{Translation: source}), want: 64512},
		"to ports":          {rules: ruleset(&netfilter.Translate{Translation: withPorts}), reason: "nat POSTROUTING 1 may choose other ports"},
		"computed ports":    {rules: ruleset(&netfilter.TranslateTo{Translation: source, WithPort: true}), reason: "nat POSTROUTING 1 may choose other ports"},
		"destination":       {rules: ruleset(&netfilter.Translate{Translation: dnat}), want: 64512},
		"unknown statement": {rules: ruleset(&netfilter.UnknownEffect{}), reason: "nat POSTROUTING 1 may choose other ports"},
		"unread":            {rules: ruleset(), unread: map[snapshot.Part]string{snapshot.NFT: "nft crashed"}, reason: "nftables rules unknown: nft crashed"},
		"IPv6 unread":       {rules: ruleset(), unread: map[snapshot.Part]string{snapshot.RulesIPv6: "no program"}, want: 64512},
		"no rules known":    {reason: "rules unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			h := host(c.rules, flow("10.244.0.5:40000", "10.224.0.4:40000", "198.51.100.10:80"))
			h.Unread = c.unread
			if u := Count(h, nil)[0]; u.Limit != c.want || u.Reason != c.reason {
				t.Errorf("limit %d, reason %q; want %d, %q", u.Limit, u.Reason, c.want, c.reason)
			}
		})
	}
}

func TestFull(t *testing.T) {
	key := Key{Host: "node/a"}
	for name, c := range map[string]struct {
		before, after Use
		want          time.Duration
		ok            bool
	}{
		"grows":         {Use{Key: key, InUse: 100}, Use{Key: key, InUse: 200, Limit: 1200}, 100 * time.Second, true},
		"new":           {Use{}, Use{Key: key, InUse: 200, Limit: 400}, 10 * time.Second, true},
		"all in use":    {Use{Key: key, InUse: 100}, Use{Key: key, InUse: 400, Limit: 400}, 0, true},
		"stays":         {Use{Key: key, InUse: 100}, Use{Key: key, InUse: 100, Limit: 1200}, 0, false},
		"shrinks":       {Use{Key: key, InUse: 100}, Use{Key: key, InUse: 50, Limit: 1200}, 0, false},
		"limit unknown": {Use{Key: key, InUse: 100}, Use{Key: key, InUse: 200}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			grown := Grow([]Use{c.before}, []Use{c.after}, nil, 10*time.Second)
			if got, ok := grown[0].Full(); got != c.want || ok != c.ok {
				t.Errorf("full in %v, %t; want %v, %t", got, ok, c.want, c.ok)
			}
		})
	}
	after := Use{Key: key, InUse: 200, Limit: 1200}
	if grown := Grow(nil, []Use{after}, map[string]string{"node/a": "no answer"}, time.Second); grown[0].Measured {
		t.Error("connections that were unknown before count as new")
	}
	once := Use{InUse: 1, Limit: 10}
	if _, ok := once.Full(); ok {
		t.Error("one reading is enough for a forecast")
	}
}
