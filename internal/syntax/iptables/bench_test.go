package iptables

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// clusterRules are the rules of kube-proxy of today for services with three endpoints each, as iptables-save prints them: eleven rules a
// service.
func clusterRules(services int) []byte {
	var chains, dispatch, rules strings.Builder
	for i := range services {
		name := fmt.Sprintf("default/service-%05d", i)
		svc := fmt.Sprintf("KUBE-SVC-%016d", i)
		vip := fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255)
		fmt.Fprintf(&chains, ":%s - [0:0]\n", svc)
		fmt.Fprintf(&dispatch, "-A KUBE-SERVICES -d %s/32 -p tcp -m comment --comment \"%s cluster IP\" -m tcp --dport 80 -j %s\n", vip, name,
			svc)
		fmt.Fprintf(&rules, "-A %s ! -s 10.244.0.0/16 -d %s/32 -p tcp -m comment --comment \"%s cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ\n", svc, vip, name)
		for e := range 3 {
			sep := fmt.Sprintf("KUBE-SEP-%014d%02d", i, e)
			pod := fmt.Sprintf("10.244.%d.%d", (3*i+e)>>8&255, (3*i+e)&255)
			fmt.Fprintf(&chains, ":%s - [0:0]\n", sep)
			statistic := ""
			if e < 2 {
				statistic = " -m statistic --mode random --probability " + RoundedProbability(3-e, 10)
			}
			fmt.Fprintf(&rules, "-A %s -m comment --comment \"%s -> %s:8080\"%s -j %s\n", svc, name, pod, statistic, sep)
			fmt.Fprintf(&rules, "-A %s -s %s/32 -m comment --comment \"%s\" -j KUBE-MARK-MASQ\n", sep, pod, name)
			fmt.Fprintf(&rules, "-A %s -p tcp -m comment --comment \"%s\" -m tcp -j DNAT --to-destination %s:8080\n", sep, name, pod)
		}
	}
	return []byte(`*mangle
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SERVICES - [0:0]
` + chains.String() + `-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A POSTROUTING -m addrtype ! --dst-type LOCAL -m iprange ! --dst-range 10.0.0.0-10.255.255.255 -j MASQUERADE
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
` + dispatch.String() + `-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
` + rules.String() + "COMMIT\n")
}

// load is what a walk does with a dump before it begins.
func load(tb testing.TB, dump []byte) *netfilter.Ruleset {
	tables, err := Parse(dump)
	if err != nil {
		tb.Fatal(err)
	}
	lowered, err := Lower(tables, netfilter.IPv4, netfilter.IPTablesNFT)
	if err != nil {
		tb.Fatal(err)
	}
	rs := &netfilter.Ruleset{Tables: lowered}
	rs.Index()
	return rs
}

func BenchmarkLoad(b *testing.B) {
	dump := clusterRules(10000)
	b.SetBytes(int64(len(dump)))
	b.ReportAllocs()
	var rs *netfilter.Ruleset
	for b.Loop() {
		rs = load(b, dump)
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapAlloc)/1e6, "MB-kept")
	b.ReportMetric(float64(m.Sys)/1e6, "MB-from-system")
	runtime.KeepAlive(rs)
}

// world answers what the rules ask of the machine.
type world struct{ netfilter.Host }

func (world) AddressType(a netip.Addr, _ string) (netfilter.AddressType, bool) {
	return netfilter.UnicastAddress, true
}

// last always takes the last option: "does not match".
type last struct{}

func (last) Choose(c netfilter.Choice) int { return len(c.Options) - 1 }

// walkRules takes a packet through all hooks of a node that forwards it to a pod.
func walkRules(tb testing.TB, rs *netfilter.Ruleset, vip netip.Addr, linear bool) int {
	flow := &packet.Flow{}
	p := packet.Packet{TTL: 64, TCPFlags: packet.SYN, Tuple: packet.Tuple{
		Protocol: packet.TCP, Source: netip.AddrFrom4([4]byte{10, 13, 0, 5}), Destination: vip,
		SourcePort: packet.Exactly(40000), DestinationPort: packet.Exactly(80),
	}}
	p.In, p.Track = "eth0", packet.Track{Flow: flow, State: packet.New}
	c := netfilter.Context{Packet: &p, Family: netfilter.IPv4, Host: world{}, Chooser: last{}}
	c.Translate = func(t packet.Translation) netfilter.Verdict {
		if !t.Source {
			p.Destination, p.DestinationPort = t.Low, packet.Exactly(t.PortLow)
		}
		return netfilter.Verdict{Kind: netfilter.Accept}
	}
	for _, hook := range []netfilter.Hook{netfilter.Prerouting, netfilter.Forward, netfilter.Postrouting} {
		c.Hook = hook
		if hook != netfilter.Prerouting {
			p.Out = "cbr0"
		}
		for _, chain := range rs.Hook(netfilter.IPv4, hook) {
			run := chain.Run
			if linear {
				run = chain.RunLinear
			}
			if _, err := run(&c); err != nil {
				tb.Fatal(err)
			}
		}
	}
	return len(c.Visits)
}

func BenchmarkWalkRules(b *testing.B) {
	times := map[string]float64{}
	for _, services := range []int{100, 10000} {
		rs := load(b, clusterRules(services))
		vip := netip.AddrFrom4([4]byte{10, 96, byte(services * 3 / 4 >> 8), byte(services * 3 / 4)})
		for _, how := range []string{"indexed", "linear"} {
			name := fmt.Sprintf("%s/services=%d", how, services)
			b.Run(name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if n := walkRules(b, rs, vip, how == "linear"); n != 14 {
						b.Fatalf("%d visits", n)
					}
				}
				times[name] = float64(b.Elapsed()) / float64(b.N)
				if base := times[how+"/services=100"]; services != 100 && base > 0 {
					b.ReportMetric(times[name]/base, "times-100-services")
				}
				if indexed := times[fmt.Sprintf("indexed/services=%d", services)]; how == "linear" && indexed > 0 {
					b.ReportMetric(times[name]/indexed, "times-indexed")
				}
			})
		}
	}
}
