package verify

import (
	"strings"
	"testing"

	"packetwalk.dev/internal/testing/kerneltest"
)

// wrongWorld is a client, a router, a server and a host that no other host talks to.
const wrongWorld = `
-- wires --
vm/client eth0 node/r c
vm/server eth0 node/r s
vm/other eth0 node/r o
-- vm/client/ip --
address add 10.1.0.2/24 dev eth0
route add default via 10.1.0.1
-- vm/server/ip --
address add 10.2.0.2/24 dev eth0
address add 10.2.0.3/24 dev eth0
route add default via 10.2.0.1
-- vm/other/ip --
address add 10.3.0.2/24 dev eth0
route add default via 10.3.0.1
-- vm/server/listen --
tcp 10.2.0.2:80
tcp 10.2.0.3:80
udp 10.2.0.2:53
`

// wrongRouter is the router's part, which a case adds to.
const wrongRouter = `address add 10.1.0.1/24 dev c
address add 10.2.0.1/24 dev s
address add 10.3.0.1/24 dev o
`

// TestWrongModel plants one fault in what the model reads, for each kind of fault, and expects the comparison to find it; without the fault
// it agrees.
func TestWrongModel(t *testing.T) {
	kerneltest.NeedRoot(t)
	const forward, toServer = "-A FORWARD -d 10.2.0.2/32 ", "vm/client tcp 10.2.0.2:80"
	for name, c := range map[string]struct {
		packet      string
		table, rule string // of the router's iptables
		ip          string // of the router's ip
		is, read    string // what the model reads in place of what is
	}{
		"drop for reject": {packet: toServer, rule: forward + "-j REJECT --reject-with icmp-port-unreachable",
			is: "-j REJECT --reject-with icmp-port-unreachable", read: "-j DROP"},
		"reject for drop": {packet: toServer, rule: forward + "-j DROP", is: "-j DROP",
			read: "-j REJECT --reject-with icmp-port-unreachable"},
		"drop for reset": {packet: toServer, rule: forward + "-p tcp -j REJECT --reject-with tcp-reset",
			is: "-j REJECT --reject-with tcp-reset", read: "-j DROP"},
		"reset for error": {packet: toServer, rule: forward + "-p tcp -j REJECT --reject-with icmp-port-unreachable",
			is: "icmp-port-unreachable", read: "tcp-reset"},
		"another error": {packet: toServer, rule: forward + "-j REJECT --reject-with icmp-host-unreachable",
			is: "icmp-host-unreachable", read: "icmp-net-unreachable"},
		"another error of datagram": {packet: "vm/client udp 10.2.0.2:53", rule: forward + "-j REJECT --reject-with icmp-admin-prohibited",
			is: "icmp-admin-prohibited", read: "icmp-port-unreachable"},
		"drop of the answer for reject": {packet: toServer, rule: "-A FORWARD -s 10.2.0.2/32 -j REJECT --reject-with icmp-port-unreachable",
			is: "-j REJECT --reject-with icmp-port-unreachable", read: "-j DROP"},
		"drop for accept": {packet: toServer, rule: forward + "-j ACCEPT", is: "10.2.0.2/32 -j ACCEPT", read: "10.2.0.2/32 -j DROP"},
		"accept for drop": {packet: toServer, rule: forward + "-j DROP", is: "10.2.0.2/32 -j DROP", read: "10.2.0.2/32 -j ACCEPT"},
		"blackhole for a route": {packet: "vm/client udp 10.9.0.1:80", ip: "route add 10.9.0.1/32 via 10.3.0.2",
			is: `"dst":"10.9.0.1","gateway":"10.3.0.2"`, read: `"type":"blackhole","dst":"10.9.0.1"`},
		"blackhole for error": {packet: "vm/client udp 10.9.0.1:80", ip: "route add unreachable 10.9.0.1/32", is: `"type":"unreachable"`,
			read: `"type":"blackhole"`},
		"error for blackhole": {packet: "vm/client udp 10.9.0.1:80", ip: "route add blackhole 10.9.0.1/32", is: `"type":"blackhole"`,
			read: `"type":"unreachable"`},
		"prohibited for error": {packet: "vm/client icmp 10.9.0.1", ip: "route add unreachable 10.9.0.1/32", is: `"type":"unreachable"`,
			read: `"type":"prohibit"`},
		"another next hop": {packet: "vm/client udp 10.9.0.1:80", ip: "route add 10.9.0.1/32 via 10.3.0.2", is: `"gateway":"10.3.0.2"`,
			read: `"gateway":"10.3.0.77"`},
		"another endpoint": {packet: "vm/client tcp 10.9.9.9:80", table: "nat",
			rule: "-A PREROUTING -d 10.9.9.9/32 -p tcp -j DNAT --to-destination 10.2.0.2",
			is:   "--to-destination 10.2.0.2", read: "--to-destination 10.2.0.3"},
		"another mark": {packet: toServer, table: "mangle", rule: "-A FORWARD -j MARK --set-xmark 0x1/0xffffffff",
			is: "--set-xmark 0x1/", read: "--set-xmark 0x2/"},
		"another connection mark": {packet: "vm/client udp 10.2.0.2:53", table: "mangle",
			rule: "-A FORWARD -j CONNMARK --set-xmark 0x1/0xffffffff", is: "--set-xmark 0x1/", read: "--set-xmark 0x2/"},
		"another TTL": {packet: toServer, table: "mangle", rule: "-A FORWARD -j TTL --ttl-set 9", is: "--ttl-set 9",
			read: "--ttl-set 8"},
		"a rule for another": {packet: toServer, rule: forward + "-j ACCEPT", is: forward, read: "-A FORWARD -d 10.2.0.9/32 "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, err := ParseWorld([]byte(wrongWorld))
			if err != nil {
				t.Fatal(err)
			}
			w.Packets = []string{c.packet}
			r := w.Host("node/r")
			r.Add("ip", "%s", wrongRouter+c.ip)
			r.Add("sysctl", "net/ipv4/ip_forward 1")
			if c.rule != "" {
				table := c.table
				if table == "" {
					table = "filter"
				}
				r.Add("iptables", "*%s\n%s\nCOMMIT", table, c.rule)
			}
			right, err := Run(stop, runDirectory, w)
			if err != nil || right.Fates[Agreed] != 1 {
				t.Fatalf("without a fault: %v, %+v", err, right)
			}
			found := false
			wrong, err := run(stop, runDirectory, w, func(text string) string {
				found = found || strings.Contains(text, c.is)
				return strings.ReplaceAll(text, c.is, c.read)
			})
			if err != nil || !found || wrong.Fates[Disagreed] != 1 || wrong.Wrong() != "" {
				t.Fatalf("the fault was planted: %v; %v, %+v", found, err, wrong)
			}
			t.Log(wrong.Failures[0].Text)
		})
	}
}

