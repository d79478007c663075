package explain

import (
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/syntax/nftables"
)

// webIn is felix 3.31's text for a policy web-in: from pods with role=front to ports 80 and 8443, from 10.0.0.0/8 to port 9090.
const webIn = `*filter
:FORWARD ACCEPT [0:0]
:cali-FORWARD - [0:0]
:cali-to-wl-dispatch - [0:0]
:cali-tw-azv1 - [0:0]
:cali-pi-_-gIB1dJ18scn1yV1R0p - [0:0]
-A FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD
-A cali-FORWARD -o azv+ -m comment --comment "cali:0QLESTfVeo_gArr_" -j cali-to-wl-dispatch
-A cali-to-wl-dispatch -o azv1 -m comment --comment "cali:66giqG4rLE4LMxeZ" -g cali-tw-azv1
-A cali-tw-azv1 -m comment --comment "cali:nJ6CWGzYu7cHkvli" -m comment --comment "Start of tier default" -j MARK --set-xmark 0x0/0x20000
-A cali-tw-azv1 -m comment --comment "cali:28nIlm6MuvTzhssU" -m mark --mark 0x0/0x20000 -j cali-pi-_-gIB1dJ18scn1yV1R0p
-A cali-tw-azv1 -m comment --comment "cali:5tmUZvMiimWzBsvA" -m comment --comment "Return if policy accepted" -m mark --mark 0x10000/0x10000 -j RETURN
-A cali-tw-azv1 -m comment --comment "cali:fYfPftGpejYR3zqH" -m comment --comment "End of tier default. Drop if no policies passed packet" -m mark --mark 0x0/0x20000 -j DROP
-A cali-pi-_-gIB1dJ18scn1yV1R0p -p tcp -m comment --comment "cali:SuWzxc_tRq6fskyu" -m comment --comment "Policy default/knp.default.web-in ingress" -m set --match-set cali40s:front src -m multiport --dports 80,8443 -j MARK --set-xmark 0x10000/0x10000
-A cali-pi-_-gIB1dJ18scn1yV1R0p -s 10.0.0.0/8 -p tcp -m comment --comment "cali:e5_CuLSOmvQC95X1" -m multiport --dports 9090 -j MARK --set-xmark 0x10000/0x10000
COMMIT
`

// webInNFT is the same in nftables mode, as nft's JSON; MEMBERS stands for what the set holds.
const webInNFT = `{"nftables": [{"table": {"family": "ip", "name": "calico"}},
{"set": {"family": "ip", "table": "calico", "name": "cali40s-front", "type": "ipv4_addr", "flags": ["interval"], "elem": [MEMBERS]}},
{"chain": {"family": "ip", "table": "calico", "name": "filter-cali-tw-azv1"}},
{"chain": {"family": "ip", "table": "calico", "name": "filter-cali-pi-default/default/knp.default.web-in"}},
{"rule": {"family": "ip", "table": "calico", "chain": "filter-cali-tw-azv1", "comment": "cali:Um04r37wF45a29oc; Start of tier default",
 "expr": [{"mangle": {"key": {"meta": {"key": "mark"}}, "value": {"&": [{"meta": {"key": "mark"}}, 4294836223]}}}]}},
{"rule": {"family": "ip", "table": "calico", "chain": "filter-cali-tw-azv1", "comment": "cali:nTQRJRhtLJ2Nebs5;",
 "expr": [{"counter": {"packets": 1, "bytes": 60}}, {"jump": {"target": "filter-cali-pi-default/default/knp.default.web-in"}}]}},
{"rule": {"family": "ip", "table": "calico", "chain": "filter-cali-tw-azv1", "comment": "cali:IvbUH_Us5Tc2uArj; Return if policy accepted",
 "expr": [{"match": {"op": "==", "left": {"&": [{"meta": {"key": "mark"}}, 65536]}, "right": 65536}}, {"return": null}]}},
{"rule": {"family": "ip", "table": "calico", "chain": "filter-cali-tw-azv1", "comment": "cali:E; End of tier default. Drop if no policies passed packet",
 "expr": [{"match": {"op": "==", "left": {"&": [{"meta": {"key": "mark"}}, 131072]}, "right": 0}}, {"drop": null}]}},
{"rule": {"family": "ip", "table": "calico", "chain": "filter-cali-pi-default/default/knp.default.web-in",
 "comment": "cali:tRy2kBkxiQz46Hew; Policy default/knp.default.web-in ingress",
 "expr": [{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": "@cali40s-front"}},
  {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": {"set": [80, 8443]}}}, {"counter": {"packets": 0, "bytes": 0}},
  {"mangle": {"key": {"meta": {"key": "mark"}}, "value": {"|": [{"meta": {"key": "mark"}}, 65536]}}}]}},
{"rule": {"family": "ip", "table": "calico", "chain": "filter-cali-pi-default/default/knp.default.web-in", "comment": "cali:AphzcxPgTHOvMjUB;",
 "expr": [{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": {"prefix": {"addr": "10.0.0.0", "len": 8}}}},
  {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 9090}}, {"counter": {"packets": 0, "bytes": 0}},
  {"mangle": {"key": {"meta": {"key": "mark"}}, "value": {"|": [{"meta": {"key": "mark"}}, 65536]}}}]}}]}`

