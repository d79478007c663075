package explain

import (
	"math/big"
	"net/netip"
	"regexp"
	"strings"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/writers"
)

// objects are world A: the service of the first article, two pods, one node.
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

// way writes down the steps of one packet.
type way struct {
	steps  []walk.Step
	host   string
	hook   netfilter.Hook
	packet packet.Packet
}

func (w *way) at(host string, hook netfilter.Hook) *way {
	if host != w.host {
		w.packet.Local = packet.Local{}
	}
	w.host, w.hook = host, hook
	return w
}

func (w *way) add(st walk.Step, before packet.Packet) *way {
	st.Host, st.Hook, st.Packet = w.host, w.hook, w.packet
	st.Changes = packet.Changes(&before, &w.packet)
	w.steps = append(w.steps, st)
	return w
}

func (w *way) sent(out string) *way {
	before := w.packet
	w.packet.Out = out
	return w.add(walk.Step{Stage: walk.Sent}, before)
}

func (w *way) in(link, port string) *way {
	w.packet.In, w.packet.BridgeIn, w.packet.Out, w.packet.BridgeOut = link, port, "", ""
	w.packet.Frame.Destination, w.packet.Frame.Source = packet.MAC{0xaa, 1, 1, 1, 1, 2}, packet.MAC{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc}
	w.packet.Frame.Type = packet.EtherIPv4
	return w.add(walk.Step{Stage: walk.Received}, w.packet)
}

func (w *way) out(link, port string) *way {
	w.packet.Out, w.packet.BridgeOut = link, port
	return w.add(walk.Step{Stage: walk.Transmit}, w.packet)
}

func (w *way) route(cidr, gateway, link string, table int) *way {
	a := &fib.Answer{Type: "unicast", Link: link, Route: &fib.Route{Table: table, Destination: netip.MustParsePrefix(cidr)}}
	if gateway != "" {
		a.Gateway = netip.MustParseAddr(gateway)
	}
	before := w.packet
	w.packet.Out = link
	return w.add(walk.Step{Stage: walk.Routed, Route: a}, before)
}

// rule visits a rule; change is what it does to the packet.
func (w *way) rule(c *netfilter.Chain, n int, verdict netfilter.Verdict, choices int, change func(p *packet.Packet)) *way {
	before := w.packet
	if change != nil {
		change(&w.packet)
	}
	v := &netfilter.Visit{Chain: c, Rule: &c.Rules[n-1], Verdict: verdict, Choices: choices, Changes: packet.Changes(&before, &w.packet)}
	return w.add(walk.Step{Stage: walk.Ruled, Visit: v}, before)
}

// failed visits a rule that does not apply.
func (w *way) failed(c *netfilter.Chain, n int, because string, choices int) *way {
	v := &netfilter.Visit{
		Chain: c, Rule: &c.Rules[n-1], Verdict: netfilter.Verdict{Kind: netfilter.Break}, Failed: textStatement(because), Choices: choices,
	}
	return w.add(walk.Step{Stage: walk.Ruled, Visit: v}, w.packet)
}

// textStatement is a statement in words alone.
type textStatement string

func (s textStatement) Eval(*netfilter.Context) netfilter.Verdict {
	return netfilter.Verdict{Kind: netfilter.Break}
}
func (s textStatement) String() string { return string(s) }

func jump(c *netfilter.Chain) netfilter.Verdict {
	return netfilter.Verdict{Kind: netfilter.Jump, Chain: c}
}

var (
	accept = netfilter.Verdict{Kind: netfilter.Accept}
	ret    = netfilter.Verdict{Kind: netfilter.Return}
	drop   = netfilter.Verdict{Kind: netfilter.Drop}
	next   = netfilter.Verdict{}
)

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

func setDestination(s string) func(*packet.Packet) {
	return func(p *packet.Packet) {
		a := netip.MustParseAddrPort(s)
		p.Destination, p.DestinationPort = a.Addr(), packet.Exactly(a.Port())
	}
}

func setSource(s string) func(*packet.Packet) {
	return func(p *packet.Packet) {
		a := netip.MustParseAddrPort(s)
		p.Source, p.SourcePort = a.Addr(), packet.Exactly(a.Port())
	}
}

func setMark(m uint32) func(*packet.Packet) { return func(p *packet.Packet) { p.Mark = m } }

