package armview

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/model/conntrack"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// Host is the name of the host that Extend adds: Azure's network.
const Host = "fabric"

const (
	uplink    = "internet" // the fabric's link to the internet
	tableBase = 1000       // a place's routing table is this and its mark
)

var anywhere = netip.MustParsePrefix("0.0.0.0/0")

// fabric is the host as it is compiled.
type fabric struct {
	*Resources
	table
	objects   snapshot.Objects
	host      *snapshot.Host
	nics      []*nic
	owners    map[string]*config   // by the ids of IP configurations
	members   map[string][]*config // of back-end pools, by the pools' ids
	others    map[string][]netip.Addr
	lost      map[string]bool   // pools of which a member was not read
	empty     map[string]bool   // pools without members
	names     map[string]string // short names of ids
	taken     map[string]string // and the ids of short names
	marks     map[string]int    // of links
	notes     []string
	overlay   []netip.Prefix                  // of pods that have no address of the virtual network
	pools     map[string]int                  // numbers of ways out
	balancers map[string]*vnet.LoadBalancer   // as vnet has them, with ids for names, by their ids
	balancing map[string][]vnet.BalancingRule // of load balancers, by their ids
	frontends map[string]*Frontend            // of load balancers, by their ids
	nodeAt    map[netip.Addr]*snapshot.Node
	podsOn    map[string][]netip.Addr // by the nodes' names
	strays    map[string]netfilter.Statement
	questions map[string]netfilter.Statement // by their texts in lower case
	publicOf  map[*config]string             // ids of public addresses that name the configuration
	// unreadLinks are those of nodes of which no interface was read, by their names.
	unreadLinks map[string]string
}

// nic is an interface with its place in the fabric.
type nic struct {
	*Interface
	link    string
	title   string // its name, also where that is too long for a link
	mark    int
	machine string // the host's name, "" where it is not known
	other   bool   // it has a node's address, and is another machine's
	outside string // the machine's link, once it was read
	configs []*config
	areas   []area
}

// config is an IP configuration with an IPv4 address.
type config struct {
	*IPConfiguration
	nic     *nic
	address netip.Addr
	pools   []string
	byIP    []string // those of the pools that have it as an address only
}

func compile(r *Resources, objects snapshot.Objects) *fabric {
	f := &fabric{
		Resources: r, table: newTable(), objects: objects, owners: map[string]*config{}, members: map[string][]*config{},
		others: map[string][]netip.Addr{}, names: map[string]string{}, taken: map[string]string{uplink: uplink, "lo": "lo", "pods": "pods"},
		marks: map[string]int{}, pools: map[string]int{},
		balancers: map[string]*vnet.LoadBalancer{}, frontends: map[string]*Frontend{}, balancing: map[string][]vnet.BalancingRule{}, unreadLinks: map[string]string{},
		nodeAt: map[netip.Addr]*snapshot.Node{}, podsOn: map[string][]netip.Addr{}, publicOf: map[*config]string{},
		lost: map[string]bool{}, empty: map[string]bool{}, strays: map[string]netfilter.Statement{}, questions: map[string]netfilter.Statement{},
	}
	f.host = &snapshot.Host{
		Name: Host, FIB: &fib.State{Rules: policy()}, Rules: &netfilter.Ruleset{}, Flows: conntrack.NewTable(nil),
		Missing:    map[snapshot.Part]string{snapshot.Listeners: "Azure's host does not show them"},
		Forwarders: map[string]snapshot.Forwarder{}, Sysctls: map[string]string{
			"net.ipv4.ip_forward": "1", "net.netfilter.nf_conntrack_tcp_loose": "0", "net.netfilter.nf_conntrack_tcp_be_liberal": "1",
			"net.ipv4.conf.all.rp_filter": "0", "net.ipv4.fwmark_reflect": "1",
		},
	}
	f.addLink("lo", "loopback", packet.MAC{})
	for _, p := range vnet.Platform {
		f.host.FIB.Addresses = append(f.host.FIB.Addresses, fib.Address{Link: "lo", Prefix: p, Scope: "host"})
		f.route(fib.TableLocal, p, "lo", "local")
	}
	f.addLink(uplink, "none", packet.MAC{})
	f.route(fib.TableMain, anywhere, uplink, "unicast")
	f.findObjects()
	f.place()
	f.rules()
	f.host.Rules.Tables = []*netfilter.Table{f.Table, hopTable(), ipv6Table()}
	f.host.FIB.Index()
	f.host.Rules.Index()
	return f
}

// policy returns the kernel's own rules.
func policy() []fib.Rule {
	rule := func(priority, table int) fib.Rule {
		return fib.Rule{Priority: priority, Action: "lookup", Table: table, SuppressPrefixLength: -1, SuppressGroup: -1}
	}
	return []fib.Rule{rule(0, fib.TableLocal), rule(32766, fib.TableMain), rule(32767, fib.TableDefault)}
}

