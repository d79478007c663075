package iproute

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
)

var compareAddresses = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestParseLinks(t *testing.T) {
	links, err := ParseLinks([]byte(`[
		{"ifindex":2,"link_index":7,"ifname":"eth0","flags":["BROADCAST","UP","LOWER_UP"],"mtu":1500,"group":"default","link_type":"ether",
		 "address":"00:0d:3a:00:00:01","linkinfo":{"info_kind":"veth"},"link_netnsid":3,"new_field":[1]},
		{"ifindex":3,"ifname":"azure0","flags":["UP"],"mtu":1500,"group":"7","link_type":"ether","address":"00:0d:3a:00:00:02",
		 "linkinfo":{"info_kind":"bridge","info_data":{"stp_state":0,"vlan_filtering":1,"group_fwd_mask":"0x4000","nf_call_iptables":1}}},
		{"ifindex":4,"link":"p1","ifname":"p0","flags":[],"mtu":1400,"master":"azure0","group":"pods","link_type":"ether","address":"00:0d:3a:00:00:03",
		 "linkinfo":{"info_kind":"veth","info_slave_kind":"bridge","info_slave_data":{"state":"forwarding","hairpin":true,"learning":true,"flood":false,
		 "bcast_flood":true,"mcast_flood":true,"isolated":true,"proxy_arp":true,"neigh_suppress":false}}},
		{"ifindex":5,"link":"p0","ifname":"p1","link_type":"ether","address":"00:0d:3a:00:00:04","linkinfo":{"info_kind":"veth"}},
		{"ifindex":6,"link":"eth0","ifname":"eth0.5","flags":["NOARP"],"link_type":"ether","linkinfo":{"info_kind":"vlan","info_data":{"protocol":"802.1Q","id":5,"flags":[]}}}]`))
	if err != nil {
		t.Fatal(err)
	}
	want := []fib.Link{
		{Index: 2, Name: "eth0", Kind: "veth", Type: "ether", MAC: packet.MAC{0, 0xd, 0x3a, 0, 0, 1}, MTU: 1500, Up: true, LowerUp: true, Peer: 7,
			PeerNetNS: 3},
		{Index: 3, Name: "azure0", Kind: "bridge", Type: "ether", MAC: packet.MAC{0, 0xd, 0x3a, 0, 0, 2}, MTU: 1500, Up: true, Group: 7,
			PeerNetNS: -1,
			Bridge:    &fib.Bridge{VLANFiltering: true, CallIPTables: true, GroupForward: 0x4000}},
		{Index: 4, Name: "p0", Kind: "veth", Type: "ether", MAC: packet.MAC{0, 0xd, 0x3a, 0, 0, 3}, MTU: 1400, Group: -1, Peer: 5, PeerNetNS: -1,
			Master: "azure0",
			Port: &fib.Port{State: "forwarding", Hairpin: true, Learning: true, BroadcastFlood: true, MulticastFlood: true, Isolated: true,
				ProxyARP: true}},
		{Index: 5, Name: "p1", Kind: "veth", Type: "ether", MAC: packet.MAC{0, 0xd, 0x3a, 0, 0, 4}, Peer: 4, PeerNetNS: -1},
		{Index: 6, Name: "eth0.5", Kind: "vlan", Type: "ether", VLAN: 5, Parent: "eth0", PeerNetNS: -1, NoARP: true},
	}
	if d := cmp.Diff(want, links); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	s := &fib.State{Links: links}
	if s.Index(); s.Link("azure0") != &s.Links[1] || s.Link("eth9") != nil || len(s.Ports("azure0")) != 1 {
		t.Error("links are not found")
	}
}