const natTable = `
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A POSTROUTING -m comment --comment "ip-masq-agent: ensure nat POSTROUTING directs all non-LOCAL destination traffic to our custom IP-MASQ-AGENT chain" -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-SERVICES -d 10.0.159.58/32 -p tcp -m comment --comment "default/whereami cluster IP" -m tcp --dport 80 -j KUBE-SVC-AYIUZSRKUWY4XTSW
-A KUBE-SERVICES -d 203.0.113.10/32 -p tcp -m comment --comment "default/whereami loadbalancer IP" -m tcp --dport 80 -j KUBE-EXT-AYIUZSRKUWY4XTSW
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-SVC-AYIUZSRKUWY4XTSW ! -s 10.13.76.0/24 -d 10.0.159.58/32 -p tcp -m comment --comment "default/whereami cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-AYIUZSRKUWY4XTSW -m comment --comment "default/whereami -> 10.13.76.26:80" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-DFEYLPIUB22CVTBE
-A KUBE-SVC-AYIUZSRKUWY4XTSW -m comment --comment "default/whereami -> 10.13.76.7:80" -j KUBE-SEP-EEKBNNDWJBHLLPWP
-A KUBE-EXT-AYIUZSRKUWY4XTSW -m comment --comment "masquerade traffic for default/whereami external destinations" -j KUBE-MARK-MASQ
-A KUBE-EXT-AYIUZSRKUWY4XTSW -j KUBE-SVC-AYIUZSRKUWY4XTSW
-A KUBE-SEP-DFEYLPIUB22CVTBE -s 10.13.76.26/32 -m comment --comment "default/whereami" -j KUBE-MARK-MASQ
-A KUBE-SEP-DFEYLPIUB22CVTBE -p tcp -m comment --comment "default/whereami" -m tcp -j DNAT --to-destination 10.13.76.26:80
-A KUBE-SEP-EEKBNNDWJBHLLPWP -s 10.13.76.7/32 -m comment --comment "default/whereami" -j KUBE-MARK-MASQ
-A KUBE-SEP-EEKBNNDWJBHLLPWP -p tcp -m comment --comment "default/whereami" -m tcp -j DNAT --to-destination 10.13.76.7:80
-A IP-MASQ-AGENT -d 10.13.0.0/16 -m comment --comment "ip-masq-agent: local traffic is not subject to MASQUERADE" -j RETURN
-A IP-MASQ-AGENT -m comment --comment "ip-masq-agent: outbound traffic is subject to MASQUERADE (must be last in chain)" -j MASQUERADE
`

