package walk

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// bridged is what br_netfilter keeps of a frame that it took through the IP hooks (kernel: struct nf_bridge_info).
type bridged struct {
	bridge      string
	in          string // port
	destination netip.Addr
	toHost      bool // the frame was for the bridge's own address when it came in
	// firstCopy is the port by which the first copy of a flooded frame leaves; "" where there is one only.
	firstCopy string
}

// bridgeIn is a frame that came in by a port of a bridge (br_handle_frame).
func (r *run) bridgeIn(port *fib.Link) stage {
	if !forwarding(port) {
		return r.finish(Dropped, fmt.Sprintf("port %s of %s is not forwarding: its state is %s", port.Name, port.Master, port.Port.State))
	}
	r.learn(port)
	r.p.In, r.p.BridgeIn = port.Name, port.Name
	if !r.hook(netfilter.Bridge, netfilter.Prerouting) {
		return nil
	}
	r.p.In = port.Name
	return r.bridgeOn(port.Master)
}

func forwarding(port *fib.Link) bool {
	return port.Port == nil || port.Port.State == "" || port.Port.State == "forwarding"
}

// learn notes behind which port the sender is.
func (r *run) learn(port *fib.Link) {
	r.m.learnStation(port.Master, r.p.EtherSource, port)
}

// learnStation notes that a station is behind a port, unless the port does not learn (br_fdb_update).
func (m *machine) learnStation(bridge string, mac packet.MAC, port *fib.Link) {
	if port.Port != nil && !port.Port.Learning || mac.IsMulticast() || mac.IsZero() {
		return
	}
	if e := m.FIB.FDBEntry(bridge, mac, 0); e != nil && (e.Local || e.Static) {
		return
	}
	if m.stations == nil {
		m.stations = map[station]string{}
	}
	m.stations[station{bridge, mac}] = port.Name
}

// stationPort finds the port behind which a station is: the bridge's own name for its own addresses, "" where nobody knows.
func (m *machine) stationPort(bridge string, mac packet.MAC) (string, *fib.FDBEntry) {
	if l := m.FIB.Link(bridge); l != nil && l.MAC == mac {
		return bridge, m.FIB.FDBEntry(bridge, mac, 0)
	}
	e := m.FIB.FDBEntry(bridge, mac, 0)
	if e != nil && e.Local {
		return bridge, e
	}
	if port, ok := m.stations[station{bridge, mac}]; ok {
		return port, nil
	}
	if e != nil {
		return e.Port, e
	}
	for _, p := range m.FIB.Ports(bridge) {
		if p.MAC == mac {
			return bridge, nil
		}
	}
	return "", nil
}

// bridgeOn decides which port a frame goes out of (br_handle_frame_finish).
func (r *run) bridgeOn(bridge string) stage {
	port, entry := r.m.stationPort(bridge, r.p.EtherDestination)
	step := BridgeStep{Bridge: bridge, Entry: entry, Ports: []string{port}}
	switch port {
	case bridge:
		r.step(Step{Stage: Bridged, Bridge: &step, Why: "to the host itself"})
		return r.passUp(bridge)
	case "":
		return r.flood(bridge, true)
	}
	r.step(Step{Stage: Bridged, Bridge: &step})
	c := r.copyUp(bridge)
	next := r.bridgeTo(bridge, port, true)
	if c != nil {
		return r.walkCopy(c, next)
	}
	return next
}

// bridges tells whether a bridge's ports and its table of stations take a frame for a station from one port out of another: "" stands for
// the machine itself (should_deliver, br_flood).
func (m *machine) bridges(bridge string, to packet.MAC, in, out string) bool {
	if out == "" {
		return true
	}
	if m.isolated(in) && m.isolated(out) {
		return false
	}
	port := m.FIB.Link(out).Port
	if port == nil {
		port = &fib.Port{Flood: true, BroadcastFlood: true, MulticastFlood: true}
	}
	switch {
	case to == packet.Broadcast:
		return port.BroadcastFlood
	case to.IsMulticast():
		return port.MulticastFlood
	}
	if known, _ := m.stationPort(bridge, to); known != "" {
		return known == out
	}
	return port.Flood
}

// flood sends a frame for a station that the bridge has not seen yet out of every port. The copies that reach other stations are dropped
// there; the walk follows the one that reaches the right one.
func (r *run) flood(bridge string, forwarded bool) stage {
	var ports []string
	to := ""
	for _, p := range r.m.FIB.Ports(bridge) {
		if forwarded && p.Name == r.p.BridgeIn && (p.Port == nil || !p.Port.Hairpin) || !forwarding(p) || p.Port != nil && !p.Port.Flood {
			continue
		}
		ports = append(ports, p.Name)
		if !r.p.EtherDestination.IsZero() && r.reaches(r.m, p.Name, r.p.EtherDestination, 4) {
			to = p.Name
		}
	}
	station := r.p.EtherDestination.String()
	if r.p.EtherDestination.IsZero() {
		station = "a station that is not known"
	}
	r.step(Step{Stage: Bridged, Bridge: &BridgeStep{Bridge: bridge, Ports: ports},
		Why: station + " has not been seen: the frame goes out of every port"})
	if r.via.bridge != nil && len(ports) > 1 {
		r.via.bridge.firstCopy = r.newest(ports)
	}
	if to == "" {
		to = r.wayOut(bridge, ports)
	}
	if to == "" && len(ports) == 1 && !r.p.EtherDestination.IsZero() {
		to = ports[0] // there it will turn out that it is for nobody
	}
	if to == "" {
		return r.finish(Dropped, fmt.Sprintf("no station with the address %s is known behind any port of %s", r.p.EtherDestination, bridge))
	}
	return r.bridgeTo(bridge, to, forwarded)
}

