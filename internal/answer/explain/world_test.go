package explain

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/capture/excerpt"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/testing/capturetest"
	"packetwalk.dev/internal/writers"
)

// objects returns world A: the service of the first article, two pods, one node.
func objects() snapshot.Objects {
	ip := netip.MustParseAddr
	return snapshot.Objects{
		Nodes: []snapshot.Node{{Name: "node0", IPs: []netip.Addr{ip("10.13.76.4")}}},
		Pods: []snapshot.Pod{
			{Namespace: "default", Name: "whereami-a", Node: "node0", IPs: []netip.Addr{ip("10.13.76.26")}},
			{Namespace: "default", Name: "whereami-b", Node: "node0", IPs: []netip.Addr{ip("10.13.76.7")}},
			{Namespace: "kube-system", Name: "proxy", Node: "node0", IPs: []netip.Addr{ip("10.13.76.4")}, HostNetwork: true},
		},
		Services: []snapshot.Service{
			{
				Namespace: "default", Name: "whereami", Type: "LoadBalancer",
				ClusterIPs: []netip.Addr{ip("10.0.159.58")}, External: []netip.Addr{ip("203.0.113.10")},
				Ports: []snapshot.ServicePort{{
					Protocol: packet.TCP, Port: 80, NodePort: 30064,
					Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.13.76.26:80"), netip.MustParseAddrPort("10.13.76.7:80")},
				}},
			},
			{
				Namespace: "kube-system", Name: "kube-dns", Type: "ClusterIP", ClusterIPs: []netip.Addr{ip("10.0.0.10")},
				Ports: []snapshot.ServicePort{{Name: "dns", Protocol: packet.UDP, Port: 53}},
			},
		},
		Pools: []snapshot.Pool{{Name: "default-ipv4-ippool", CIDR: netip.MustParsePrefix("10.13.0.0/16"), NATOutgoing: true}},
		ConfigMaps: []snapshot.ConfigMap{{
			Namespace: "kube-system", Name: "azure-ip-masq-agent-config",
			Data: map[string]string{"ip-masq-agent": "nonMasqueradeCIDRs:\n- 10.13.0.0/16\n"},
		}},
	}
}

// chains makes a table's chains from "-A CHAIN RULE" lines.
func chains(family netfilter.Family, table, save string) map[string]*netfilter.Chain {
	t := &netfilter.Table{Name: table, Family: family}
	all := map[string]*netfilter.Chain{}
	for line := range strings.Lines(save) {
		fields := strings.SplitN(strings.TrimSpace(line), " ", 3)
		if len(fields) < 2 || fields[0] != "-A" {
			continue
		}
		c := all[fields[1]]
		if c == nil {
			c = &netfilter.Chain{Table: t, Name: fields[1], Policy: netfilter.Return}
			all[c.Name] = c
			t.Chains = append(t.Chains, c)
		}
		if len(fields) == 2 {
			continue // a chain without rules
		}
		r := netfilter.Rule{Number: len(c.Rules) + 1, Text: fields[2]}
		for _, m := range regexp.MustCompile(`--comment ("[^"]*"|\S+)`).FindAllStringSubmatch(r.Text, -1) {
			r.Comment = strings.Trim(m[1], `"`) // the last, as package iptables has it
		}
		c.Rules = append(c.Rules, r)
	}
	for name, c := range all {
		if strings.ToUpper(name) == name && !strings.Contains(name, "-") {
			c.Base = &netfilter.Base{Type: "nat"}
			c.Policy = netfilter.Accept
		}
	}
	return all
}

func jump(c *netfilter.Chain) netfilter.Verdict {
	return netfilter.Verdict{Kind: netfilter.Jump, Chain: c}
}

func tcp(source, destination string) packet.Packet {
	s, d := netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination)
	return packet.Packet{
		Tuple: packet.Tuple{
			Protocol: packet.TCP, Source: s.Addr(), Destination: d.Addr(), SourcePort: packet.Exactly(s.Port()),
			DestinationPort: packet.Exactly(d.Port()),
		},
		TCPFlags: packet.SYN, TTL: 64,
	}
}

// worldA opens the capture of a lab: the world of the first article, with two services behind a load balancer.
func worldA(t *testing.T) snapshot.Source {
	t.Helper()
	return capture.NewSource(capturetest.Open(t, "../../capture/testdata/world-a.pwcap.tar.gz").Complete().Origin())
}

