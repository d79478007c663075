package verify

import (
	"fmt"
)

// overlay adds two nodes at one router, whose pods reach each other through VXLAN, as flannel's do. Each node has a link of kind vxlan, the
// other's address on it, and the other's station in its tables of neighbours and of forwarding. The router knows the nodes only.
func (g *generator) overlay() {
	six := g.six
	client := g.site("vm/client")
	r := g.router("node/fabric")
	net := g.subnet()
	a, b := g.wire(client, "eth0", r, "c")
	g.address(client, "eth0", a, net, 2)
	g.address(r, "c", b, net, 1)
	g.route(client, 0, net, 1)
	port, vni := pick(g, []int{4789, 8472}), 1+g.IntN(5)
	var ends []tunnelEnd
	for i := range 2 {
		ends = append(ends, g.tunnelNode(r, fmt.Sprintf("n%d", i+1), 1+g.IntN(2), vni, port))
	}
	for i, e := range ends {
		g.tunnel(e, ends[1-i])
	}
	g.six = six
}

// tunnelEnd is a node with a tunnel, and its pods' subnet behind it.
type tunnelEnd struct {
	*site
	uplink   int // its subnet
	subnet   int
	mac      string
	settings string
}

// tunnelAddress is a node's address on its vxlan, the first of its pods' subnet, as flannel has it.
const tunnelAddress = 0

func (g *generator) tunnelNode(r *site, name string, pods, vni, port int) tunnelEnd {
	node := g.router("node/" + name)
	e := tunnelEnd{site: node, uplink: g.subnet()}
	b, a := g.wire(r, name, node, "eth0")
	g.address(r, name, b, e.uplink, 1)
	g.address(node, "eth0", a, e.uplink, 10)
	g.route(node, 0, e.uplink, 1)
	e.subnet = g.subnet()
	g.bridgedPods(node, pods, e.subnet, false)
	e.mac = fmt.Sprintf("02:00:00:02:00:%02x", len(g.sites))
	e.settings = fmt.Sprintf("id %d local %s dstport %d %s", vni, addressIn(e.uplink, 10, false), port, pick(g, []string{"learning", "nolearning"}))
	if g.chance(0.7) {
		e.settings += " dev eth0"
	}
	if g.chance(0.3) {
		e.settings += pick(g, []string{" ttl 9", " ttl inherit", " tos inherit", " srcport 30000 30100", " df set"})
	}
	return e
}

// tunnel leads from a node to the pods of another.
func (g *generator) tunnel(e, far tunnelEnd) {
	e.Add("ip", "link add vx0 address %s mtu 1450 type vxlan %s", e.mac, e.settings)
	e.Add("ip", "link set vx0 up")
	remote := addressIn(far.uplink, 10, false)
	if g.chance(0.8) {
		e.Add("fdb", "fdb append %s dev vx0 dst %s", far.mac, remote)
	} else {
		e.Add("fdb", "fdb append 00:00:00:00:00:00 dev vx0 dst %s", remote)
	}
	for _, six := range g.families() {
		own, gateway := addressIn(e.subnet, tunnelAddress, six), addressIn(far.subnet, tunnelAddress, six)
		nodad := ""
		if six {
			nodad = " nodad"
		}
		e.Add("ip", "address add %s/%d dev vx0%s", own, own.BitLen(), nodad)
		e.Add("ip", "neighbour replace %s lladdr %s dev vx0 nud permanent", gateway, far.mac)
		e.Add("ip", "route add %s via %s dev vx0 onlink", prefixOf(far.subnet, six), gateway)
		e.addresses = append(e.addresses, own)
	}
}