// ipv6Table says that IPv6 is not modelled.
func ipv6Table() *netfilter.Table {
	t := newTable()
	t.Family = netfilter.IPv6
	c := t.base("raw", "filter", netfilter.Prerouting, netfilter.PriorityRaw, netfilter.Accept)
	add(c, "IPv6 in Azure is not modelled", unknown("IPv6 in Azure is not modelled"))
	return t.Table
}

func (f *fabric) addLink(name, typ string, mac packet.MAC) {
	f.host.FIB.Links = append(f.host.FIB.Links, fib.Link{
		Index: len(f.host.FIB.Links) + 1, Name: name, Type: typ, MAC: mac, MTU: 1500, Up: true, LowerUp: true,
	})
	for _, key := range []string{"forwarding", "proxy_arp"} {
		f.host.Sysctls[snapshot.SysctlKey("net", "ipv4", "conf", name, key)] = "1"
	}
	f.host.Sysctls[snapshot.SysctlKey("net", "ipv4", "conf", name, "rp_filter")] = "0"
}

func (f *fabric) route(table int, to netip.Prefix, link, typ string) {
	scope := "link"
	if typ == "local" {
		scope = "host"
	}
	f.host.FIB.Routes = append(f.host.FIB.Routes, fib.Route{Table: table, Type: typ, Destination: to, Link: link, Scope: scope})
}

// outlet makes a way out of the fabric by a link of this name, once: what is marked with the result goes there.
func (f *fabric) outlet(link, typ string, mac packet.MAC) int {
	if m := f.marks[link]; m != 0 {
		return m
	}
	m := len(f.marks) + 1
	f.marks[link] = m
	f.addLink(link, typ, mac)
	f.route(tableBase+m, anywhere, link, "unicast")
	f.host.FIB.Rules = append(f.host.FIB.Rules, fib.Rule{
		Priority: 1000, Mark: uint32(m), Mask: ^uint32(0), Action: "lookup", Table: tableBase + m, SuppressPrefixLength: -1, SuppressGroup: -1,
	})
	return m
}

// beyond returns an outlet to a firewall or a gateway that was not read: the walk leaves there, with the source that is seen there.
// The name is what the user reads, and with a space in it no interface's.
func (f *fabric) beyond(name string) int { return f.outlet(name, "none", packet.MAC{}) }

// shortName returns a name for an id. No other id has it.
func (f *fabric) shortName(id string) string {
	id = strings.ToLower(id)
	if n := f.names[id]; n != "" {
		return n
	}
	name := plain(last(id))
	if i := strings.Index(id, "/virtualmachines/"); i >= 0 { // instances of a scale set have interfaces of the same name
		instance, _, _ := strings.Cut(id[i+len("/virtualmachines/"):], "/")
		name += "-" + plain(instance)
	}
	base := name
	for i := 2; f.taken[name] != ""; i++ {
		name = fmt.Sprintf("%s-%d", base, i)
	}
	f.names[id], f.taken[name] = name, id
	return name
}

// linkName names a link that rules test for: the kernel compares 15 bytes (IFNAMSIZ).
func (f *fabric) linkName(id string) string {
	if name := f.shortName(id); len(name) <= 15 {
		return name
	}
	for i := len(f.marks) + 1; ; i++ { // an interface may be called nic3 itself
		if name := fmt.Sprintf("nic%d", i); f.taken[name] == "" {
			f.taken[name] = strings.ToLower(id)
			return name
		}
	}
}

// plain keeps the characters that Azure's names have.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r) {
			return r
		}
		return '_'
	}, s)
}

// title returns a resource's name as Azure has it, where it was read.
func title(r Resource) string {
	if r.Name != "" {
		return plain(r.Name)
	}
	return plain(last(r.ID))
}

// place gives interfaces, pools and front ends their places.
func (f *fabric) place() {
	for _, id := range sorted(f.Interfaces) {
		f.placeNIC(id, f.Interfaces[id])
	}
	for _, id := range sorted(f.PublicIPs) {
		if c := f.owners[f.PublicIPs[id].IPConfiguration.id()]; c != nil && f.publicOf[c] == "" {
			f.publicOf[c] = id
		}
	}
	for _, id := range sorted(f.LoadBalancers) {
		f.placePools(f.LoadBalancers[id])
		f.balancers[id] = f.readBalancer(f.LoadBalancers[id])
	}
	for _, id := range sorted(f.LoadBalancers) {
		f.balancing[id] = f.balancers[id].Balancing(f.backends)
	}
	for _, n := range f.nics {
		f.overlay = append(f.overlay, f.clusterOf(n).podRanges()...)
	}
	f.overlay = widest(f.overlay)
	f.noteClusters()
}