// newest is the port that a bridge's list begins with: the one that joined last (br_add_if), which is taken to be the last one made.
func (r *run) newest(ports []string) string {
	return slices.MaxFunc(ports, func(a, b string) int { return cmp.Compare(r.m.FIB.Link(a).Index, r.m.FIB.Link(b).Index) })
}

// wayOut is the port by which a frame for a station that nobody has seen leaves the snapshot; "" where none leads out. The machine's own
// card comes before the halves of pairs, behind which there is one station as a rule.
func (r *run) wayOut(bridge string, ports []string) string {
	var out []netfilter.Option
	for _, name := range ports {
		l := r.m.FIB.Link(name)
		if !r.leadsOut(r.m, l, 4) {
			continue
		}
		if l.Kind == "" {
			out = []netfilter.Option{{Label: name}}
			break
		}
		out = append(out, netfilter.Option{Label: name})
	}
	if len(out) == 0 {
		return ""
	}
	return out[r.choose(netfilter.Unknown, portOf{bridge, r.p.Destination}, out)].Label
}

// leadsOut tells whether frames that leave by a link can leave the snapshot: at its other end, or behind a bridge there.
func (r *run) leadsOut(m *machine, l *fib.Link, depth int) bool {
	peer, ok := m.peer(l.Name)
	if !ok || depth == 0 {
		return m.leadsOut(l)
	}
	h, err := r.host(peer.Host)
	if err != nil {
		return false
	}
	end := h.FIB.Link(peer.PeerLink)
	if end == nil || end.Master == "" {
		return false
	}
	return slices.ContainsFunc(h.FIB.Ports(end.Master), func(p *fib.Link) bool {
		return p.Name != end.Name && r.leadsOut(r.machine(h), p, depth-1)
	})
}

// reaches tells whether a station is behind a link: at its other end, or behind a bridge there.
func (r *run) reaches(m *machine, link string, mac packet.MAC, depth int) bool {
	peer, ok := m.peer(link)
	if !ok || depth == 0 {
		return false
	}
	h, err := r.host(peer.Host)
	if err != nil {
		return false
	}
	l := h.FIB.Link(peer.PeerLink)
	if l == nil {
		return false
	}
	if l.Master == "" {
		return l.MAC == mac
	}
	far := r.machine(h)
	if port, _ := far.stationPort(l.Master, mac); port != "" {
		return port != l.Name
	}
	for _, p := range h.FIB.Ports(l.Master) {
		if p.Name != l.Name && r.reaches(far, p.Name, mac, depth-1) {
			return true
		}
	}
	return false
}

// passUp gives a frame to the host's own IP (br_pass_frame_up).
func (r *run) passUp(bridge string) stage {
	r.p.Out = ""
	if !r.hook(netfilter.Bridge, netfilter.Input) {
		return nil
	}
	r.p.In = bridge
	if !r.deviceHook(bridge, netfilter.Ingress) {
		return nil
	}
	if r.via.bridge == nil {
		r.p.BridgeIn = "" // only br_netfilter keeps the port for the rules of IP
	}
	return (*run).receiveIP
}

// bridgeTo sends a frame out of a port. Forwarded frames came in by another port, others are the host's own (__br_forward).
func (r *run) bridgeTo(bridge, port string, forwarded bool) stage {
	l := r.m.FIB.Link(port)
	switch {
	case l == nil:
		return r.finish(Undecided, "port "+port+" is not known")
	case !forwarding(l):
		return r.finish(Dropped, fmt.Sprintf("port %s of %s is not forwarding: its state is %s", port, bridge, l.Port.State))
	case forwarded && port == r.p.BridgeIn && l.Port != nil && !l.Port.Hairpin:
		return r.finish(Dropped, fmt.Sprintf("the frame would leave by port %s, where it came in: hairpin is off", port))
	case forwarded && l.Port != nil && l.Port.Isolated && r.m.isolated(r.p.BridgeIn):
		return r.finish(Dropped, fmt.Sprintf("ports %s and %s are isolated from each other", r.p.BridgeIn, port))
	}
	hook := netfilter.Output
	r.p.In, r.p.Out = "", port
	if forwarded {
		hook, r.p.In = netfilter.Forward, r.p.BridgeIn
	}
	if !r.hook(netfilter.Bridge, hook) {
		return nil
	}
	r.p.In, r.p.Out = "", port
	if !forwarded {
		r.via.bridge = nil // a packet that was routed here has seen postrouting
	}
	if !r.hook(netfilter.Bridge, netfilter.Postrouting) {
		return nil
	}
	r.p.Out = port
	return (*run).transmit
}

