package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/packet"
)

// simulation is a cluster that there is on paper only: nodes with pods, each pod at the other end of a veth, and one fabric that all nodes
// hang on. What does not tell them apart is as in the capture of a lab.
type simulation struct {
	nodes, pods, services int // pods of each node
	node, pod, fabric     map[string]capture.Output
}

// worldA is a lab's capture.
const worldA = "internal/capture/testdata/world-a.pwcap.tar.gz"

func newSimulation(nodes, pods, services int) (*simulation, error) {
	f, err := capture.Open(worldA)
	if err != nil {
		return nil, fmt.Errorf("%w; run this in the repository's root", err)
	}
	defer f.Close()
	s := &simulation{nodes: nodes, pods: pods, services: services}
	o := f.Origin()
	for name := range o.Hosts {
		raw, err := o.Fetch(name)
		if err != nil {
			return nil, err
		}
		switch {
		case strings.HasPrefix(name, "node/"):
			s.node = raw.Outputs
		case strings.HasPrefix(name, "pod/"):
			s.pod = raw.Outputs
		case name == "fabric":
			s.fabric = raw.Outputs
		}
	}
	rules := capture.Output{Command: "iptables-nft-save -c", Data: []byte(kubeProxyRules(services))}
	s.node["iptables-save.txt"] = rules
	for _, file := range []string{"iptables-save.txt", "ipset.txt", "conntrack.txt"} {
		s.fabric[file] = capture.Output{Command: s.fabric[file].Command}
	}
	for _, host := range []map[string]capture.Output{s.node, s.fabric} { // whose rules of iptables these are not
		host["nft.json"] = capture.Output{Command: host["nft.json"].Command, Data: []byte(`{"nftables":[]}`)}
		host["ebtables-save.txt"] = capture.Output{Command: host["ebtables-save.txt"].Command}
	}
	return s, nil
}

// writeSimulation writes the capture of a simulated cluster.
func writeSimulation(path string) (err error) {
	s, err := newSimulation(nodes.count, nodes.pods/nodes.count, proxies.services)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = capture.Take(context.Background(), s.origin(), f, capture.Head{Packetwalk: "simulated", Taken: time.Unix(1.8e9, 0)})
	return err
}

func nodeName(n int) string   { return fmt.Sprintf("aks-nodepool1-31351229-%05d", n) }
func podName(n, p int) string { return fmt.Sprintf("web-%05d-%02d", n, p) }
func subnet(n, host int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 128 + byte(n>>8), byte(n), byte(host)})
}
func podAddr(n, p int) netip.Addr { return subnet(n, 10+p) }

// origin gives the cluster's hosts, made as they are asked for.
func (s *simulation) origin() capture.Origin {
	type place struct{ node, pod int }
	places := map[string]place{"fabric": {-1, -1}}
	o := capture.Origin{Hosts: map[string]capture.NetNS{"fabric": {Machine: "fabric", Inode: 1}}}
	for n := range s.nodes {
		name := "node/" + nodeName(n)
		places[name], o.Hosts[name] = place{n, -1}, capture.NetNS{Machine: nodeName(n), Inode: 4026531840}
		for p := range s.pods {
			name := "pod/shop/" + podName(n, p)
			places[name], o.Hosts[name] = place{n, p}, capture.NetNS{Machine: nodeName(n), Inode: uint64(4026532000 + p)}
		}
	}
	o.Fetch = func(name string) (*capture.Raw, error) {
		at := places[name]
		raw := &capture.Raw{Name: name, Taken: time.Unix(1.8e9, 0).UTC(), Kernel: "6.1.0-40-amd64", NetNS: o.Hosts[name].Inode}
		switch {
		case at.node < 0:
			raw.Outputs = s.ofFabric().texts(s.fabric)
		case at.pod < 0:
			raw.Outputs = s.ofNode(at.node).texts(s.node)
		default:
			raw.Outputs = s.ofPod(at.node, at.pod).texts(s.pod)
		}
		return raw, nil
	}
	o.Lists = func() (map[string][]byte, error) { return s.lists(), nil }
	return o
}

// simHost is what tells a host from others.
type simHost struct {
	links, addresses, routes, neighbours []map[string]any
	wires                                []capture.Wire
}