func TestParseNeighboursAndFDB(t *testing.T) {
	list, err := ParseNeighbours([]byte(`[{"dst":"10.0.0.9","dev":"br0","lladdr":"00:11:22:33:44:55","state":["PERMANENT"]},{"dst":"10.0.0.8","dev":"br0","state":["FAILED"]}]`))
	if err != nil {
		t.Fatal(err)
	}
	proxies, err := ParseNeighbours([]byte(`[{"dst":"fd00::10","dev":"br0","proxy":null}]`))
	if err != nil {
		t.Fatal(err)
	}
	fdb, err := ParseFDB([]byte(`[{"mac":"33:33:00:00:00:01","ifname":"v1","flags":["self"],"state":"permanent"},
		{"mac":"de:f3:71:ba:21:cd","ifname":"v0","vlan":1,"flags":[],"master":"br0","state":"permanent"},
		{"mac":"de:f3:71:ba:21:ce","ifname":"v0","flags":[],"master":"br0","state":""},
		{"mac":"de:f3:71:ba:21:cf","ifname":"v1","flags":[],"master":"br0","state":"static"}]`))
	if err != nil {
		t.Fatal(err)
	}
	s := &fib.State{Neighbours: append(list, proxies...), FDB: fdb}
	s.Index()
	mac := packet.MAC{0, 0x11, 0x22, 0x33, 0x44, 0x55}
	if n := s.Neighbour("br0", addr("10.0.0.9")); n == nil || n.MAC != mac || n.State != "PERMANENT" {
		t.Errorf("neighbour %+v", n)
	}
	if n := s.Neighbour("br0", addr("10.0.0.8")); n == nil || !n.MAC.IsZero() || n.State != "FAILED" {
		t.Errorf("neighbour %+v", n)
	}
	if s.Neighbour("br0", addr("fd00::10")) != nil || s.ProxyNeighbour("br0", addr("fd00::10")) == nil ||
		s.ProxyNeighbour("br1", addr("fd00::10")) != nil {
		t.Error("the proxy entry is not told from neighbours")
	}
	if len(fdb) != 3 {
		t.Errorf("%d entries, want those of the bridge", len(fdb))
	}
	if e := s.FDBEntry("br0", packet.MAC{0xde, 0xf3, 0x71, 0xba, 0x21, 0xcd}, 1); e == nil || !e.Local || e.Port != "v0" {
		t.Errorf("own address: %+v", e)
	}
	if e := s.FDBEntry("br0", packet.MAC{0xde, 0xf3, 0x71, 0xba, 0x21, 0xcf}, 0); e == nil || !e.Static || e.Local {
		t.Errorf("static entry: %+v", e)
	}
	if s.FDBEntry("br0", mac, 0) != nil {
		t.Error("found what is not there")
	}
}

func TestParseRoutes(t *testing.T) {
	got, err := ParseRoutes([]byte(`[
		{"dst":"default","gateway":"10.0.0.254","dev":"eth0","metric":100,"flags":["linkdown"]},
		{"type":"local","dst":"10.0.0.1","dev":"eth0","table":"local","protocol":"kernel","scope":"host","prefsrc":"10.0.0.1","flags":[]},
		{"dst":"10.8.1.0/24","via":{"family":"inet6","host":"fd00::9"},"dev":"eth0","table":"tunnels","tos":"0x10","flags":["onlink"]},
		{"dst":"default","dev":"eth0","metric":1024,"flags":[],"pref":"high"},
		{"dst":"fd02::/64","from":"fd00::/64","metric":1024,"flags":[],"nexthops":[{"gateway":"fd00::5","dev":"eth0","weight":1,"flags":["dead","linkdown"]},
		 {"gateway":"fd00::6","dev":"eth0","weight":3,"flags":[]}]},
		{"dst":"10.9.0.0/16","encap":"mpls","gateway":"10.0.0.9","dev":"eth0","table":"100","flags":[]},
		{"dst":"10.0.0.9","dev":"eth0","flags":["cloned"]}]`))
	if err != nil {
		t.Fatal(err)
	}
	number, _ := tableNumber("tunnels")
	want := []fib.Route{
		{Table: 254, Type: "unicast", Destination: prefix("0.0.0.0/0"), Gateway: addr("10.0.0.254"), Link: "eth0", Metric: 100, Scope: "global"},
		{Table: 255, Type: "local", Destination: prefix("10.0.0.1/32"), Link: "eth0", Protocol: "kernel", Scope: "host",
			Source: addr("10.0.0.1")},
		{Table: number, TableName: "tunnels", Type: "unicast", Destination: prefix("10.8.1.0/24"), TOS: 0x10, Gateway: addr("fd00::9"),
			Link: "eth0", Scope: "global", OnLink: true},
		{Table: 254, Type: "unicast", Destination: prefix("::/0"), Link: "eth0", Metric: 1024, Scope: "global", Preference: "high"},
		{Table: 254, Type: "unicast", Destination: prefix("fd02::/64"), From: prefix("fd00::/64"), Metric: 1024, Scope: "global",
			Nexthops: []fib.Nexthop{
				{Gateway: addr("fd00::5"), Link: "eth0", Weight: 1, Dead: true}, {Gateway: addr("fd00::6"), Link: "eth0", Weight: 3}}},
		{Table: 100, Type: "unicast", Destination: prefix("10.9.0.0/16"), Gateway: addr("10.0.0.9"), Link: "eth0", Scope: "global",
			Unknown: "encap mpls"},
	}
	if d := cmp.Diff(want, got, compareAddresses); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if number >= 0 {
		t.Error("a table's name is taken for a number that another table can have")
	}
}

