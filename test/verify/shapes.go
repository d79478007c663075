package verify

import (
	"fmt"
	"net/netip"
)

// shapes are the topologies. The first site of each is the client.
var shapes = []func(*generator){
	(*generator).chain, (*generator).chain, (*generator).parallel, (*generator).segment,
	(*generator).oneNode, (*generator).oneNode, (*generator).oneNode, (*generator).twoNodes, (*generator).twoNodes,
	(*generator).overlay,
}

// chain adds a client, one to three routers in a row, and a server.
func (g *generator) chain() {
	client := g.site("vm/client")
	before, via := client, 0
	nets := []int{}
	var routers []*site
	for i := range 1 + g.IntN(3) {
		r := g.router(fmt.Sprintf("node/r%d", i+1))
		net := g.subnet()
		nets = append(nets, net)
		a, b := g.wire(before, fmt.Sprintf("down%d", i), r, "up")
		g.address(before, fmt.Sprintf("down%d", i), a, net, 1)
		g.address(r, "up", b, net, 2)
		g.route(before, 0, net, 2)
		routers = append(routers, r)
		before, via = r, net
	}
	server := g.site("vm/server")
	last := g.subnet()
	a, b := g.wire(before, "srv", server, "eth0")
	g.address(before, "srv", a, last, 1)
	g.address(server, "eth0", b, last, 2)
	g.route(server, 0, last, 1)
	// Each router knows the subnets behind it on the client's side.
	for i, r := range routers {
		for _, n := range nets[:i] {
			g.route(r, n, nets[i], 1)
		}
	}
	_ = via
}

// parallel adds two hosts with a router between them that they reach by two wires each.
func (g *generator) parallel() {
	client, r, server := g.site("vm/client"), g.router("node/r1"), g.site("vm/server")
	for i := range 2 {
		link := fmt.Sprintf("eth%d", i)
		for _, s := range []*site{client, server} {
			far := fmt.Sprintf("%c%d", s.Name[3], i)
			net := g.subnet()
			a, b := g.wire(s, link, r, far)
			g.address(s, link, a, net, 2)
			g.address(r, far, b, net, 1)
		}
	}
	for k, s := range []*site{client, server} {
		for _, six := range g.families() {
			v1, v2 := addressIn(1+k, 1, six), addressIn(3+k, 1, six)
			switch g.IntN(3) {
			case 0:
				s.Add("ip", "route add default via %s", v1)
			case 1:
				s.Add("ip", "route add default via %s metric 10", v1)
				s.Add("ip", "route add default via %s metric 20", v2)
			default:
				s.Add("ip", "route add default nexthop via %s weight %d nexthop via %s weight %d", v1, 1+g.IntN(3), v2, 1+g.IntN(3))
			}
		}
		for _, six := range g.families() {
			if g.chance(0.4) {
				s.Add("ip", "rule add priority 500 from %s table 50", prefixOf(3+k, six))
				s.Add("ip", "route add default via %s table 50", addressIn(3+k, 1, six))
			}
		}
	}
}

// segment adds a bridge that joins hosts, itself with or without an address.
func (g *generator) segment() {
	client := g.site("vm/client")
	sw := g.site("node/switch")
	net := g.subnet()
	mac := g.bridge(sw, "br0")
	hosts := []*site{client}
	for i := range 1 + g.IntN(3) {
		hosts = append(hosts, g.site(fmt.Sprintf("vm/h%d", i+1)))
	}
	for i, h := range hosts {
		port := fmt.Sprintf("p%d", i)
		a, _ := g.wire(h, "eth0", sw, port)
		g.enslave(sw, port, "br0", g.chance(0.2))
		g.address(h, "eth0", a, net, i+1)
	}
	if g.chance(0.6) {
		g.address(sw, "br0", mac, net, 100)
		if g.chance(0.7) {
			sw.forwards = true
			sw.Add("sysctl", "net/ipv4/ip_forward 1")
			if g.six {
				sw.Add("sysctl", "net/ipv6/conf/all/forwarding 1")
			}
		}
		for _, h := range hosts {
			g.route(h, 0, net, 100)
		}
	}
	g.ports(sw, hosts)
}

// ports changes settings of bridge ports.
func (g *generator) ports(sw *site, hosts []*site) {
	for _, p := range sw.links {
		if g.chance(0.12) {
			sw.Add("ip", "link set %s type bridge_slave isolated on", p)
		}
		if g.chance(0.1) {
			sw.Add("ip", "link set %s type bridge_slave learning off", p)
		}
		if g.chance(0.04) {
			sw.Add("ip", "link set %s type bridge_slave flood off", p)
		}
	}
	_ = hosts
}