// TestNothingCompared: a world in which no packet is compared is a failure, and so is one that the kernel refuses to make.
func TestNothingCompared(t *testing.T) {
	kerneltest.NeedRoot(t)
	w, err := ParseWorld([]byte(wrongWorld + "-- packets --\nvm/client tcp 10.2.0.2:80 from 10.77.0.1\n"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(stop, runDirectory, w)
	if err != nil || len(r.Failures) != 1 || r.Failures[0].Kind != Nothing || r.Fates[Unsendable] != 1 || r.Wrong() == "" {
		t.Errorf("%v, %+v", err, r)
	}
	w.Host("vm/client").Add("nft", "no such thing")
	if r, err = Run(stop, runDirectory, w); err == nil || r.Fates[Unmade] != 1 || r.Wrong() == "" {
		t.Errorf("%v, %+v", err, r)
	}
}

// TestAccount: more than one packet in fifty that was not compared is too much.
func TestAccount(t *testing.T) {
	for _, c := range []struct {
		fates map[Fate]int
		wrong bool
	}{
		{map[Fate]int{Agreed: 98, Unmade: 1, Unsendable: 1}, false},
		{map[Fate]int{Agreed: 100, Unmade: 1, Unsendable: 1, TooMany: 1, ErrorLimit: 1}, true},
		{map[Fate]int{Agreed: 96, Uncertain: 4}, true},
		{map[Fate]int{Agreed: 3, Unsendable: 1}, false},
		{map[Fate]int{Unsendable: 1}, true},
		{nil, true},
	} {
		a := Account{Fates: c.fates, Steps: 1}
		if (a.Wrong() != "") != c.wrong {
			t.Errorf("%v: %q", c.fates, a.Wrong())
		}
	}
}