func (f *fabric) placeNIC(id string, i *Interface) {
	n := &nic{Interface: i, link: f.linkName(id)}
	for k := range i.IPConfigs {
		c := &i.IPConfigs[k]
		a, err := netip.ParseAddr(c.PrivateIPAddress)
		if err != nil || !a.Is4() {
			continue
		}
		x := &config{IPConfiguration: c, nic: n, address: a}
		n.configs = append(n.configs, x)
		key := strings.ToLower(c.ID)
		if c.ID == "" {
			key = id + "/ipconfigurations/" + strings.ToLower(c.Name)
		}
		f.owners[key] = x
		for _, p := range c.Pools {
			f.join(p.id(), x)
		}
	}
	if len(n.configs) == 0 {
		return
	}
	slices.SortStableFunc(n.configs, func(a, b *config) int { return order(b.Primary) - order(a.Primary) })
	n.mark, n.title = f.outlet(n.link, "ether", hostMAC), f.shortName(id)
	for _, c := range n.configs {
		f.route(fib.TableMain, netip.PrefixFrom(c.address, 32), n.link, "unicast")
	}
	f.neighbours(n, i.mac())
	f.identify(n)
	f.nics = append(f.nics, n)
	if n.EnableIPForwarding && n.machine == "" {
		var own []netip.Addr
		for _, c := range n.configs {
			own = append(own, c.address)
		}
		f.host.Forwarders[n.link] = appliance(own...)
	}
}

func order(b bool) int {
	if b {
		return 1
	}
	return 0
}

// hostMAC is what everything has as link-layer address, seen from a machine (vnet.HostMAC).
var hostMAC = packet.MAC{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc}

// neighbours: everything behind an interface is at its own link-layer address, and goes by its primary address.
func (f *fabric) neighbours(n *nic, mac packet.MAC) {
	primary := n.configs[0].address
	for i := range f.host.FIB.Routes {
		if r := &f.host.FIB.Routes[i]; r.Link == n.link && (r.Destination == anywhere || r.Destination.Addr() != primary) {
			r.Gateway, r.OnLink, r.Scope = primary, true, "global"
		}
	}
	f.host.FIB.Neighbours = append(f.host.FIB.Neighbours, fib.Neighbour{Link: n.link, Address: primary, MAC: mac, State: "PERMANENT"})
}

// findObjects notes where nodes and pods are.
func (f *fabric) findObjects() {
	for i := range f.objects.Nodes {
		for _, ip := range f.objects.Nodes[i].IPs {
			f.nodeAt[ip] = &f.objects.Nodes[i]
		}
	}
	for _, p := range f.objects.Pods {
		for _, ip := range p.IPs {
			if ip.Is4() && !p.HostNetwork {
				f.podsOn[p.Node] = append(f.podsOn[p.Node], ip)
			}
		}
	}
}

// join makes a configuration a member of a pool, once.
func (f *fabric) join(pool string, c *config) {
	if !slices.Contains(f.members[pool], c) {
		f.members[pool] = append(f.members[pool], c)
		c.pools = append(c.pools, pool)
	}
}

// placePools adds the members that only the load balancer names.
func (f *fabric) placePools(lb *LoadBalancer) {
	// Who saves one pool's members saves all pools'. Without any, they may not have been saved.
	isListed := slices.ContainsFunc(lb.Pools, func(p Pool) bool { return len(p.Members)+len(p.Addresses) > 0 })
	for _, p := range lb.Pools {
		pool := strings.ToLower(p.ID)
		f.empty[pool] = isListed && len(p.Members)+len(p.Addresses)+len(f.members[pool]) == 0
		for _, m := range p.Members {
			if c := f.owners[m.id()]; c != nil {
				f.join(pool, c)
			} else {
				f.lost[pool] = true
				f.notes = append(f.notes, fmt.Sprintf("Azure: member %s of pool %s was not read", plain(last(m.ID)), plain(p.Name)))
			}
		}
		for _, a := range p.Addresses {
			if c := f.byAddress(a, &p); c != nil {
				if a.IPConfig == nil && !slices.Contains(c.pools, pool) {
					c.byIP = append(c.byIP, pool)
				}
				f.join(pool, c)
			} else if ip, err := netip.ParseAddr(a.IPAddress); err == nil && ip.Is4() {
				f.others[pool] = append(f.others[pool], ip)
			}
		}
	}
}

// byAddress finds the interface of a pool's member that is named by its address in a virtual network; the first, where none is named.
func (f *fabric) byAddress(a PoolAddress, p *Pool) *config {
	if c := f.owners[a.IPConfig.id()]; c != nil {
		return c
	}
	network := cmp.Or(a.Network.id(), vnetOf(a.Subnet.id()), p.Network.id())
	for _, n := range f.nics {
		for _, c := range n.configs {
			if a.IPAddress != "" && c.address.String() == a.IPAddress && (network == "" || network == vnetOf(c.Subnet.id())) {
				return c
			}
		}
	}
	return nil
}

// publicAddresses returns those of a reference to a public address or to a prefix; none where it was not read.
func (f *fabric) publicAddresses(address, prefix *ref) []netip.Prefix {
	var all []netip.Prefix
	if p := f.PublicIPs[address.id()]; p != nil {
		all = append(all, parseAll(p.IPAddress)...)
	}
	if p := f.Prefixes[prefix.id()]; p != nil {
		all = append(all, parseAll(p.IPPrefix)...)
	}
	return all
}