// gatewayMAC is that of all that Azure's network answers for.
var gatewayMAC = packet.MAC{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc}

func mac(kind byte, n, p int) packet.MAC {
	return packet.MAC{0x02, kind, byte(n >> 8), byte(n), 0, byte(p)}
}

// link adds a veth and the other end that it has.
func (h *simHost) link(index int, name string, own packet.MAC, address netip.Prefix, peer capture.Wire) {
	base := map[string]any{"ifindex": index, "link_index": peer.PeerIndex, "ifname": name, "flags": []string{"BROADCAST", "MULTICAST", "UP", "LOWER_UP"},
		"mtu": 1500, "qdisc": "noqueue", "operstate": "UP", "linkmode": "DEFAULT", "group": "default", "link_type": "ether",
		"address": own.String(), "broadcast": "ff:ff:ff:ff:ff:ff", "link_netnsid": index, "promiscuity": 0, "allmulti": 0, "min_mtu": 68,
		"max_mtu": 65535, "linkinfo": map[string]any{"info_kind": "veth"}, "inet6_addr_gen_mode": "eui64", "num_tx_queues": 2,
		"num_rx_queues": 2, "gso_max_size": 65536, "gso_max_segs": 65535, "tso_max_size": 524280, "tso_max_segs": 65535, "gro_max_size": 65536}
	h.links = append(h.links, base)
	if address.IsValid() {
		info := []map[string]any{{"family": "inet", "local": address.Addr().String(), "prefixlen": address.Bits(), "scope": "global",
			"label": name}}
		h.addresses = append(h.addresses, map[string]any{"ifindex": index, "ifname": name, "flags": base["flags"], "mtu": 1500,
			"operstate": "UP", "link_type": "ether", "address": own.String(), "addr_info": info})
		h.route("local", address.Addr().String(), "", name, "local")
	}
	peer.Link, peer.Index, peer.NSID = name, index, &index
	h.wires = append(h.wires, peer)
}

func (h *simHost) route(kind, to, gateway, dev, table string) {
	r := map[string]any{"type": kind, "dst": to, "dev": dev, "table": table, "protocol": "static", "scope": "link", "flags": []string{}}
	if kind == "local" {
		r["scope"] = "host"
	}
	if gateway != "" {
		r["gateway"], r["scope"], r["flags"] = gateway, "global", []string{"onlink"}
	}
	h.routes = append(h.routes, r)
}

func (h *simHost) neighbour(address netip.Addr, dev string, at packet.MAC) {
	h.neighbours = append(h.neighbours, map[string]any{"dst": address.String(), "dev": dev, "lladdr": at.String(), "state": []string{"PERMANENT"}})
}

func (s *simulation) ofPod(n, p int) *simHost {
	h := &simHost{}
	via := netip.MustParseAddr("169.254.1.1")
	h.link(2, "eth0", mac(2, n, p), netip.PrefixFrom(podAddr(n, p), 32),
		capture.Wire{PeerIndex: 10 + p, NetNS: 4026531840, Host: "node/" + nodeName(n), PeerLink: fmt.Sprintf("azv%02d", p)})
	h.route("unicast", "default", via.String(), "eth0", "main")
	h.neighbour(via, "eth0", mac(1, n, p))
	return h
}

func (s *simulation) ofNode(n int) *simHost {
	h := &simHost{}
	h.link(2, "eth0", mac(0, n, 0), netip.PrefixFrom(subnet(n, 4), 32),
		capture.Wire{PeerIndex: 10 + n, NetNS: 1, Host: "fabric", PeerLink: fmt.Sprintf("nic%d", n)})
	h.route("unicast", "default", subnet(n, 1).String(), "eth0", "main")
	h.neighbour(subnet(n, 1), "eth0", gatewayMAC)
	for p := range s.pods {
		name := fmt.Sprintf("azv%02d", p)
		h.link(10+p, name, mac(1, n, p), netip.Prefix{},
			capture.Wire{PeerIndex: 2, NetNS: uint64(4026532000 + p), Host: "pod/shop/" + podName(n, p), PeerLink: "eth0"})
		h.route("unicast", podAddr(n, p).String(), "", name, "main")
		h.neighbour(podAddr(n, p), name, mac(2, n, p))
	}
	return h
}