// oneNode adds a client, perhaps a router, and a node with pods.
func (g *generator) oneNode() {
	client := g.site("vm/client")
	pods := 1 + g.IntN(3)
	if g.chance(0.5) {
		net := g.subnet()
		node := g.router("node/n1")
		a, b := g.wire(client, "eth0", node, "eth0")
		g.address(client, "eth0", a, net, 1)
		g.route(client, 0, net, 2)
		g.podsOf(node, pods, net, 2, b, func(int) {})
		return
	}
	r := g.router("node/r1")
	net := g.subnet()
	a, b := g.wire(client, "eth0", r, "c")
	g.address(client, "eth0", a, net, 2)
	g.address(r, "c", b, net, 1)
	g.route(client, 0, net, 1)
	g.nodeAt(r, "node/n1", "n1", min(pods, 2))
}

// twoNodes adds two nodes at one router, with pods, and perhaps a client.
func (g *generator) twoNodes() {
	var client *site
	if g.chance(0.5) {
		client = g.site("vm/client")
	}
	r := g.router("node/fabric")
	if client != nil {
		net := g.subnet()
		a, b := g.wire(client, "eth0", r, "c")
		g.address(client, "eth0", a, net, 2)
		g.address(r, "c", b, net, 1)
		g.route(client, 0, net, 1)
	}
	g.nodeAt(r, "node/n1", "n1", 1)
	g.nodeAt(r, "node/n2", "n2", 1)
}

// nodeAt adds a node behind a router, which routes to its pods.
func (g *generator) nodeAt(r *site, name, link string, pods int) {
	node := g.router(name)
	net := g.subnet()
	b, a := g.wire(r, link, node, "eth0")
	g.address(r, link, b, net, 1)
	g.podsOf(node, pods, net, 10, a, func(subnet int) {
		if subnet != net {
			g.route(r, subnet, net, 10)
		}
	})
	g.route(node, 0, net, 1)
}

// podsOf gives a node its address n in its uplink's subnet, and its pods: behind a bridge of their own, behind one that the uplink is a
// port of (Azure CNI's bridge mode), or each at its own wire with a host route (transparent mode, Calico). behind is told of their subnet.
func (g *generator) podsOf(node *site, count, net, n int, mac string, behind func(subnet int)) {
	switch g.IntN(3) {
	case 0:
		g.address(node, "eth0", mac, net, n)
		own := g.subnet()
		g.bridgedPods(node, count, own, false)
		behind(own)
	case 1:
		bridge := g.bridge(node, "br0")
		g.enslave(node, "eth0", "br0", g.chance(0.8))
		g.address(node, "br0", bridge, net, n)
		g.attach(node, count, net, n, "br0")
	default:
		g.address(node, "eth0", mac, net, n)
		own := g.subnet()
		g.routedPods(node, count, own)
		behind(own)
	}
}

func podName(node *site, i int) string {
	return fmt.Sprintf("pod/default/%s-%d", node.Name[len("node/"):], i+1)
}

func (g *generator) bridgedPods(node *site, count, subnet int, _ bool) {
	mac := g.bridge(node, "cbr0")
	g.address(node, "cbr0", mac, subnet, 1)
	g.attach(node, count, subnet, 1, "cbr0")
}

// attach makes pods at ports of a node's bridge, whose address n is their gateway.
func (g *generator) attach(node *site, count, subnet, n int, bridge string) {
	for i := range count {
		pod := g.site(podName(node, i))
		veth := fmt.Sprintf("veth%d", i)
		_, b := g.wire(node, veth, pod, "eth0")
		g.enslave(node, veth, bridge, g.chance(0.7))
		g.address(pod, "eth0", b, subnet, n+i+1)
		g.route(pod, 0, subnet, n)
	}
}

var linkLocalGateway = map[bool]netip.Addr{false: netip.MustParseAddr("169.254.1.1"), true: netip.MustParseAddr("fe80::1")}

// routedPods adds pods at wires of their own: a host route each, and proxy ARP for the gateway that does not exist.
func (g *generator) routedPods(node *site, count, subnet int) {
	for i := range count {
		pod := g.site(podName(node, i))
		veth := fmt.Sprintf("azv%d", i)
		a, b := g.wire(node, veth, pod, "eth0")
		node.Add("sysctl", "net/ipv4/conf/%s/proxy_arp 1", veth)
		node.Add("sysctl", "net/ipv4/neigh/%s/proxy_delay 0", veth)
		for _, six := range g.families() {
			address, gateway := addressIn(subnet, i+2, six), linkLocalGateway[six]
			segment := 1000 + len(g.Wires)
			g.addAddress(pod, "eth0", b, netip.PrefixFrom(address, address.BitLen()), segment)
			pod.Add("ip", "route add %s dev eth0 scope link", netip.PrefixFrom(gateway, gateway.BitLen()))
			pod.Add("ip", "route add default via %s dev eth0", gateway)
			node.Add("ip", "route add %s dev %s", netip.PrefixFrom(address, address.BitLen()), veth)
			if six || g.chance(0.5) {
				pod.Add("ip", "neighbour replace %s lladdr %s dev eth0 nud permanent", gateway, a)
			}
			if six || g.chance(0.3) {
				node.Add("ip", "neighbour replace %s lladdr %s dev %s nud permanent", address, b, veth)
			}
		}
	}
}
