package verify

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/packet"
)

// Generate makes the world of a seed: always the same.
func Generate(seed uint64) *World {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0x7061636b65747761)), World: &World{}, guarded: map[string]bool{}}
	g.six = g.chance(0.35)
	shapes[g.IntN(len(shapes))](g)
	g.services()
	for _, s := range g.sites {
		g.listeners(s)
	}
	for _, s := range g.sites {
		g.mutate(s)
		g.filter(s)
	}
	g.neighbours()
	for range 3 + g.IntN(5) {
		g.packet()
	}
	if g.chance(0.1) {
		g.cut()
	}
	return g.World
}

// cut takes one end of a wire down, so that the other one loses its carrier. A frame without a socket could not be sent there.
func (g *generator) cut() {
	ends := strings.Fields(pick(g, g.Wires))
	if slices.ContainsFunc(g.Packets, func(line string) bool { return strings.Contains(line, " in ") }) {
		return
	}
	if g.chance(0.5) {
		ends = []string{ends[2], ends[3], ends[0], ends[1]}
	}
	g.Host(ends[0]).Add("down", "%s", ends[1])
	for _, place := range some(g, 0.3, []string{"ipv4/conf/all", "ipv4/conf/" + ends[3], "ipv6/conf/" + ends[3]}) {
		g.Host(ends[2]).Add("sysctl", "net/%s/ignore_routes_with_linkdown 1", place)
	}
}

// generator is a world in the making, and what its rules and packets are drawn from.
type generator struct {
	*rand.Rand
	*World
	six bool // the world has IPv6, too

	sites    []*site
	nets     int // subnets that were given out
	stations []station
	vips     []vip
	open     []endpoint
	guarded  map[string]bool // ends of wires, "HOST LINK", at whose other end a chain sees what goes out: frames would meet it
}

// site is a host with what is known of it.
type site struct {
	*Host
	forwards  bool
	links     []string // its ends of wires
	bridges   []string
	legacy    bool // its rules of iptables are in the kernel's own tables
	histories int  // tests that remember packets under a name of their own
	addresses []netip.Addr
}

// station is an address on a link: hosts of one segment can be each other's neighbours.
type station struct {
	site    *site
	link    string
	mac     string
	address netip.Addr
	segment int
}

// endpoint is where a socket listens.
type endpoint struct {
	site     *site
	protocol string
	address  netip.Addr
	port     int
}

// vip is an address that the rules of a site may translate.
type vip struct {
	address netip.Addr
	port    int
	backs   []endpoint
}

func (g *generator) chance(p float64) bool { return g.Float64() < p }

func pick[T any](g *generator, list []T) T { return list[g.IntN(len(list))] }

// some picks each with probability p.
func some[T any](g *generator, p float64, list []T) []T {
	var out []T
	for _, v := range list {
		if g.chance(p) {
			out = append(out, v)
		}
	}
	return out
}

func (g *generator) site(name string) *site {
	s := &site{Host: g.Host(name)}
	g.sites = append(g.sites, s)
	return s
}

// router adds a site that forwards.
func (g *generator) router(name string) *site {
	s := g.site(name)
	s.forwards = true
	s.Add("sysctl", "net/ipv4/ip_forward 1")
	if g.six {
		s.Add("sysctl", "net/ipv6/conf/all/forwarding 1")
	}
	return s
}

// wire joins two sites and returns the MAC addresses of its ends, as build gives them.
func (g *generator) wire(a *site, linkA string, b *site, linkB string) (string, string) {
	g.Wires = append(g.Wires, fmt.Sprintf("%s %s %s %s", a.Name, linkA, b.Name, linkB))
	a.links, b.links = append(a.links, linkA), append(b.links, linkB)
	n := len(g.Wires)
	return fmt.Sprintf("02:00:00:00:%02x:01", n), fmt.Sprintf("02:00:00:00:%02x:02", n)
}

// far returns the other end of a wire, "HOST LINK".
func (g *generator) far(s *site, link string) string {
	for _, w := range g.Wires {
		switch f := strings.Fields(w); s.Name + " " + link {
		case f[0] + " " + f[1]:
			return f[2] + " " + f[3]
		case f[2] + " " + f[3]:
			return f[0] + " " + f[1]
		}
	}
	return ""
}

// subnet gives out a number: 10.N.0.0/24 and fd00:N::/64 are its addresses.
func (g *generator) subnet() int {
	g.nets++
	return g.nets
}

func addressIn(subnet, n int, six bool) netip.Addr {
	if six {
		return netip.MustParseAddr(fmt.Sprintf("fd00:%x::%x", subnet, n))
	}
	return netip.AddrFrom4([4]byte{10, byte(subnet), 0, byte(n)})
}