// TestRuleMasks: rules as iproute2 6.15 and 7.3 print them. They print masks that select all bits; others are compared.
func TestRuleMasks(t *testing.T) {
	tcp, udp := packet.TCP, packet.UDP
	for _, c := range []struct {
		name, json string
		ipv6       bool
		q          fib.Query
		want       string
	}{
		{"ports", `"sport":80,"sport_mask":"0xffff","dport":443,"dport_mask":"0xffff"`, false,
			fib.Query{Protocol: tcp, SourcePort: packet.Exactly(80), DestinationPort: packet.Exactly(443)}, "match"},
		{"other port", `"dport":53,"dport_mask":"0xffff"`, true, fib.Query{Protocol: udp, DestinationPort: packet.Exactly(54)}, "differ"},
		{"no protocols file", `"ipproto":"ipproto-6"`, false, fib.Query{Protocol: tcp}, "match"},
		{"no protocols file, other protocol", `"ipproto":"ipproto-6"`, false, fib.Query{Protocol: udp}, "differ"},
		{"port mask", `"dport":256,"dport_mask":"0xff00"`, false, fib.Query{Protocol: tcp, DestinationPort: packet.Exactly(0x1ff)}, "match"},
		{"port outside mask", `"dport":256,"dport_mask":"0xff00"`, false, fib.Query{Protocol: tcp, DestinationPort: packet.Exactly(0x201)}, "differ"},
		{"port mask, port not chosen yet", `"sport":256,"sport_mask":"0xff00"`, false,
			fib.Query{Protocol: tcp, SourcePort: packet.OneOf(256, 1000, 300)}, "unknown"},
		{"port mask, no ports", `"dport":256,"dport_mask":"0xff00"`, false, fib.Query{Protocol: packet.ICMP}, "differ"},
		{"invalid port mask", `"dport":256,"dport_mask":"0xff001"`, false, fib.Query{Protocol: tcp}, "unknown"},
		{"mark", `"fwmark":"0x10"`, false, fib.Query{Mark: 0x110}, "differ"},
		{"mark and mask", `"fwmark":"0x10","fwmask":"0xf0"`, false, fib.Query{Mark: 0x110}, "match"},
		{"invalid mark", `"fwmark":"blue"`, false, fib.Query{}, "unknown"},
		{"DSCP", `"dscp":"4","dscp_mask":"0x3f"`, false, fib.Query{TOS: 0x11}, "match"},
		{"DSCP, upper bits differ", `"dscp":"4","dscp_mask":"0x3f"`, false, fib.Query{TOS: 0x30}, "differ"},
		{"DSCP without a mask", `"dscp":"AF11"`, false, fib.Query{TOS: 0x28}, "match"},
		{"DSCP and mask", `"dscp":"CS1","dscp_mask":"0x38"`, false, fib.Query{TOS: 0x3c}, "match"},
		{"DSCP zero", `"dscp":"0","dscp_mask":"0x3f"`, true, fib.Query{TOS: 0x04}, "differ"},
		{"DSCP of the machine's own name", `"dscp":"voice","dscp_mask":"0x3f"`, false, fib.Query{}, "unknown"},
		{"TOS", `"tos":"0x10"`, false, fib.Query{TOS: 0x30}, "match"},
		{"TOS of the machine's own name", `"tos":"voice"`, false, fib.Query{}, "unknown"},
		{"flow label", `"flowlabel":"0x5","flowlabel_mask":"0xfffff"`, true, fib.Query{}, "unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rules, err := ParseRules([]byte(`[{"priority":100,"src":"all","action":"prohibit",`+c.json+`},{"priority":32766,"src":"all","table":"main"}]`),
				c.ipv6)
			if err != nil {
				t.Fatal(err)
			}
			c.q.In, c.q.Source, c.q.Destination = "eth1", addr("10.0.0.1"), addr("10.9.0.1")
			if c.ipv6 {
				c.q.Source, c.q.Destination = addr("fd00::1"), addr("fd09::1")
			}
			s := &fib.State{Rules: rules}
			s.Index()
			a := s.Lookup(c.q)
			got := "differ"
			switch {
			case a.Unknown != "":
				got = "unknown"
			case a.Type == "prohibit":
				got = "match"
			}
			if got != c.want {
				t.Errorf("%s, want %s: %+v", got, c.want, a)
			}
		})
	}
}