// TestAllowing: what a policy's rule would have allowed a dropped packet with, where that is one thing.
func TestAllowing(t *testing.T) {
	ip := netip.MustParseAddr
	const where, second = ": filter cali-pi-_-gIB1dJ18scn1yV1R0p 1", ": filter cali-pi-_-gIB1dJ18scn1yV1R0p 2"
	for name, test := range map[string]struct {
		members []string
		from    string
		port    uint16
		want    string
	}{
		"another pod":             {[]string{"10.1.0.5", "10.1.0.6"}, "10.1.0.7", 80, "policy default/web-in would allow it from pod default/front-a or pod default/front-b (role=front)" + where + "; policy default/web-in would allow it with destination port 9090" + second},
		"another port":            {[]string{"10.1.0.5"}, "10.1.0.5", 81, "policy default/web-in would allow it with destination port 80,8443" + where + "; policy default/web-in would allow it with destination port 9090" + second},
		"a member without labels": {[]string{"10.1.0.8", "10.1.0.5"}, "10.1.0.7", 80, "policy default/web-in would allow it from pod default/bare or pod default/front-a" + where + "; policy default/web-in would allow it with destination port 9090" + second},
		"two things":              {[]string{"10.1.0.5"}, "192.0.2.7", 82, ""},
		"an empty set":            {nil, "192.0.2.7", 80, "policy default/web-in would allow it from what its selector chooses, which is nothing now" + where},
		"another address":         {[]string{"10.1.0.5"}, "192.0.2.7", 9090, "policy default/web-in would allow it with source in 10.0.0.0/8" + second},
	} {
		t.Run(name, func(t *testing.T) {
			h := hostWith(t, "node/n", webIn, fib.Link{Name: "azv1"})
			set := &netfilter.Set{Name: "cali40s:front", Kind: "hash:net", Fields: []string{"ipv4_addr"}}
			for _, m := range test.members {
				v := netfilter.AddressValue(ip(m))
				set.Elements = append(set.Elements, netfilter.Element{Key: []netfilter.Span{{Low: v, High: v}}})
			}
			h.IPSets = map[string]*netfilter.Set{set.Name: set}
			if got := allowed(t, h, h.Rules.Tables[0].Chains[3], test.from, test.port); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
		t.Run(name+", nftables mode", func(t *testing.T) {
			members := ""
			if len(test.members) > 0 {
				members = `"` + strings.Join(test.members, `", "`) + `"`
			}
			parsed, err := nftables.Parse([]byte(strings.ReplaceAll(webInNFT, "MEMBERS", members)))
			if err != nil {
				t.Fatal(err)
			}
			tables, err := nftables.Lower(parsed)
			if err != nil {
				t.Fatal(err)
			}
			h := &snapshot.Host{Name: "node/n", Rules: &netfilter.Ruleset{Tables: tables}}
			want := strings.NewReplacer("filter cali-pi-_-gIB1dJ18scn1yV1R0p", "calico filter-cali-pi-default/default/knp.default.web-in",
				"port 80,8443", "port in { 80, 8443 }", "cali40s:", "cali40s-").Replace(test.want)
			if got := allowed(t, h, tables[0].Chains[0], test.from, test.port); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// TestAllowingAmongOthers: what other rules of the policies deny, or except, is not said to be allowed.
func TestAllowingAmongOthers(t *testing.T) {
	const head = `*filter
:FORWARD ACCEPT [0:0]
:cali-tw-azv1 - [0:0]
:cali-pi-first - [0:0]
:cali-pi-web - [0:0]
-A FORWARD -o azv1 -j cali-tw-azv1
-A cali-tw-azv1 -m comment --comment "cali:a" -m comment --comment "Start of tier soft" -j MARK --set-xmark 0x0/0x20000
-A cali-tw-azv1 -m comment --comment "cali:b" -m mark --mark 0x0/0x20000 -j cali-pi-first
-A cali-tw-azv1 -m comment --comment "cali:c" -m comment --comment "Return if policy accepted" -m mark --mark 0x10000/0x10000 -j RETURN
-A cali-tw-azv1 -m comment --comment "cali:d" -m comment --comment "Start of tier default" -j MARK --set-xmark 0x0/0x20000
-A cali-tw-azv1 -m comment --comment "cali:e" -m mark --mark 0x0/0x20000 -j cali-pi-web
-A cali-tw-azv1 -m comment --comment "cali:f" -m comment --comment "Return if policy accepted" -m mark --mark 0x10000/0x10000 -j RETURN
-A cali-tw-azv1 -m comment --comment "cali:g" -m comment --comment "End of tier default. Drop if no policies passed packet" -m mark --mark 0x0/0x20000 -j DROP
-A cali-pi-first -p tcp -m comment --comment "cali:h" -m comment --comment "Policy soft.one ingress" -m multiport --dports 1 -j MARK --set-xmark 0x10000/0x10000
`
	deny := func(test string) string {
		return "-A cali-pi-web " + test + ` -m comment --comment "Policy shop/default.web ingress" -j MARK --set-xmark 0x40000/0x40000
-A cali-pi-web -m mark --mark 0x40000/0x40000 -j DROP
`
	}
	const own, web = `-m comment --comment "Policy shop/default.web ingress"`, "policy shop/default.web would allow it "
	for name, test := range map[string]struct {
		rules, from string
		port        uint16
		want        string
	}{
		"a pod is denied before": {deny("-m set --match-set cali40s:bad src") + "-A cali-pi-web -p tcp -m set --match-set cali40s:front src --dport 80 -j MARK --set-xmark 0x10000/0x10000\n",
			"10.1.0.7", 80, web + "from pod default/front-a (role=front): filter cali-pi-web 3"},
		"all pods are denied before": {deny("-m set --match-set cali40s:front src") + "-A cali-pi-web -p tcp -m set --match-set cali40s:front src --dport 80 -j MARK --set-xmark 0x10000/0x10000\n",
			"10.1.0.7", 80, ""},
		"a range is excepted": {"-A cali-pi-web " + own + " -j MARK --set-xmark 0x80000/0x180000\n-A cali-pi-web -s 10.240.0.0/16 -j MARK --set-xmark 0x0/0x80000\n" +
			"-A cali-pi-web -s 10.0.0.0/8 -m mark --mark 0x80000/0x80000 -j MARK --set-xmark 0x10000/0x10000\n",
			"192.0.2.7", 80, web + "with source in 10.0.0.0/8, except 10.240.0.0/16: filter cali-pi-web 3"},
		"the sender is excepted": {"-A cali-pi-web " + own + " -j MARK --set-xmark 0x80000/0x180000\n-A cali-pi-web -s 10.240.0.0/16 -j MARK --set-xmark 0x0/0x80000\n" +
			"-A cali-pi-web -s 10.0.0.0/8 -m mark --mark 0x80000/0x80000 -j MARK --set-xmark 0x10000/0x10000\n",
			"10.240.0.7", 80, web + "without its exception, source in 10.240.0.0/16: filter cali-pi-web 3"},
		"a named port": {"-A cali-pi-web -p tcp -m set --match-set cali40n:http dst,dst " + own + " -j MARK --set-xmark 0x10000/0x10000\n",
			"10.1.0.7", 80, web + "with destination port 8080: filter cali-pi-web 1"},
	} {
		t.Run(name, func(t *testing.T) {
			h := hostWith(t, "node/n", head+test.rules+"COMMIT\n", fib.Link{Name: "azv1"})
			h.IPSets = map[string]*netfilter.Set{
				"cali40s:front": {Kind: "hash:net", Fields: []string{"ipv4_addr"}, Elements: elements("10.1.0.5", "10.1.0.6")},
				"cali40s:bad":   {Kind: "hash:net", Fields: []string{"ipv4_addr"}, Elements: elements("10.1.0.6")},
				"cali40n:http":  {Kind: "hash:ip,port", Fields: []string{"ipv4_addr", "inet_proto", "inet_service"}, Elements: namedPort("10.1.0.9", 8080)},
			}
			if got := allowedBy(t, h, h.Rules.Tables[0].Chains[1], 6, test.from, test.port); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func elements(addresses ...string) (all []netfilter.Element) {
	for _, a := range addresses {
		v := netfilter.AddressValue(netip.MustParseAddr(a))
		all = append(all, netfilter.Element{Key: []netfilter.Span{{Low: v, High: v}}})
	}
	return all
}

func namedPort(address string, port uint64) []netfilter.Element {
	one := func(v netfilter.Value) netfilter.Span { return netfilter.Span{Low: v, High: v} }
	return []netfilter.Element{{Key: []netfilter.Span{
		one(netfilter.AddressValue(netip.MustParseAddr(address))), one(netfilter.Value{Lo: uint64(packet.TCP)}), one(netfilter.Value{Lo: port}),
	}}}
}

// allowed returns the hints for a packet of TestAllowing, which the fourth rule of a chain dropped.
func allowed(t *testing.T, h *snapshot.Host, c *netfilter.Chain, from string, port uint16) string {
	t.Helper()
	return allowedBy(t, h, c, 3, from, port)
}

func allowedBy(t *testing.T, h *snapshot.Host, c *netfilter.Chain, drop int, from string, port uint16) string {
	t.Helper()
	ip := netip.MustParseAddr
	pod := func(name, address, role string) snapshot.Pod {
		labels := map[string]string{"role": role, "team": "a"}
		return snapshot.Pod{Namespace: "default", Name: name, IPs: []netip.Addr{ip(address)}, Labels: labels}
	}
	owners := ownersOf(snapshot.Objects{Pods: []snapshot.Pod{
		pod("front-a", "10.1.0.5", "front"), pod("front-b", "10.1.0.6", "front"), pod("cache", "10.1.0.7", "cache"),
		{Namespace: "default", Name: "bare", IPs: []netip.Addr{ip("10.1.0.8")}},
	}})
	owners.States = &policySource{hosts: map[string]*snapshot.Host{"node/n": h}}
	st := walk.Step{Host: "node/n", Stage: walk.Ruled, Hook: netfilter.Forward, Visit: &netfilter.Visit{Chain: c, Rule: &c.Rules[drop]}}
	st.Packet.Tuple = packet.Tuple{Protocol: packet.TCP, Source: ip(from), Destination: ip("10.1.0.9"),
		DestinationPort: packet.Port{Number: port, Low: port, High: port}}
	// As the rules before the drop leave it.
	if v, err := c.Run(&netfilter.Context{Packet: &st.Packet, Family: netfilter.IPv4, Hook: netfilter.Forward, Host: setsOf{h}}); err != nil ||
		v.Kind != netfilter.Drop {
		t.Fatalf("%v, %v", v.Kind, err)
	}
	r := &renderer{reasoner: newReasoner(owners)}
	return strings.Join(r.allowing(&st), "; ")
}