func prefixOf(subnet int, six bool) netip.Prefix {
	bits := 24
	if six {
		bits = 64
	}
	return netip.PrefixFrom(addressIn(subnet, 0, six), bits).Masked()
}

func (g *generator) families() []bool {
	if g.six {
		return []bool{false, true}
	}
	return []bool{false}
}

// address gives a link an address of a subnet, in every family of the world.
func (g *generator) address(s *site, link, mac string, subnet, n int) {
	for _, six := range g.families() {
		a := addressIn(subnet, n, six)
		g.addAddress(s, link, mac, netip.PrefixFrom(a, prefixOf(subnet, six).Bits()), subnet)
	}
}

func (g *generator) addAddress(s *site, link, mac string, p netip.Prefix, segment int) {
	nodad := ""
	if p.Addr().Is6() {
		nodad = " nodad"
	}
	s.Add("ip", "address add %s dev %s%s", p, link, nodad)
	s.addresses = append(s.addresses, p.Addr())
	g.stations = append(g.stations, station{s, link, mac, p.Addr(), segment})
}

// route adds a route to a subnet, or a default route (subnet 0), by the address n of the subnet via.
func (g *generator) route(s *site, subnet, via, n int) {
	for _, six := range g.families() {
		to := "default"
		if subnet != 0 {
			to = prefixOf(subnet, six).String()
		}
		s.Add("ip", "route add %s via %s", to, addressIn(via, n, six))
	}
}

// bridge makes a bridge.
func (g *generator) bridge(s *site, name string) string {
	s.bridges = append(s.bridges, name)
	mac := fmt.Sprintf("02:00:00:01:%02x:%02x", len(g.sites), len(s.bridges))
	s.Add("ip", "link add %s address %s type bridge mcast_snooping 0", name, mac)
	s.Add("ip", "link set %s up", name)
	return mac
}

// enslave makes a link a port of a bridge.
func (g *generator) enslave(s *site, link, bridge string, hairpin bool) {
	s.Add("ip", "link set %s master %s", link, bridge)
	if hairpin {
		s.Add("ip", "link set %s type bridge_slave hairpin on", link)
	}
}

// neighbours makes the link-layer addresses of a segment's stations known to each other: of IPv6 always, since neighbour discovery would
// meet the rules; of IPv4 sometimes.
func (g *generator) neighbours() {
	for _, a := range g.stations {
		for _, b := range g.stations {
			if a.segment != b.segment || a.site == b.site || a.address.Is4() != b.address.Is4() {
				continue
			}
			if a.address.Is6() || g.chance(0.15) {
				a.site.Add("ip", "neighbour replace %s lladdr %s dev %s nud permanent", b.address, b.mac, a.link)
			}
		}
	}
}

// allAddresses returns the addresses of every site, of one family.
func (g *generator) allAddresses(six bool) []netip.Addr {
	var all []netip.Addr
	for _, s := range g.sites {
		for _, a := range s.addresses {
			if a.Is6() == six {
				all = append(all, a)
			}
		}
	}
	return all
}

// listeners opens sockets on a site's addresses.
func (g *generator) listeners(s *site) {
	for _, a := range s.addresses {
		for _, protocol := range []string{"tcp", "udp"} {
			if !g.chance(0.7) {
				continue
			}
			g.listen(s, protocol, a, pick(g, ports))
		}
	}
}

var ports = []int{53, 80, 443, 5000, 8080}

func (g *generator) listen(s *site, protocol string, a netip.Addr, port int) {
	e := endpoint{s, protocol, a, port}
	if slices.Contains(g.open, e) {
		return
	}
	g.open = append(g.open, e)
	s.Add("listen", "%s %s", protocol, netip.AddrPortFrom(a, uint16(port)))
}

// services invents virtual addresses and what is behind them.
func (g *generator) services() {
	var pods []*site
	for _, s := range g.sites {
		if !s.forwards && len(s.addresses) > 0 {
			pods = append(pods, s)
		}
	}
	if len(pods) == 0 {
		return
	}
	for n := range 1 + g.IntN(3) {
		for _, six := range g.families() {
			v := vip{address: addressIn(200, n+1, six), port: pick(g, ports)}
			for range 1 + g.IntN(3) {
				s := pick(g, pods)
				for _, a := range s.addresses {
					if a.Is6() == six {
						e := endpoint{s, "tcp", a, pick(g, ports)}
						if g.chance(0.3) {
							e.protocol = "udp"
						}
						g.listen(s, e.protocol, a, e.port)
						v.backs = append(v.backs, e)
						break
					}
				}
			}
			g.vips = append(g.vips, v)
		}
	}
}