// TestUnknownRule: a rule with a field that is not understood is kept and said aloud, where the rest of it fits the packet.
func TestUnknownRule(t *testing.T) {
	rules, err := ParseRules([]byte(`[{"priority":0,"src":"all","table":"local"},
		{"priority":100,"src":"10.0.0.0","srclen":8,"tun_id":5,"table":"100"},{"priority":32766,"src":"all","table":"main"}]`), false)
	if err != nil {
		t.Fatal(err)
	}
	s := &fib.State{Rules: rules, Routes: []fib.Route{{Table: fib.TableMain, Type: "unicast", Destination: prefix("0.0.0.0/0"), Link: "eth0"}}}
	s.Index()
	for source, unknown := range map[string]bool{"10.0.0.1": true, "11.0.0.1": false} {
		a := s.Lookup(fib.Query{Source: addr(source), Destination: addr("1.1.1.1"), In: "eth1"})
		if (a.Unknown != "") != unknown || a.Type != "unicast" {
			t.Errorf("from %s: %+v", source, a)
		}
	}
}

// FuzzParse: no parser panics, and nothing that they read makes a look-up panic or go on for ever.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`[{"dst":"default","gateway":"10.0.0.1","dev":"eth0","flags":[]}]`),
		[]byte(`[{"priority":0,"src":"all","goto":5},{"priority":5,"src":"10.0.0.0","srclen":8,"not":null,"table":"main"}]`))
	f.Add([]byte("default metric 5\n\tnexthop via 10.2.0.1 dev a3 weight 5 onlink\nlocal ::1 dev lo table local pref low"),
		[]byte("5:\tfrom all fwmark 1/2 lookup 5 suppress_prefixlength 0"))
	f.Add([]byte("2: eth0@if3: <UP>\n    inet 10.0.0.1 peer 10.0.0.2/32 brd 1.2.3.4 scope link secondary eth0\n"),
		[]byte(`[{"mac":"00:11:22:33:44:55","ifname":"v0","master":"br0","dst":"fe80::1%eth0","dev":"x"}]`))
	f.Fuzz(func(_ *testing.T, one, two []byte) {
		s := &fib.State{}
		s.Links, _ = ParseLinks(one)
		s.Addresses, _ = ParseAddresses(one)
		s.Routes, _ = ParseRoutes(one)
		s.Neighbours, _ = ParseNeighbours(two)
		s.FDB, _ = ParseFDB(two)
		for _, ipv6 := range []bool{false, true} {
			rules, _ := ParseRules(two, ipv6)
			more, _ := ParseRulesText(string(two), ipv6)
			s.Rules = append(append(s.Rules, rules...), more...)
			routes, _ := ParseRoutesText(string(one), ipv6)
			s.Routes = append(s.Routes, routes...)
		}
		_, more, _ := ParseLinksText(string(one))
		s.Addresses = append(s.Addresses, more...)
		s.Index()
		for _, d := range []string{"10.0.0.1", "fd00::1", "224.0.0.1", "::"} {
			s.Lookup(fib.Query{Destination: addr(d)})
			s.Lookup(fib.Query{Destination: addr(d), In: "eth0", Source: addr(d)})
			s.Lookup(fib.Query{Destination: addr(d), Out: "eth0"})
			s.AddressType(addr(d), "eth0")
		}
	})
}

// TestLinkTextCarrier: a link has no carrier where its flags say so.
func TestLinkTextCarrier(t *testing.T) {
	for flags, want := range map[string]bool{
		"BROADCAST,MULTICAST,UP,LOWER_UP": true, "NO-CARRIER,BROADCAST,MULTICAST,UP": false, "UP": true, "BROADCAST,MULTICAST": false,
	} {
		links, _, err := ParseLinksText("2: eth0: <" + flags + "> mtu 1500 qdisc noqueue state DOWN\n")
		if err != nil || len(links) != 1 || links[0].HasCarrier() != want {
			t.Errorf("%s: %+v, %v; want a carrier: %v", flags, links, err, want)
		}
	}
}