func (m *machine) isolated(port string) bool {
	l := m.FIB.Link(port)
	return l != nil && l.Port != nil && l.Port.Isolated
}

// callsIP tells whether a bridge's IP packets go through the IP hooks (bridge-nf-call-iptables, -ip6tables; net.bridge.… per namespace,
// or the bridge's own switch).
func (m *machine) callsIP(bridge string, ipv6 bool) bool {
	key := "net.bridge.bridge-nf-call-iptables"
	if ipv6 {
		key = "net.bridge.bridge-nf-call-ip6tables"
	}
	if !m.knows(snapshot.Sysctls) {
		m.assume("its sysctls are not known: " + key + " is taken to be 1")
		return true
	}
	if m.sysctl(false, key) {
		return true
	}
	l := m.FIB.Link(bridge)
	if l == nil || l.Bridge == nil {
		return false
	}
	return ipv6 && l.Bridge.CallIP6Tables || !ipv6 && l.Bridge.CallIPTables
}

// bridgeNetfilterPrerouting takes a bridged IP packet through IP's prerouting (br_nf_pre_routing). One whose destination was translated
// is routed at once: to a station on the same bridge it stays bridged, to anywhere else it goes up to the host.
func (r *run) bridgeNetfilterPrerouting() bool {
	if r.p.EtherType == packet.EtherARP {
		return true
	}
	port := r.p.BridgeIn
	bridge := r.m.FIB.Link(port).Master
	if !r.m.callsIP(bridge, r.p.IsIPv6()) {
		return true
	}
	b := &bridged{bridge: bridge, in: port, destination: r.p.Destination, toHost: r.p.EtherDestination == r.m.FIB.Link(bridge).MAC}
	r.p.In, r.via.bridge = bridge, b
	if !r.hook(family(&r.p), netfilter.Prerouting) {
		return false
	}
	if r.p.Destination != b.destination && !r.bridgedDNAT(b) {
		return false
	}
	r.p.In = port
	return true
}

// bridgedDNAT routes a bridged packet whose destination was translated (br_nf_pre_routing_finish).
func (r *run) bridgedDNAT(b *bridged) bool {
	if !r.m.knows(snapshot.Routes) {
		r.routeUnknown()
		return true
	}
	if why := r.martian(); why != "" {
		r.finish(Dropped, why)
		return false
	}
	d := r.lookUp(b.bridge)
	r.via.route = d
	// IPv6 looks whether the host forwards only when it does (ip6_forward), IPv4 when it looks for the way.
	onward := d.answer.Type == "unicast" && (r.p.IsIPv6() || r.m.forwards(b.bridge, false))
	if d.answer.Unknown != "" {
		r.step(Step{Stage: Routed, Route: &d.answer})
		r.finish(Undecided, "the route depends on what is not understood: "+d.answer.Unknown)
		return false
	}
	if r.p.IsIPv6() && !d.answer.Forwards() {
		r.step(Step{Stage: Routed, Route: &d.answer})
		r.finish(Dropped, "no route leads to its new destination: the bridge drops it, and tells nobody (br_nf_pre_routing_finish_ipv6)")
		return false
	}
	if onward || d.answer.Type == "local" {
		if why := r.validateSource(d); why != "" {
			r.finish(Dropped, why)
			return false
		}
	}
	// Without a route, or without forwarding, the host drops IPv4, or tells the sender (ip_route_input_slow: no_route; ip_error).
	if !onward || d.link != b.bridge {
		before := r.p
		r.p.EtherDestination = r.m.FIB.Link(b.bridge).MAC
		r.step(Step{Stage: Bridged, Bridge: &BridgeStep{Bridge: b.bridge, Ports: []string{b.bridge}}, Changes: packet.Changes(&before, &r.p),
			Why: "its new destination is not on this bridge: up to the host's routing"})
		return true
	}
	r.step(Step{Stage: Routed, Route: &d.answer, Why: "its new destination is on the same bridge: it stays bridged, and keeps its TTL"})
	return r.address(b.bridge, d.nextHop(r.p.Destination))
}

// bridgeNetfilterForward takes a bridged IP packet through IP's forward hook (br_nf_forward_ip).
func (r *run) bridgeNetfilterForward() bool {
	b := r.via.bridge
	if b == nil {
		return true
	}
	port := r.p.Out
	r.p.In, r.p.Out, r.p.BridgeOut = b.bridge, b.bridge, port
	ok := r.hook(family(&r.p), netfilter.Forward)
	r.p.In, r.p.Out = b.in, port
	return ok
}

// bridgeNetfilterPostrouting takes a bridged IP packet through IP's postrouting (br_nf_post_routing).
func (r *run) bridgeNetfilterPostrouting() bool {
	b := r.via.bridge
	if b == nil || r.p.BridgeOut == "" {
		return true
	}
	port := r.p.Out
	r.p.In, r.p.Out = "", b.bridge
	ok := r.hook(family(&r.p), netfilter.Postrouting)
	r.p.Out = port
	return ok
}