// packet adds one to the world: most are for something that is there.
func (g *generator) packet() {
	if len(g.Packets) > 0 && g.chance(0.25) {
		again := pick(g, g.Packets)
		if !strings.Contains(again, " tcp ") || !strings.Contains(again, " in ") { // what a listener makes of a second SYN, its socket decides
			g.Packets = append(g.Packets, again) // perhaps of the same flow
			return
		}
	}
	six := g.six && g.chance(0.35)
	if g.chance(0.2) && g.frame(six) {
		return
	}
	sender := pick(g, g.sites)
	if g.chance(0.5) {
		sender = g.sites[0]
	}
	protocol, to, port := g.target(six)
	line := fmt.Sprintf("%s %s ", sender.Name, protocol)
	if protocol == "icmp" {
		line += to.String()
	} else {
		line += netip.AddrPortFrom(to, uint16(port)).String()
	}
	if own := ofFamily(sender.addresses, six); len(own) > 0 && g.chance(0.3) {
		line += " from " + pick(g, own).String()
	}
	if protocol != "tcp" && g.chance(0.7) {
		line += fmt.Sprintf(" port %d", 20000+g.IntN(4))
	}
	if g.chance(0.12) {
		line += fmt.Sprintf(" mark %#x", pick(g, marks))
	}
	if g.chance(0.1) {
		line += fmt.Sprintf(" ttl %d", 1+g.IntN(4))
	}
	if g.chance(0.1) {
		line += fmt.Sprintf(" tos %d", pick(g, []int{4, 8, 16, 40, 184}))
	}
	g.Packets = append(g.Packets, line)
}

// frame adds a packet that comes to a site out of a wire: from an address of the world or an unknown one, as no socket could send it.
func (g *generator) frame(six bool) bool {
	s := pick(g, g.sites)
	links := slices.DeleteFunc(slices.Clone(s.links), func(link string) bool { return g.guarded[s.Name+" "+link] })
	if len(links) == 0 {
		return false
	}
	protocol, to, port := g.target(six)
	if g.chance(0.35) {
		protocol = "sctp"
	}
	sources := append(g.allAddresses(six), addressIn(1+g.IntN(g.nets), 66, six), addressIn(98, 1, six))
	source, line := pick(g, sources), fmt.Sprintf("%s %s ", s.Name, protocol)
	if protocol == "icmp" {
		line += fmt.Sprintf("%s from %s port %d", to, source, 20000+g.IntN(4))
	} else {
		from := 20000 + g.IntN(4)
		if protocol == "tcp" {
			from = 21000 + len(g.Packets)
		}
		line += fmt.Sprintf("%s from %s", netip.AddrPortFrom(to, uint16(port)), netip.AddrPortFrom(source, uint16(from)))
	}
	if g.chance(0.2) {
		line += fmt.Sprintf(" ttl %d", 1+g.IntN(4))
	}
	line += " in " + pick(g, links)
	switch {
	case protocol == "tcp" && g.chance(0.3): // a segment of an unknown connection
		line += fmt.Sprintf(" flags %d", pick(g, []packet.TCPFlags{packet.SYN | packet.ACK, packet.RST, packet.RST | packet.ACK}))
	case !six && g.chance(0.2):
		line += " more 1"
	}
	g.Packets = append(g.Packets, line)
	return true
}

var marks = []int{1, 2, 0x10, 0x4000, 0x8000}

func ofFamily(list []netip.Addr, six bool) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		if a.Is6() == six {
			out = append(out, a)
		}
	}
	return out
}

func (g *generator) target(six bool) (protocol string, to netip.Addr, port int) {
	protocol = pick(g, []string{"tcp", "tcp", "tcp", "udp", "udp", "icmp"})
	port = pick(g, ports)
	all := g.allAddresses(six)
	var open []endpoint
	for _, e := range g.open {
		if e.address.Is6() == six {
			open = append(open, e)
		}
	}
	switch n := g.IntN(20); {
	case n < 8 && len(open) > 0:
		e := pick(g, open)
		return e.protocol, e.address, e.port
	case n < 14 && len(g.vips) > 0:
		v := pick(g, g.vips)
		if v.address.Is6() == six {
			return protocol, v.address, v.port
		}
	case n == 19:
		return protocol, addressIn(1+g.IntN(g.nets), 77, six), port // unused
	case n == 18:
		return protocol, addressIn(99, 1, six), port // no subnet's
	}
	return protocol, pick(g, all), port
}