// TestRulesText: what ip rule prints for people says the same as its JSON; what is not understood makes the rule unknown.
func TestRulesText(t *testing.T) {
	for text, json := range map[string]string{
		"from all lookup local":                          `{"priority":7,"src":"all","table":"local"}`,
		"not from 10.5.0.0/16 to 10.0.0.1 lookup 50":     `{"priority":7,"not":null,"src":"10.5.0.0","srclen":16,"dst":"10.0.0.1","table":"50"}`,
		"from all fwmark 0x1/0xff iif eth0 lookup main":  `{"priority":7,"src":"all","fwmark":"0x1","fwmask":"0xff","iif":"eth0","table":"main"}`,
		"from all ipproto tcp sport 80 dport 1-2 goto 9": `{"priority":7,"src":"all","ipproto":"tcp","sport":80,"dport_start":1,"dport_end":2,"goto":9}`,
		"from all uidrange 5-6 unreachable":              `{"priority":7,"src":"all","uid_start":5,"uid_end":6,"action":"unreachable"}`,
		"from all lookup main suppress_prefixlength 0":   `{"priority":7,"src":"all","table":"main","suppress_prefixlen":0}`,
		"from all lookup [l3mdev-table]":                 `{"priority":7,"src":"all","l3mdev":null}`,
		"from all goto 9 [unresolved]":                   `{"priority":7,"src":"all","goto":9}`,
		"from all lookup 100 realms 3/4":                 `{"priority":7,"src":"all","table":"100","flow_from":"3","flow_to":"4"}`,
		"from all lookup 100 realms 4":                   `{"priority":7,"src":"all","table":"100","flow_to":"4"}`,
		"from all nop":                                   `{"priority":7,"src":"all","nop":null}`,
		"from all dport 0x100/0xff00 lookup 100":         `{"priority":7,"src":"all","dport":256,"dport_mask":"0xff00","table":"100"}`,
		"from all lookup 100 dscp 4":                     `{"priority":7,"src":"all","table":"100","dscp":"4","dscp_mask":"0x3f"}`,
		"from all lookup 100 dscp 0x8/0x38":              `{"priority":7,"src":"all","table":"100","dscp":"CS1","dscp_mask":"0x38"}`,
		"from all ipproto ipproto-6 dport 53 lookup 100": `{"priority":7,"src":"all","ipproto":"tcp","dport":53,"dport_mask":"0xffff","table":"100"}`,
	} {
		got, err := ParseRulesText("7:	"+text+"\n", false)
		want, err2 := ParseRules([]byte("["+json+"]"), false)
		if d := cmp.Diff(want, got, compareAddresses); err != nil || err2 != nil || d != "" {
			t.Errorf("%s: %v, %v (-JSON +text)\n%s", text, err, err2, d)
		}
	}
	for _, text := range []string{"from 10.0.0.0/8/9 lookup 5", "from nowhere lookup 5", "from all fwmark x lookup 5",
		"from all strange 5 lookup 6", "from all lookup 100 flowlabel 0x5/0xff", "from all dport 0x100/0xff000 lookup 5",
		"from all uidrange 1-99999999999 lookup 5"} {
		got, err := ParseRulesText("7:	"+text, false)
		if err != nil || len(got) != 1 || !got[0].Unknown || got[0].Text != text || got[0].Priority != 7 {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}

// TestFDBText: what "bridge fdb" prints for people says the same as its JSON.
func TestFDBText(t *testing.T) {
	const text = "02:00:00:00:00:01 dev veth0 vlan 1 master cbr0 permanent\n02:00:00:00:00:02 dev veth1 master cbr0\n" +
		"33:33:00:00:00:01 dev eth0 self permanent\n00:00:00:00:00:00 dev vxlan0 dst 192.0.2.2 port 8472 vni 7 via eth0 self permanent\n"
	const asJSON = `[{"mac":"02:00:00:00:00:01","ifname":"veth0","vlan":1,"flags":[],"master":"cbr0","state":"permanent"},
		{"mac":"02:00:00:00:00:02","ifname":"veth1","flags":[],"master":"cbr0","state":""},
		{"mac":"33:33:00:00:00:01","ifname":"eth0","flags":["self"],"state":"permanent"},
		{"mac":"00:00:00:00:00:00","ifname":"vxlan0","dst":"192.0.2.2","port":8472,"vni":7,"viaIf":"eth0","flags":["self"],"state":"permanent"}]`
	want, err := ParseFDB([]byte(asJSON))
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseFDBText(text)
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	for _, bad := range []string{"02:00:00:00:00:01 dev", "02:00:00:00:00:01 dev x dst 300.0.0.1 self", "02:00:00:00:00:01 dev x vlan a master b"} {
		if got, err := ParseFDBText(bad); err == nil {
			t.Errorf("%q is read: %v", bad, got)
		}
	}
}