// example is a walk, the same with the rules that did not apply, and what is known of the objects in it.
type example struct {
	result, everyRule *walk.Result
	objects           snapshot.Objects
}

func walked(t *testing.T, src snapshot.Source, r walk.Request) example {
	t.Helper()
	e := example{objects: src.Objects()}
	for _, result := range []**walk.Result{&e.result, &e.everyRule} {
		var err error
		if *result, err = walk.Walk(src, r); err != nil {
			t.Fatal(err)
		}
		r.EveryRule = true
	}
	return e
}

// fromInternet walks a request from the internet to a load balancer's address: two outcomes, one for each endpoint.
func fromInternet(t *testing.T) example {
	return walked(t, worldA(t), walk.Request{Host: "internet/client", Packet: tcp("198.51.100.10:40000", "203.0.113.11:80")})
}

// toVM walks from a pod to a VM: the node's rules leave the pod's address alone, and nothing listens at the VM.
func toVM(t *testing.T) example {
	return walked(t, worldA(t), walk.Request{Host: "pod/default/nginx-75fdcbbc74-zkvhc", Packet: tcp("10.13.76.5:41000", "10.13.1.4:80")})
}

// forwarded walks a packet that a node forwards whose state is a text.
func forwarded(t *testing.T, text string) example {
	return walked(t, host(t, "n", text), walk.Request{Host: "node/n", Arrives: "eth1", Forwarded: true,
		Packet: tcp("10.13.76.7:41000", "10.13.1.4:5432")})
}

func host(t *testing.T, name, text string) snapshot.Source {
	t.Helper()
	src, err := excerpt.Read(writers.Book(&snapshot.Objects{}), nil, name, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return src
}

const routes = `$ ip route
default via 10.13.0.1 dev eth0
`

// dropped walks a packet that a rule of table filter drops.
func dropped(t *testing.T) example {
	return forwarded(t, routes+`$ iptables-save
*filter
:FORWARD ACCEPT [0:0]
:KUBE-FORWARD - [0:0]
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -p tcp -m tcp --dport 25 -j REJECT --reject-with tcp-reset
-A FORWARD -d 10.13.1.4/32 -m comment --comment "no access to the database" -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
COMMIT
`)
}

// unknown walks a packet that meets a match that the model does not understand.
func unknown(t *testing.T) example {
	return forwarded(t, routes+`$ iptables-save
*filter
:FORWARD ACCEPT [0:0]
-A FORWARD -m geoip --source-country NL -j ACCEPT
-A FORWARD -j DROP
COMMIT
`)
}

// routers are two hosts that send packets for 10.9.0.0/16 to each other.
type routers map[string]*snapshot.Host

func (r routers) Names() []string                          { return []string{"node/a", "node/b"} }
func (r routers) Objects() snapshot.Objects                { return snapshot.Objects{} }
func (r routers) Host(name string) (*snapshot.Host, error) { return r[name], nil }

// looped walks a packet that two routers send to each other until its TTL ends.
func looped(t *testing.T) example {
	r := routers{}
	for _, one := range []struct{ name, other, address, gateway, mac string }{
		{"node/a", "node/b", "10.0.0.2", "10.0.0.3", "02:00:00:00:00:02"}, {"node/b", "node/a", "10.0.0.3", "10.0.0.2", "02:00:00:00:00:03"},
	} {
		name := strings.TrimPrefix(one.name, "node/")
		h, err := host(t, name, `$ ip addr
2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP
    link/ether `+one.mac+` brd ff:ff:ff:ff:ff:ff
    inet `+one.address+`/24 scope global eth0
$ ip route
10.0.0.0/24 dev eth0 proto kernel scope link src `+one.address+`
10.9.0.0/16 via `+one.gateway+` dev eth0
$ sysctl net.ipv4.ip_forward
net.ipv4.ip_forward = 1
`).Host(one.name)
		if err != nil {
			t.Fatal(err)
		}
		h.Peers = []snapshot.Peer{{Link: "eth0", Host: one.other, PeerLink: "eth0"}}
		r[one.name] = h
	}
	p := tcp("10.0.0.9:41000", "10.9.9.9:80")
	p.TTL = 12
	return walked(t, r, walk.Request{Host: "node/a", Arrives: "eth0", Forwarded: true, Packet: p})
}

// ownersOf returns the owners of objects, with all writers of rules.
func ownersOf(objects snapshot.Objects) *Owners { return NewOwners(objects, writers.Book(&objects)) }
