package walk

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/capture/excerpt"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/writers"
)

// ofText walks a packet through what a text shows, and gives the outcomes in words.
func ofText(t *testing.T, text, from, to string, oneWay bool) string {
	t.Helper()
	src, err := excerpt.Read(writers.Book(&snapshot.Objects{}), nil, "n", []byte(text), netip.MustParseAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Walk(src, Request{Host: "node/n", Forwarded: true, OneWay: oneWay, Packet: syn(from, to)})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range r.Outcomes {
		what := string(o.End.Kind) + " " + o.End.Packet.DestinationEnd()
		if o.End.Packet.Source.String()+":40000" != from {
			what += " masqueraded"
		}
		if o.BackEnd != nil {
			what += ", back " + string(o.BackEnd.Kind)
		}
		got = append(got, what)
	}
	return strings.Join(got, "; ")
}

// TestUnknownInterfaces: assumptions about an unknown interface agree, there and back.
func TestUnknownInterfaces(t *testing.T) {
	for rules, want := range map[string]string{
		"-A FORWARD -i lo -j DROP":                             "left 10.0.0.2:80, back left",
		"-A FORWARD -i a -j DROP\n-A FORWARD ! -i a -j ACCEPT": "dropped 10.0.0.2:80; left 10.0.0.2:80",
		"-A FORWARD -i a -j ACCEPT\n-A FORWARD -i b -j REJECT\n-A FORWARD -i a -j DROP\n-A FORWARD -i b -j DROP": "left 10.0.0.2:80; rejected 10.0.0.2:80; left 10.0.0.2:80",
		// no question is asked
		"-A FORWARD -m rpfilter --invert -j DROP":                                                                     "left 10.0.0.2:80",
		"-A FORWARD -i cali+ -j ACCEPT\n-A FORWARD -i cali12 -j DROP":                                                 "left 10.0.0.2:80; left 10.0.0.2:80",
		"-A FORWARD -i a+ -j RETURN\n-A FORWARD -i ab -j RETURN\n-A FORWARD -i abc -j DROP\n-A FORWARD -i b+ -j DROP": "left 10.0.0.2:80; dropped 10.0.0.2:80; left 10.0.0.2:80",
		"-A FORWARD -i a -j ACCEPT\n-A FORWARD -o a -j DROP":                                                          "left 10.0.0.2:80, back left; left 10.0.0.2:80, back dropped; dropped 10.0.0.2:80; left 10.0.0.2:80, back left",
	} {
		text := "*filter\n:FORWARD ACCEPT [0:0]\n" + rules + "\nCOMMIT\n"
		if got := ofText(t, text, "10.0.0.1:40000", "10.0.0.2:80", !strings.Contains(want, "back")); got != want {
			t.Errorf("%s\n got %s\nwant %s", rules, got, want)
		}
	}
}

// TestInterfacesByRules: a save of a machine with containers tells what is behind which bridge, and that a published port is its own.
func TestInterfacesByRules(t *testing.T) {
	const text = `*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A POSTROUTING -s 172.18.0.0/16 ! -o br-1 -j MASQUERADE
-A DOCKER -i docker0 -j RETURN
-A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80
COMMIT
*filter
:FORWARD DROP [0:0]
:DOCKER - [0:0]
:ISOLATION - [0:0]
-A FORWARD -i docker0 ! -o docker0 -j ISOLATION
-A FORWARD -i br-1 ! -o br-1 -j ISOLATION
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -o br-1 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i br-1 ! -o br-1 -j ACCEPT
-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT
-A ISOLATION -o docker0 -j DROP
-A ISOLATION -o br-1 -j DROP
COMMIT
`
	for ends, want := range map[[2]string]string{
		{"198.51.100.7:40000", "203.0.113.5:8080"}: "left 172.17.0.2:80, back left",
		{"198.51.100.7:40000", "203.0.113.5:8081"}: "dropped 203.0.113.5:8081",
		{"198.51.100.7:40000", "172.17.0.2:81"}:    "dropped 172.17.0.2:81",
		{"172.17.0.2:40000", "8.8.8.8:53"}:         "left 8.8.8.8:53 masqueraded, back left",
		{"172.18.0.9:40000", "172.17.0.2:80"}:      "dropped 172.17.0.2:80",
		{"172.17.0.3:40000", "203.0.113.5:8080"}:   "delivered 203.0.113.5:8080, back left", // to docker-proxy
	} {
		if got := ofText(t, text, ends[0], ends[1], false); got != want {
			t.Errorf("%s\n got %s\nwant %s", ends, got, want)
		}
	}
}

// TestOwnAddressUnknown: a machine of which not all is known redirects to itself, masquerades with an address of its own, and sends.
func TestOwnAddressUnknown(t *testing.T) {
	const nat = "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n" +
		"-A PREROUTING -p tcp -m tcp --dport 80 -j REDIRECT --to-ports 8080\n-A OUTPUT -p tcp -m tcp --dport 80 -j REDIRECT --to-ports 8081\n" +
		"-A POSTROUTING -s 10.0.0.0/8 -j MASQUERADE\nCOMMIT\n"
	const address = "$ ip addr\n2: eth0: <UP> mtu 1500\n    inet 192.0.2.1/24 scope global eth0\n"
	const another = "3: eth1: <UP> mtu 1500\n    inet 192.0.2.129/25 scope global eth1\n"
	for _, c := range []struct{ text, from, to, want string }{
		{nat, "10.0.0.1:40000", "10.0.0.2:80", "delivered tcp 10.0.0.1:40000 > ?:8080; back left tcp 10.0.0.2:80 > 10.0.0.1:40000"},
		{nat + address, "10.0.0.1:40000", "192.0.2.1:80",
			"delivered tcp 10.0.0.1:40000 > 192.0.2.1:8080; back left tcp 192.0.2.1:80 > 10.0.0.1:40000"},
		{nat, "10.0.0.1:40000", "8.8.8.8:53", "left tcp ?:40000 > 8.8.8.8:53; back left tcp 8.8.8.8:53 > 10.0.0.1:40000"},
		{nat + address, "10.0.0.1:40000", "8.8.8.8:53", "left tcp 192.0.2.1:40000 > 8.8.8.8:53; back left tcp 8.8.8.8:53 > 10.0.0.1:40000"},
		{nat + address + another, "10.0.0.1:40000", "8.8.8.8:53", "left tcp ?:40000 > 8.8.8.8:53; back left tcp 8.8.8.8:53 > 10.0.0.1:40000"},
		// whether its own address is one of 10.0.0.0/8 is asked
		{nat, "", "8.8.8.8:80", "2: delivered tcp ?:40000 > 127.0.0.1:8081; back delivered tcp 8.8.8.8:80 > ?:40000"},
		{nat + address, "", "8.8.8.8:53", "left tcp 192.0.2.1:40000 > 8.8.8.8:53; back delivered tcp 8.8.8.8:53 > 192.0.2.1:40000"},
		{nat + address, "", "192.0.2.1:53", "delivered tcp 192.0.2.1:40000 > 192.0.2.1:53; back delivered tcp 192.0.2.1:53 > 192.0.2.1:40000"},
	} {
		src, err := excerpt.Read(writers.Book(&snapshot.Objects{}), nil, "n", []byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		p := syn("0.0.0.0:40000", c.to)
		if p.Source = (netip.Addr{}); c.from != "" {
			p = syn(c.from, c.to)
		}
		r, err := Walk(src, Request{Host: "node/n", Forwarded: c.from != "", Packet: p})
		if err != nil {
			t.Fatal(err)
		}
		o := r.Outcomes[0]
		got := string(o.End.Kind) + " " + o.End.Packet.String()
		if o.BackEnd != nil {
			got += "; back " + string(o.BackEnd.Kind) + " " + o.BackEnd.Packet.String()
		}
		if n := len(r.Outcomes); n > 1 {
			got = fmt.Sprintf("%d: %s", n, got)
		}
		if got != c.want {
			t.Errorf("%s to %s: %d outcomes\n got %s\nwant %s", c.from, c.to, len(r.Outcomes), got, c.want)
		}
	}
}

// TestInterfaceByRoute: where a packet comes in that comes from outside is where the routes lead to its sender.
func TestInterfaceByRoute(t *testing.T) {
	const text = "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -i cali1 -j DROP\n-A FORWARD ! -i eth0 -j REJECT\nCOMMIT\n$ ip route\ndefault via 10.0.0.1 dev eth0\n" +
		"10.1.0.7 dev cali1 scope link\n10.1.0.8 dev cali2 scope link\n10.2.0.0/16\n\tnexthop via 10.0.0.8 dev eth1 weight 1\n\tnexthop via 10.0.0.9 dev eth0 weight 1\n"
	for from, want := range map[string]string{
		"10.1.0.7:40000":     "dropped 8.8.8.8:53",
		"10.1.0.8:40000":     "rejected 8.8.8.8:53, back left",
		"198.51.100.1:40000": "left 8.8.8.8:53, back left",
		"10.2.0.1:40000": "dropped 8.8.8.8:53; rejected 8.8.8.8:53, back left; rejected 8.8.8.8:53, back left; " +
			"left 8.8.8.8:53, back left; left 8.8.8.8:53, back left", // by one of two, there and back
	} {
		if got := ofText(t, text, from, "8.8.8.8:53", false); got != want {
			t.Errorf("%s\n got %s\nwant %s", from, got, want)
		}
	}
}
