package explain

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/conntrack"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/syntax/nftables"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestWhy: what each writer's rules are said to be there for.
func TestWhy(t *testing.T) {
	local := objects()
	local.Services[0].Local = true
	for _, test := range []struct {
		name, table string
		family      netfilter.Family
		rules       string // the last one is asked about, those before it stand in chains that it may lead to
		verdict     netfilter.VerdictKind
		to          string // chain
		objects     snapshot.Objects
		source      string
		want        string
	}{
		{name: "cluster IP", rules: `-A KUBE-SERVICES -d 10.0.0.9/32 -p tcp -m comment --comment "default/web:http cluster IP" -j KUBE-SVC-X`,
			want: "default/web:http: cluster IP"},
		{name: "cluster IP as until 1.19",
			rules: `-A KUBE-SERVICES -d 10.0.0.9/32 -p tcp -m comment --comment "default/web: cluster IP" -j KUBE-SVC-X`,
			want:  "default/web: cluster IP"},
		{name: "node port", rules: `-A KUBE-NODEPORTS -p tcp -m comment --comment default/web -j KUBE-EXT-X`, want: "default/web: node port"},
		{name: "external, Cluster, by the hash", rules: `-A KUBE-EXT-AYIUZSRKUWY4XTSW -j KUBE-MARK-MASQ`, objects: objects(),
			want: "default/whereami, externalTrafficPolicy Cluster"},
		{name: "external, Local, by the object", rules: `-A KUBE-EXT-AYIUZSRKUWY4XTSW -s 10.13.76.0/24 -j KUBE-SVC-AYIUZSRKUWY4XTSW`,
			to: "KUBE-SVC-AYIUZSRKUWY4XTSW", objects: local,
			want: "default/whereami, externalTrafficPolicy Local, from a pod: as to the cluster IP"},
		{name: "external, Local, by the chain", to: "KUBE-SVL-X",
			rules: `-A KUBE-EXT-X -m comment --comment "masquerade LOCAL traffic for default/web external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
-A KUBE-EXT-X -j KUBE-SVL-X`,
			want: "default/web, externalTrafficPolicy Local"},
		{name: "from the node itself", objects: local, rules: `-A KUBE-EXT-AYIUZSRKUWY4XTSW -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ`,
			want: "default/whereami, externalTrafficPolicy Local, from the node itself"},
		{name: "XLB", to: "KUBE-SEP-Y",
			rules:   `-A KUBE-XLB-7G2JV7LNOR6DDNIY -m comment --comment "Balancing rule 0 for default/whereami:" -j KUBE-SEP-6HBOEI5FVFTJNRJ3`,
			objects: objects(),
			want:    "default/whereami: an endpoint"},
		{name: "endpoint", to: "KUBE-SEP-6HBOEI5FVFTJNRJ3", rules: `-A KUBE-SVC-7G2JV7LNOR6DDNIY -j KUBE-SEP-6HBOEI5FVFTJNRJ3`,
			objects: objects(),
			want:    "default/whereami: endpoint 10.13.76.26:80, pod default/whereami-a"},
		{name: "hairpin", to: "KUBE-MARK-MASQ", rules: `-A KUBE-SEP-6HBOEI5FVFTJNRJ3 -s 10.13.76.26/32 -j KUBE-MARK-MASQ`, objects: objects(),
			want: "default/whereami: an endpoint that reaches itself through its service"},
		{name: "kube-proxy's nftables", table: "kube-proxy", to: "endpoint-5OJB2KTY-ns1/svc1/tcp/p80__10.180.0.1/80",
			rules: `-A service-ULMVA6XW-ns1/svc1/tcp/p80 numgen random mod 2 vmap { 0 : goto x }`,
			want:  "ns1/svc1:p80: endpoint 10.180.0.1:80"},
		{name: "kube-proxy's nftables, IPv6", table: "kube-proxy", to: "endpoint-2CRNCTTE-ns1/svc1/tcp/p80__fd00.10.180..2.1/80",
			rules: `-A service-ULMVA6XW-ns1/svc1/tcp/p80 numgen random mod 2 vmap { 0 : goto x }`,
			want:  "ns1/svc1:p80: endpoint [fd00:10:180::2:1]:80"},
		{name: "ip-masq-agent's list", verdict: netfilter.Return, objects: objects(),
			rules: `-A IP-MASQ-AGENT -d 10.13.0.0/16 -m comment --comment "ip-masq-agent: local traffic is not subject to MASQUERADE" -j RETURN`,
			want:  "ip-masq-agent: 10.13.0.0/16 of nonMasqueradeCIDRs[0] in ConfigMap kube-system/azure-ip-masq-agent-config"},
		{name: "ip-masq-agent, two lists", verdict: netfilter.Return,
			objects: masqObjects("nonMasqueradeCIDRs: [10.1.0.0/16, 10.2.0.0/16]", "nonMasqueradeCIDRs: [10.2.0.0/16]"),
			rules:   `-A IP-MASQ-AGENT -d 10.2.0.0/16 -j RETURN`,
			want:    "ip-masq-agent: 10.2.0.0/16 of nonMasqueradeCIDRs[1] in ConfigMap kube-system/config-0 and nonMasqueradeCIDRs[0] in ConfigMap kube-system/config-1"},
		{name: "ip-masq-agent, a part of an entry", verdict: netfilter.Return,
			objects: masqObjects("nonMasqueradeCIDRs: [110.1.0.0/16] # 10.1.0.0/16"),
			rules:   `-A IP-MASQ-AGENT -d 10.1.0.0/16 -j RETURN`, want: "ip-masq-agent: nonMasqueradeCIDRs 10.1.0.0/16, which no ConfigMap has now"},
		{name: "ip-masq-agent, a faulty list", verdict: netfilter.Return, objects: masqObjects("nonMasqueradeCIDRs: [10.1.0.1/16]"),
			rules: `-A IP-MASQ-AGENT -d 10.1.0.0/16 -j RETURN`,
			want: "ip-masq-agent: nonMasqueradeCIDRs 10.1.0.0/16, of a configuration before the present one, which is not applied (ConfigMap kube-system/config-0, " +
				"key ip-masq-agent, nonMasqueradeCIDRs[0]: 10.1.0.1/16 is not aligned: 10.1.0.1 has bits set after the first 16; write 10.1.0.0/16)"},
		{name: "ip-masq-agent's end, known", verdict: netfilter.Accept, objects: masqObjects("nonMasqueradeCIDRs: [10.1.0.0/16]", ""),
			rules: `-A IP-MASQ-AGENT -j MASQUERADE`,
			want:  "ip-masq-agent: outside nonMasqueradeCIDRs of ConfigMap kube-system/config-0 and ConfigMap kube-system/config-1"},
		{name: "ip-masq-agent's list, not known", verdict: netfilter.Return, rules: `-A IP-MASQ-AGENT -d 10.0.0.0/8 -j RETURN`,
			want: "ip-masq-agent: nonMasqueradeCIDRs 10.0.0.0/8"},
		{name: "ip-masq-agent, link-local", verdict: netfilter.Return, rules: `-A IP-MASQ-AGENT -d 169.254.0.0/16 -j RETURN`,
			want: "ip-masq-agent: masqLinkLocal is false"},
		{name: "ip-masq-agent's end", verdict: netfilter.Accept, rules: `-A IP-MASQ-AGENT -j MASQUERADE`,
			want: "ip-masq-agent: outside nonMasqueradeCIDRs"},
		{name: "Calico", verdict: netfilter.Accept, source: "10.13.76.7", objects: objects(),
			rules: `-A cali-nat-outgoing -m comment --comment "cali:flqWnvo8yq4ULQLa" -m set --match-set cali40masq-ipam-pools src -m set ! --match-set cali40all-ipam-pools dst -j MASQUERADE --random-fully`,
			want:  "Calico pool default-ipv4-ippool has natOutgoing, and no pool holds the destination"},
		{name: "kubenet", verdict: netfilter.Accept,
			rules: `-A POSTROUTING ! -d 192.168.0.0/16 -m comment --comment "kubenet: SNAT for outbound traffic from cluster" -m addrtype ! --dst-type LOCAL -j MASQUERADE`,
			want:  "kubenet: SNAT for destinations outside 192.168.0.0/16"},
		{name: "Docker", verdict: netfilter.Accept, rules: `-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE`,
			want: "Docker: its containers' network"},
		{name: "an AKS node", verdict: netfilter.Accept,
			rules: `-A POSTROUTING ! -d 10.0.0.0/8 -m iprange ! --dst-range 168.63.129.16-168.63.129.16 -m addrtype ! --dst-type LOCAL -j MASQUERADE`,
			want:  "AKS node: destinations outside 10.0.0.0/8"},
		{name: "Azure CNI's frames", family: netfilter.Bridge, verdict: netfilter.Accept,
			rules: `-A POSTROUTING -s Unicast -o eth0 -j snat --to-src 00:0d:3a:01:02:03 --snat-arp`,
			want:  "Azure CNI: frames leave with the NIC's own address"},
		{name: "the fabric's load balancer", table: "azure",
			rules: `-A rule/kubernetes/a48b-TCP-80 ct mark set jhash ip saddr mod 1 comment "a back end that is up"`,
			want:  "Azure load balancer rule kubernetes/a48b-TCP-80"},
		{name: "the fabric's outbound", table: "azure", verdict: netfilter.Accept,
			rules: `-A out-1-1 snat ip to ip saddr map @out-1-1 comment "the load balancer's front end, the member's block of ports"`,
			want:  "Azure outbound: the load balancer's front end, the member's block of ports"},
		{name: "a machine's own public address", table: "azure", verdict: netfilter.Accept,
			rules: `-A nat-post snat ip to ip saddr map @instance-out comment "the machine's own public address"`,
			want:  "Azure outbound: the machine's own public address"},
		{name: "a security group's rule that allows", table: "azure", verdict: netfilter.Return,
			rules: `-A nsg/vms/in tcp dport 80 return comment "web (300)"`,
			want:  "NSG vms rule web (300) allows"},
		{name: "a security group's rule that denies", table: "azure", verdict: netfilter.Drop,
			rules: `-A nsg/vms/in/65000 drop comment "DenyAllInBound (65500)"`,
			want:  "NSG vms rule DenyAllInBound (65500) denies"},
		{name: "the sender's security groups", table: "azure", to: "nsg/vms/out",
			rules: `-A lb ip daddr != 168.63.129.16 iifname vmap @nsg-out comment "the network security groups of the sender"`,
			want:  "Azure: the network security groups of the sender"},
		{name: "the receiver's security groups", table: "azure", to: "nsg-in/1",
			rules: `-A nsg-in oifname vmap @nsg-in comment "the network security groups of the receiver"`,
			want:  "Azure: the network security groups of the receiver"},
		{name: "tracked for security groups", table: "azure", to: "inside",
			rules: `-A hop/nic3 iifname @guarded goto inside comment "tracked, for the network security groups of the sender"`,
			want:  "Azure: tracked, for the network security groups of the sender"},
		{name: "a user's comment", table: "filter", verdict: netfilter.Drop,
			rules: `-A FORWARD -m comment --comment "no mail" -p tcp --dport 25 -j DROP`, want: "no mail"},
		{name: "nothing known", table: "filter", verdict: netfilter.Drop, rules: `-A FORWARD -j DROP`},
	} {
		t.Run(test.name, func(t *testing.T) {
			table := test.table
			if table == "" {
				table = "nat"
			}
			all := chains(test.family, table, test.rules)
			lines := strings.Split(strings.TrimSpace(test.rules), "\n")
			name := strings.Fields(lines[len(lines)-1])[1]
			v := &netfilter.Visit{Chain: all[name], Verdict: netfilter.Verdict{Kind: test.verdict}}
			v.Rule = &v.Chain.Rules[len(v.Chain.Rules)-1]
			if test.to != "" {
				v.Verdict = jump(&netfilter.Chain{Table: v.Chain.Table, Name: test.to})
			}
			p := packet.Packet{}
			if test.source != "" {
				p.Source = netip.MustParseAddr(test.source)
			}
			if got := newReasoner(ownersOf(test.objects)).why("", v, &p); got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

// TestNobodyTakes: the end of the fabric's chain is explained, that of another's chain of this name is not.
func TestNobodyTakes(t *testing.T) {
	for _, tt := range []struct {
		table   string
		verdict netfilter.VerdictKind
		want    string
	}{
		{"azure", netfilter.Drop, "Azure: no machine has this address, and no rule of the load balancer is for it and this port"},
		{"azure", netfilter.Accept, ""},
		{"filter", netfilter.Drop, ""},
	} {
		v := &netfilter.Visit{Chain: &netfilter.Chain{Table: &netfilter.Table{Name: tt.table}, Name: "forward"},
			Verdict: netfilter.Verdict{Kind: tt.verdict}}
		if got := newReasoner(ownersOf(snapshot.Objects{})).why("", v, &packet.Packet{}); got != tt.want {
			t.Errorf("policy %s of table %s: %q, want %q", tt.verdict, tt.table, got, tt.want)
		}
	}
}

// TestOwners: whose addresses are.
func TestOwners(t *testing.T) {
	o := ownersOf(objects())
	for _, test := range []struct {
		address string
		proto   packet.Protocol
		port    uint16
		want    string
	}{
		{"10.13.76.7", packet.TCP, 80, "pod default/whereami-b"},
		{"10.13.76.4", packet.TCP, 22, "node node0"}, // and the address of a pod in the node's own network
		{"10.13.76.4", packet.TCP, 30064, "service default/whereami: node port 30064 of node0"},
		{"10.13.76.4", packet.UDP, 30064, "node node0"},
		{"10.0.159.58", packet.TCP, 80, "service default/whereami: cluster IP"},
		{"203.0.113.10", packet.TCP, 80, "service default/whereami: load balancer IP"},
		{"10.0.0.10", packet.TCP, 80, "service kube-system/kube-dns: cluster IP"},
		{"192.168.1.1", packet.TCP, 80, ""},
	} {
		if got := o.name(netip.MustParseAddr(test.address), test.proto, packet.Exactly(test.port)); got != test.want {
			t.Errorf("%s:%d: %q, want %q", test.address, test.port, got, test.want)
		}
	}
	var none *Owners
	if got := none.name(netip.MustParseAddr("10.0.0.1"), packet.TCP, packet.Exactly(80)); got != "" {
		t.Errorf("no reason for %q", got)
	}
}

// TestSchema holds docs/walk-json.md to the types: each field is there.
func TestSchema(t *testing.T) {
	page, err := os.ReadFile("../../../docs/walk-json.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[reflect.Type]bool{}
	var check func(reflect.Type)
	check = func(typ reflect.Type) {
		for typ.Kind() == reflect.Slice || typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || seen[typ] {
			return
		}
		seen[typ] = true
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" || !strings.Contains(string(page), "`"+name+"`") {
				t.Errorf("%s.%s: docs/walk-json.md does not have %q", typ.Name(), f.Name, name)
			}
			check(f.Type)
		}
	}
	check(reflect.TypeFor[Document]())
}

// masqObjects returns ConfigMaps of the ip-masq-agent.
func masqObjects(texts ...string) snapshot.Objects {
	var o snapshot.Objects
	for i, text := range texts {
		o.ConfigMaps = append(o.ConfigMaps,
			snapshot.ConfigMap{Namespace: "kube-system", Name: fmt.Sprintf("config-%d", i), Data: map[string]string{"ip-masq-agent": text}})
	}
	return o
}

// TestMasqOutside checks the reason why the ip-masq-agent translates a destination: it is in none of the agent's ranges. A destination that
// should be in a range gets a different reason.
func TestMasqOutside(t *testing.T) {
	for name, test := range map[string]struct {
		objects snapshot.Objects
		want    string
	}{
		"nothing known": {snapshot.Objects{}, "outside nonMasqueradeCIDRs"},
		"outside":       {masqObjects("nonMasqueradeCIDRs: [10.2.0.0/16]"), "outside nonMasqueradeCIDRs of ConfigMap kube-system/config-0"},
		"emptied":       {masqObjects("nonMasqueradeCIDRs: []"), "nonMasqueradeCIDRs is empty in ConfigMap kube-system/config-0"},
		"not applied": {masqObjects("nonMasqueradeCIDRs: [10.2.0.0/16]", "nonMasqueradeCIDRs: [10.1.0.0/16, ten]"),
			"outside the nonMasqueradeCIDRs in force; the present configuration is not applied (ConfigMap kube-system/config-1, key ip-masq-agent, " +
				`nonMasqueradeCIDRs[1]: "ten" is not a range; write it as 10.0.0.0/8)`},
		"no rule yet": {masqObjects("nonMasqueradeCIDRs: [10.2.0.0/16, 10.1.0.0/16]"),
			"no rule for 10.1.0.0/16 of nonMasqueradeCIDRs[1] in ConfigMap kube-system/config-0, which the node's agent has not applied"},
	} {
		p := packet.Packet{}
		p.Destination = netip.MustParseAddr("10.1.1.4")
		if got := whyOf(test.objects, `-A IP-MASQ-AGENT -j MASQUERADE`, netfilter.Accept, &p); got != "ip-masq-agent: "+test.want {
			t.Errorf("%s:\ngot  %q\nwant %q", name, got, test.want)
		}
	}
}

// whyOf returns the reason of one rule of table nat.
func whyOf(objects snapshot.Objects, rule string, verdict netfilter.VerdictKind, p *packet.Packet) string {
	for _, c := range chains(netfilter.IPv4, "nat", rule) {
		if len(c.Rules) > 0 {
			return newReasoner(ownersOf(objects)).why("", &netfilter.Visit{Chain: c, Rule: &c.Rules[0], Verdict: netfilter.Verdict{Kind: verdict}}, p)
		}
	}
	return ""
}

// TestKeptByPools: why Calico does not translate.
func TestKeptByPools(t *testing.T) {
	pool := func(name, cidr string, nat bool) snapshot.Pool {
		return snapshot.Pool{Name: name, CIDR: netip.MustParsePrefix(cidr), NATOutgoing: nat}
	}
	ours, theirs := pool("ours", "10.240.0.0/16", true), pool("theirs", "172.17.0.0/16", false)
	for _, test := range []struct {
		name  string
		pools []snapshot.Pool
		to    string
		want  string
	}{
		{"another pool", []snapshot.Pool{ours, theirs}, "172.17.0.4", "Calico pool theirs holds the destination"},
		{"the same pool", []snapshot.Pool{ours, theirs}, "10.240.0.97", "Calico pool ours holds the destination, too"},
		{"a narrower pool without natOutgoing", []snapshot.Pool{ours, pool("block", "10.240.0.0/24", false)}, "10.240.0.97",
			"Calico pool block holds the destination"},
		{"no source of Calico's", []snapshot.Pool{theirs}, "172.17.0.4", "Calico: no pool with natOutgoing holds the source"},
		{"sets that are not the pools'", []snapshot.Pool{ours}, "8.8.8.8",
			"Calico pool ours has natOutgoing and no pool holds the destination: the node's IP sets do not say what the pools do"},
		{"unknown pools", nil, "172.17.0.4", "Calico: from no pool with natOutgoing, or to one of the pools"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := packet.Packet{}
			p.Source, p.Destination = netip.MustParseAddr("10.240.0.5"), netip.MustParseAddr(test.to)
			rule := `-A cali-nat-outgoing -m set --match-set cali40masq-ipam-pools src -m set ! --match-set cali40all-ipam-pools dst -j MASQUERADE`
			if got := whyOf(snapshot.Objects{Pools: test.pools}, rule, netfilter.Break, &p); got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

// one is a source of one host.
type one struct{ host snapshot.Host }

func (o *one) Host(string) (*snapshot.Host, error) { return &o.host, nil }

func (*one) Names() []string { return []string{"node/a"} }

func (*one) Objects() snapshot.Objects { return objects() }

// TestSlots: of our service proxy's nftables backend, a reader learns which slot of how many was drawn, and whose endpoint that is.
func TestSlots(t *testing.T) {
	kerneltest.NeedRoot(t)
	const listing = "../../node/proxy/nftables/testdata/listed/azure-cni.txt"
	if _, err := os.Stat(listing); err != nil {
		t.Fatal(err)
	}
	dump, err := exec.CommandContext(t.Context(), "unshare", "--net", "sh", "-ec", `nft -f "$1"; nft -j list ruleset`, "sh", listing).Output()
	if err != nil {
		t.Fatal(err)
	}
	rules, err := nftables.Parse(dump)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := nftables.Lower(rules)
	if err != nil {
		t.Fatal(err)
	}
	node := &one{snapshot.Host{Name: "node/a", Rules: &netfilter.Ruleset{Tables: tables}, Flows: conntrack.NewTable(nil), FIB: &fib.State{
		Links: []fib.Link{{Name: "eth0", Index: 1, Up: true, LowerUp: true, Type: "ether"}},
		Routes: []fib.Route{{Table: fib.TableMain, Type: "unicast", Destination: netip.MustParsePrefix("0.0.0.0/0"), Link: "eth0",
			Scope: "link"}},
	}, Sysctls: map[string]string{"net.ipv4.ip_forward": "1", "net.ipv4.conf.eth0.forwarding": "1"}}}
	node.host.FIB.Index()
	node.host.Rules.Index()
	for to, want := range map[string][]string{
		"10.0.159.58:80": {"default/whereami: slot 0 of 2, endpoint 10.13.76.26:80, pod default/whereami-a",
			"2  50 %  node a, DNAT 10.13.76.7:80 (pod default/whereami-b): leaves the known network"},
		"10.0.0.1:443": {"slot 0 of 1, endpoint 203.0.113.1:443"},
	} {
		end := netip.MustParseAddrPort(to)
		r, err := walk.Walk(node, walk.Request{Host: "node/a", Arrives: "eth0", Forwarded: true, OneWay: true, Packet: packet.Packet{
			TCPFlags: packet.SYN, Tuple: packet.Tuple{Protocol: packet.TCP, Source: netip.MustParseAddr("10.13.76.9"),
				SourcePort: packet.Exactly(40000), Destination: end.Addr(), DestinationPort: packet.Exactly(end.Port())}}})
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if err := Text(&text, r, Options{Owners: ownersOf(objects())}); err != nil {
			t.Fatal(err)
		}
		for _, line := range want {
			if !strings.Contains(text.String(), line) {
				t.Errorf("to %s: no %q in\n%s", to, line, &text)
			}
		}
	}
}