// fromInternet is a request from the internet to the load balancer's address: two outcomes, one for each endpoint.
func fromInternet() *walk.Result {
	nat := chains(netfilter.IPv4, "nat", natTable)
	fabric := chains(netfilter.IPv4, "azure", `
-A lb ct state new meta l4proto { tcp, udp } ip daddr . meta l4proto . th dport vmap @rules comment "has the load balancer a rule for this address and port?"
-A rule/kubernetes/a48b-TCP-80 ct mark set jhash ip saddr . ip daddr mod 1 seed 0x617a map { 0 : 7 } comment "a back end that is up"
-A rule/kubernetes/a48b-TCP-80 meta mark set ct mark comment "the back end's routing table"
`)
	lb, rule := fabric["lb"], fabric["rule/kubernetes/a48b-TCP-80"]
	result := &walk.Result{Request: walk.Request{Host: "internet/client"}}
	for i, e := range []struct{ sep, to, veth, pod string }{
		{"KUBE-SEP-DFEYLPIUB22CVTBE", "10.13.76.26:80", "azvaaa", "pod/default/whereami-a"},
		{"KUBE-SEP-EEKBNNDWJBHLLPWP", "10.13.76.7:80", "azvbbb", "pod/default/whereami-b"},
	} {
		svc := nat["KUBE-SVC-AYIUZSRKUWY4XTSW"]
		choice := walk.Decision{Host: "node/node0", Answer: i, Choice: netfilter.Choice{
			Kind: netfilter.Random, Chain: svc, Rule: &svc.Rules[1], What: "statistic mode random probability 0.5",
			Options: []netfilter.Option{{Label: "matches", Weight: 1}, {Label: "does not match", Weight: 1}},
		}}
		w := &way{packet: tcp("198.51.100.10:40000", "203.0.113.10:80")}
		w.at("internet/client", netfilter.Output).sent("eth0").out("eth0", "")
		w.at("fabric", netfilter.Prerouting).in("internet", "").rule(lb, 1, netfilter.Verdict{Kind: netfilter.Goto, Chain: rule}, 0, nil).
			rule(rule, 1, next, 0, nil).rule(rule, 2, next, 0, setMark(7)).route("0.0.0.0/0", "10.13.76.4", "nic7", 7).out("nic7", "")
		w.at("node/node0", netfilter.Prerouting).in("azure0", "eth0").
			rule(nat["PREROUTING"], 1, jump(nat["KUBE-SERVICES"]), 0, nil).
			failed(nat["KUBE-SERVICES"], 1, "destination in 10.0.159.58/32", 0).
			rule(nat["KUBE-SERVICES"], 2, jump(nat["KUBE-EXT-AYIUZSRKUWY4XTSW"]), 0, nil).
			rule(nat["KUBE-EXT-AYIUZSRKUWY4XTSW"], 1, jump(nat["KUBE-MARK-MASQ"]), 0, nil).
			rule(nat["KUBE-MARK-MASQ"], 1, next, 0, setMark(0x4000)).
			rule(nat["KUBE-EXT-AYIUZSRKUWY4XTSW"], 2, jump(svc), 0, nil).
			failed(svc, 1, "destination in 10.0.159.58/32", 0)
		if i == 0 {
			w.rule(svc, 2, jump(nat[e.sep]), 1, nil)
		} else {
			w.failed(svc, 2, "statistic mode random probability 0.5", 1).rule(svc, 3, jump(nat[e.sep]), 0, nil)
		}
		w.failed(nat[e.sep], 1, "source in the endpoint", 0).rule(nat[e.sep], 2, accept, 0, setDestination(e.to)).
			route("10.13.76.0/24", "", "azure0", fib.TableMain).at("node/node0", netfilter.Postrouting).
			rule(nat["POSTROUTING"], 1, jump(nat["KUBE-POSTROUTING"]), 0, nil).
			failed(nat["KUBE-POSTROUTING"], 1, "mark is not 0x4000/0x4000", 0).
			rule(nat["KUBE-POSTROUTING"], 2, next, 0, setMark(0)).
			rule(nat["KUBE-POSTROUTING"], 3, accept, 0, setSource("10.13.76.4:40000")).out("azure0", e.veth)
		w.at(e.pod, netfilter.Input).in("eth0", "").add(walk.Step{Stage: walk.Ended}, w.packet)
		end := walk.End{Kind: walk.Delivered, Host: e.pod, Packet: w.packet, Listener: "whereami"}

		b := &way{packet: tcp(e.to, "10.13.76.4:40000")}
		b.packet.TCPFlags = packet.SYN | packet.ACK
		b.at(e.pod, netfilter.Output).sent("eth0").out("eth0", "")
		b.at("node/node0", netfilter.Prerouting).in("azure0", e.veth)
		before := b.packet
		setDestination("198.51.100.10:40000")(&b.packet)
		b.add(walk.Step{Stage: walk.Translated, Why: "the connection's NAT mapping"}, before)
		before = b.packet
		setSource("203.0.113.10:80")(&b.packet)
		b.add(walk.Step{Stage: walk.Translated, Why: "the connection's NAT mapping"}, before).out("azure0", "eth0")
		b.at("fabric", netfilter.Prerouting).in("nic7", "").out("internet", "")
		b.at("internet/client", netfilter.Input).in("eth0", "")
		result.Outcomes = append(result.Outcomes, walk.Outcome{
			Probability: big.NewRat(1, 2), Choices: []walk.Decision{choice}, There: w.steps, End: end,
			Back: b.steps, BackEnd: &walk.End{Kind: walk.Delivered, Host: "internet/client", Packet: b.packet},
		})
	}
	return result
}

// toVNet is a pod that reaches a VM: the ip-masq-agent leaves its address alone.
func toVNet() *walk.Result {
	nat := chains(netfilter.IPv4, "nat", natTable)
	w := &way{packet: tcp("10.13.76.7:41000", "10.13.1.4:80")}
	w.at("pod/default/whereami-b", netfilter.Output).sent("eth0").out("eth0", "")
	w.at("node/node0", netfilter.Prerouting).in("azure0", "azvbbb").route("0.0.0.0/0", "10.13.76.1", "azure0", fib.TableMain).
		at("node/node0", netfilter.Postrouting).rule(nat["POSTROUTING"], 1, jump(nat["KUBE-POSTROUTING"]), 0, nil).
		rule(nat["KUBE-POSTROUTING"], 1, ret, 0, nil).rule(nat["POSTROUTING"], 2, jump(nat["IP-MASQ-AGENT"]), 0, nil).
		rule(nat["IP-MASQ-AGENT"], 1, ret, 0, nil).out("azure0", "eth0")
	w.at("vm/testvm", netfilter.Input).in("eth0", "")
	return &walk.Result{
		Request: walk.Request{Host: "pod/default/whereami-b"},
		Assumed: []walk.Assumption{{Host: "vm/testvm", What: "rules unknown; assuming the packet passes"}},
		Outcomes: []walk.Outcome{{
			Probability: big.NewRat(1, 1), There: w.steps, End: walk.End{Kind: walk.Delivered, Host: "vm/testvm", Packet: w.packet, Refused: true},
		}},
	}
}