func (s *simulation) ofFabric() *simHost {
	h := &simHost{}
	for n := range s.nodes {
		name := fmt.Sprintf("nic%d", n)
		h.link(10+n, name, gatewayMAC, netip.PrefixFrom(subnet(n, 1), 32),
			capture.Wire{PeerIndex: 2, NetNS: 4026531840, Host: "node/" + nodeName(n), PeerLink: "eth0"})
		h.route("unicast", netip.PrefixFrom(subnet(n, 0), 24).String(), subnet(n, 4).String(), name, "main")
		h.neighbour(subnet(n, 4), name, mac(0, n, 0))
	}
	return h
}

// texts returns a host's texts. same has those that all hosts share.
func (h *simHost) texts(same map[string]capture.Output) map[string]capture.Output {
	all := map[string]capture.Output{}
	for file, out := range same {
		all[file] = out
	}
	for file, list := range map[string]any{"ip-link.json": h.links, "ip-address.json": h.addresses, "ip-route.json": h.routes,
		"ip-neighbour.json": h.neighbours, capture.WiresFile: h.wires} {
		out := all[file]
		out.Data, _ = json.Marshal(list) // nothing in it can fail
		all[file] = out
	}
	all[capture.SysctlsFile] = capture.Output{Data: h.sysctls(string(all[capture.SysctlsFile].Data))}
	all["bridge-fdb.json"] = capture.Output{Command: all["bridge-fdb.json"].Command, Data: []byte("[]")}
	all["ip-6-route.json"] = capture.Output{Command: all["ip-6-route.json"].Command, Data: []byte("[]")}
	return all
}

// sysctls gives each of its links what another host's lo has, with forwarding where that forwards.
func (h *simHost) sysctls(like string) []byte {
	var of []string // of lo
	var b strings.Builder
	for line := range strings.Lines(like) {
		switch parts := strings.Split(line, "."); {
		case len(parts) < 5 || parts[3] == "all" || parts[3] == "default":
			b.WriteString(line)
		case parts[3] == "lo":
			b.WriteString(line)
			of = append(of, line)
		}
	}
	for _, l := range h.links {
		for _, line := range of {
			line = strings.Replace(line, ".lo.", "."+l["ifname"].(string)+".", 1)
			if strings.Contains(like, "net.ipv4.ip_forward = 1") {
				line = strings.Replace(line, "forwarding = 0", "forwarding = 1", 1)
			}
			b.WriteString(line)
		}
	}
	return []byte(b.String())
}

// lists returns the Kubernetes objects: each service has twenty pods.
func (s *simulation) lists() map[string][]byte {
	var pods, nodes, services, slices []json.RawMessage
	add := func(list *[]json.RawMessage, format string, a ...any) {
		*list = append(*list, fmt.Appendf(nil, format, a...))
	}
	for n := range s.nodes {
		add(&nodes, `{"metadata":{"name":%q},"spec":{"podCIDRs":["%s/24"]},"status":{"addresses":[{"type":"InternalIP","address":%q}]}}`,
			nodeName(n), subnet(n, 0), subnet(n, 4))
		for p := range s.pods {
			add(&pods, `{"metadata":{"namespace":"shop","name":%q,"labels":{"app.kubernetes.io/name":"web","app.kubernetes.io/part-of":"shop",`+
				`"pod-template-hash":"58ffd64b78"}},"spec":{"nodeName":%q},"status":{"phase":"Running","podIPs":[{"ip":%q}]}}`,
				podName(n, p), nodeName(n), podAddr(n, p))
		}
	}
	for i := range s.services {
		add(&services, `{"metadata":{"namespace":"shop","name":"s%05d"},"spec":{"type":"ClusterIP","clusterIPs":[%q],"ports":[{"protocol":"TCP","port":80}]},`+
			`"status":{"loadBalancer":{}}}`, i, serviceAddr(i))
		var ends []string
		for j := range 20 {
			n := (i*20 + j) % s.nodes
			ends = append(ends, fmt.Sprintf(`{"addresses":[%q],"nodeName":%q,"conditions":{"ready":true,"serving":true,"terminating":false}}`,
				podAddr(n, j%s.pods), nodeName(n)))
		}
		add(&slices, `{"metadata":{"namespace":"shop","name":"s%05d-abcde","labels":{"kubernetes.io/service-name":"s%05d"}},"addressType":"IPv4",`+
			`"endpoints":[%s],"ports":[{"protocol":"TCP","port":8080}]}`, i, i, strings.Join(ends, ","))
	}
	return map[string][]byte{"pods.json": capture.List(pods), "nodes.json": capture.List(nodes), "services.json": capture.List(services),
		"endpointslices.json": capture.List(slices)}
}

func serviceAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 64 + byte(i>>16), byte(i >> 8), byte(i)})
}

// kubeProxyRules returns the iptables-save of so many services with three endpoints each, as kube-proxy writes them.
func kubeProxyRules(services int) string {
	var chains, rules strings.Builder
	chain := func(name string) { fmt.Fprintf(&chains, ":%s - [0:0]\n", name) }
	rule := func(format string, a ...any) { fmt.Fprintf(&rules, "[0:0] -A "+format+"\n", a...) }
	chain("KUBE-SERVICES")
	chain("KUBE-MARK-MASQ")
	rule(`PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`)
	rule(`OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`)
	rule(`KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000`)
	for i := range services {
		svc, name := fmt.Sprintf("KUBE-SVC-%016X", i*0x9e3779b97f4a7), fmt.Sprintf("shop/s%05d:http", i)
		chain(svc)
		rule(`KUBE-SERVICES -d %s/32 -p tcp -m comment --comment "%s cluster IP" -m tcp --dport 80 -j %s`, serviceAddr(i), name, svc)
		rule(`%s ! -s 10.128.0.0/9 -d %s/32 -p tcp -m comment --comment "%s cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ`, svc, serviceAddr(i), name)
		for j, chance := range []string{" -m statistic --mode random --probability 0.33333333349", " -m statistic --mode random --probability 0.50000000000", ""} {
			sep, to := fmt.Sprintf("KUBE-SEP-%016X", (i*3+j)*0x7f4a7c15f39cd), podAddr(i%5000, j)
			chain(sep)
			rule(`%s -m comment --comment "%s -> %s:8080"%s -j %s`, svc, name, to, chance, sep)
			rule(`%s -s %s/32 -m comment --comment "%s" -j KUBE-MARK-MASQ`, sep, to, name)
			rule(`%s -p tcp -m comment --comment "%s" -m tcp -j DNAT --to-destination %s:8080`, sep, name, to)
		}
	}
	return "# Generated by iptables-save v1.8.9 (nf_tables) on Sat Nov 21 15:12:57 2026\n*nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n" +
		":OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n" + chains.String() + rules.String() + "COMMIT\n"
}

// kubeProxyTable returns nft's input of the same, as kube-proxy writes it in mode nftables.
func kubeProxyTable(services int) string {
	var b strings.Builder
	var ips []string
	fmt.Fprintf(&b, "table ip kube-proxy {\n chain mark-for-masquerade { meta mark set meta mark or 0x4000; }\n")
	for i := range services {
		name := fmt.Sprintf("%08X-shop/s%05d/tcp/http", i*0x9e3779b, i)
		var slots []string
		for j := range 3 {
			to := podAddr(i%5000, j)
			fmt.Fprintf(&b, " chain endpoint-%s__%s/8080 { ip saddr %s jump mark-for-masquerade; meta l4proto tcp dnat to %s:8080; }\n", name, to, to, to)
			slots = append(slots, fmt.Sprintf("%d : goto endpoint-%s__%s/8080", j, name, to))
		}
		fmt.Fprintf(&b, " chain service-%s { ip daddr %s tcp dport 80 ip saddr != 10.128.0.0/9 jump mark-for-masquerade; "+
			"numgen random mod 3 vmap { %s }; }\n", name, serviceAddr(i), strings.Join(slots, ", "))
		ips = append(ips, fmt.Sprintf("%s . tcp . 80 : goto service-%s", serviceAddr(i), name))
	}
	fmt.Fprintf(&b, " map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = { %s }; }\n", strings.Join(ips, ", "))
	b.WriteString(" chain nat-prerouting { type nat hook prerouting priority dstnat; ip daddr . meta l4proto . th dport vmap @service-ips; }\n}\n")
	return b.String()
}