// dropped is a pod whose packet a rule of the filter table drops; unknown is one that meets a match that is not understood.
func dropped() *walk.Result {
	filter := chains(netfilter.IPv4, "filter", `
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -p tcp -m tcp --dport 25 -j REJECT --reject-with tcp-reset
-A FORWARD -d 10.13.1.4/32 -m comment --comment "no access to the database" -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
`)
	w := &way{packet: tcp("10.13.76.7:41000", "10.13.1.4:5432")}
	w.at("pod/default/whereami-b", netfilter.Output).sent("eth0").out("eth0", "")
	w.at("node/node0", netfilter.Forward).in("azure0", "azvbbb").rule(filter["FORWARD"], 1, jump(filter["KUBE-FORWARD"]), 0, nil).
		failed(filter["KUBE-FORWARD"], 1, "connection state is INVALID", 0).failed(filter["FORWARD"], 2, "destination port is 25", 0).
		rule(filter["FORWARD"], 3, drop, 0, nil).add(walk.Step{Stage: walk.Ended}, w.packet)
	return &walk.Result{Outcomes: []walk.Outcome{{
		Probability: big.NewRat(1, 1), There: w.steps, End: walk.End{Kind: walk.Dropped, Host: "node/node0", Packet: w.packet},
	}}}
}

func unknown() *walk.Result {
	filter := chains(netfilter.IPv4, "filter", `
-A FORWARD -m geoip --source-country NL -j ACCEPT
-A FORWARD -j DROP
`)
	result := &walk.Result{}
	for i, label := range []string{"matches", "does not match"} {
		w := &way{packet: tcp("10.13.76.7:41000", "10.13.1.4:80")}
		w.at("node/node0", netfilter.Forward).in("eth1", "")
		end := walk.Left
		if i == 0 {
			w.rule(filter["FORWARD"], 1, accept, 1, nil).out("eth0", "")
		} else {
			end = walk.Dropped
			w.failed(filter["FORWARD"], 1, "geoip --source-country NL", 1).rule(filter["FORWARD"], 2, drop, 0, nil)
		}
		result.Outcomes = append(result.Outcomes, walk.Outcome{
			There: w.steps, End: walk.End{Kind: end, Host: "node/node0", Packet: w.packet},
			Choices: []walk.Decision{{Host: "node/node0", Answer: i, Choice: netfilter.Choice{
				Kind: netfilter.Unknown, Chain: filter["FORWARD"], Rule: &filter["FORWARD"].Rules[0], What: "-m geoip --source-country NL",
				Options: []netfilter.Option{{Label: "matches"}, {Label: label}},
			}}},
		})
	}
	return result
}

// looped is a packet that two routers send to each other until its TTL ends.
func looped() *walk.Result {
	w := &way{packet: tcp("10.0.0.1:41000", "10.9.9.9:80")}
	for range 5 {
		w.at("node/node0", netfilter.Forward).in("eth0", "").route("0.0.0.0/0", "10.0.0.3", "eth0", fib.TableMain).out("eth0", "")
		w.at("vm/router", netfilter.Forward).in("eth0", "").route("10.9.0.0/16", "10.0.0.2", "eth0", fib.TableMain).out("eth0", "")
	}
	w.at("node/node0", netfilter.Forward).in("eth0", "")
	return &walk.Result{
		Assumed: []walk.Assumption{{Host: "node/node0", What: "its sockets are not known"},
			{Host: "vm/router", What: "its sockets are not known"}},
		Outcomes: []walk.Outcome{{
			Probability: big.NewRat(1, 1), There: w.steps,
			End: walk.End{Kind: walk.Rejected, Host: "node/node0", Packet: w.packet, Why: "its TTL has run out"},
		}},
	}
}

// ownersOf are the owners of objects, with all writers of rules.
func ownersOf(objects snapshot.Objects) *Owners { return NewOwners(objects, writers.Book(&objects)) }
