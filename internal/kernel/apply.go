package kernel

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Apply makes the namespace agree with the state, changing only what differs: sysctls, addresses, neighbours, routes, then rules,
// and what is no longer wanted last, so that a route that stays is never missing. Every link that the state names must be
// there. Applying twice changes nothing. It stops at the first error.
func (n *Namespace) Apply(s State) error {
	err := n.SetSysctls(s.Sysctls...)
	if err == nil {
		err = n.applyNetlink(s)
	}
	if err != nil {
		return fmt.Errorf("apply state to %s: %w", n.path, err)
	}
	return nil
}

func (n *Namespace) applyNetlink(s State) error {
	a, err := n.applier(s)
	if err != nil {
		return err
	}
	for _, step := range []func(State) error{a.addresses, a.neighbours, a.routes, a.rules} {
		if err := step(s); err != nil {
			return err
		}
	}
	return nil
}

// SetSysctls sets kernel settings of the namespace; one that has its value already is not written.
func (n *Namespace) SetSysctls(settings ...Sysctl) error {
	if len(settings) == 0 {
		return nil
	}
	// /proc/sys/net shows the settings of the namespace of the thread that looks.
	return n.Do(func() error {
		for _, s := range settings {
			path := "/proc/sys/" + s.Key
			now, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("sysctl: %w", err)
			}
			if strings.TrimSpace(string(now)) == s.Value {
				continue
			}
			if err := os.WriteFile(path, []byte(s.Value), 0); err != nil {
				return fmt.Errorf("sysctl %s=%s: %w", s.Key, s.Value, err)
			}
		}
		return nil
	})
}

// applier brings one namespace to a state by netlink.
type applier struct {
	h     *netlink.Handle
	index map[string]int
	name  map[int]string
	owned map[string]bool

	protocol int
}

func (n *Namespace) applier(s State) (*applier, error) {
	h, err := n.Handle()
	if err != nil {
		return nil, err
	}
	links, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	a := &applier{h: h, index: map[string]int{}, name: map[int]string{}, owned: map[string]bool{}, protocol: cmp.Or(s.Protocol, ownProtocol)}
	for _, l := range links {
		a.index[l.Attrs().Name], a.name[l.Attrs().Index] = l.Attrs().Index, l.Attrs().Name
	}
	for _, l := range s.Links {
		a.owned[l] = true
	}
	return a, nil
}

func (a *applier) link(name string) (netlink.Link, error) {
	i, ok := a.index[name]
	if !ok {
		return nil, fmt.Errorf("link %s: %w", name, unix.ENODEV)
	}
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, Index: i}}, nil
}

func (a *applier) addresses(s State) error {
	have, err := a.h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	stale := map[Address]netlink.Addr{}
	for _, h := range have {
		stale[Address{a.name[h.LinkIndex], toPrefix(h.IPNet), scopeName(h.Scope)}] = h
	}
	for _, w := range s.Addresses {
		if _, ok := stale[w]; ok {
			delete(stale, w)
			continue
		}
		l, err := a.link(w.Link)
		if err != nil {
			return fmt.Errorf("add address %s: %w", w.Prefix, err)
		}
		// The label is the link's own name: nothing else is asked for. Duplicate address detection would only delay.
		addr := &netlink.Addr{IPNet: toIPNet(w.Prefix), Scope: scopeOf(w.Scope), Flags: unix.IFA_F_NODAD}
		if err := a.h.AddrReplace(l, addr); err != nil {
			return fmt.Errorf("add address %s to %s: %w", w.Prefix, w.Link, err)
		}
	}
	for k, h := range stale {
		if !a.owned[k.Link] || k.Prefix.Addr().IsLoopback() || k.Prefix.Addr().IsLinkLocalUnicast() {
			continue
		}
		l, _ := a.link(k.Link)
		if err := a.h.AddrDel(l, &h); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("delete address %s from %s: %w", k.Prefix, k.Link, err)
		}
	}
	return nil
}

func (a *applier) neighbours(s State) error {
	if len(s.Links)+len(s.Neighbours) == 0 {
		return nil
	}
	stale := map[Neighbour]netlink.Neigh{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		have, err := a.h.NeighList(0, family)
		if err != nil {
			return fmt.Errorf("list neighbours: %w", err)
		}
		for _, h := range have {
			if h.State&netlink.NUD_PERMANENT != 0 {
				stale[Neighbour{a.name[h.LinkIndex], toAddr(h.IP), h.HardwareAddr.String()}] = h
			}
		}
	}
	type entry struct { // of the kernel's table: setting another link-layer address replaces it
		link    string
		address netip.Addr
	}
	replaced := map[entry]bool{}
	for _, w := range s.Neighbours {
		if _, ok := stale[w]; ok {
			delete(stale, w)
			continue
		}
		l, err := a.link(w.Link)
		if err != nil {
			return fmt.Errorf("add neighbour %s: %w", w.Address, err)
		}
		mac, err := net.ParseMAC(w.MAC)
		if err != nil {
			return fmt.Errorf("add neighbour %s: %w", w.Address, err)
		}
		neigh := &netlink.Neigh{LinkIndex: l.Attrs().Index, IP: w.Address.AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT}
		if err := a.h.NeighSet(neigh); err != nil {
			return fmt.Errorf("add neighbour %s on %s: %w", w.Address, w.Link, err)
		}
		replaced[entry{w.Link, w.Address}] = true
	}
	for k, h := range stale {
		if !a.owned[k.Link] || replaced[entry{k.Link, k.Address}] {
			continue
		}
		if err := a.h.NeighDel(&h); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete neighbour %s on %s: %w", k.Address, k.Link, err)
		}
	}
	return nil
}

// routeKey is what makes a route another one, rather than a change of the same.
type routeKey struct {
	table       int
	destination netip.Prefix
}

func (a *applier) routes(s State) error {
	filter := &netlink.Route{Protocol: netlink.RouteProtocol(a.protocol)}
	have, err := a.h.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	old := map[routeKey]Route{}
	raw := map[routeKey]netlink.Route{}
	for _, h := range have {
		r := a.routeFrom(h)
		k := routeKey{r.Table, r.Destination}
		old[k], raw[k] = r, h
	}
	for _, w := range s.Routes {
		if w.Table == 0 {
			w.Table = unix.RT_TABLE_MAIN
		}
		k := routeKey{w.Table, w.Destination}
		delete(raw, k)
		if old[k] == w {
			continue
		}
		r, err := a.routeTo(w)
		if err == nil {
			err = a.h.RouteReplace(r)
		}
		if err != nil {
			return fmt.Errorf("add route %s: %w", w, err)
		}
	}
	for k, h := range raw {
		if err := a.h.RouteDel(&h); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("delete route %s: %w", old[k], err)
		}
	}
	return nil
}

var routeKinds = map[string]int{"": unix.RTN_UNICAST, "blackhole": unix.RTN_BLACKHOLE, "unreachable": unix.RTN_UNREACHABLE,
	"prohibit": unix.RTN_PROHIBIT}

func (a *applier) routeTo(w Route) (*netlink.Route, error) {
	kind, ok := routeKinds[w.Kind]
	if !ok {
		return nil, fmt.Errorf("unknown kind %q", w.Kind)
	}
	r := &netlink.Route{Table: w.Table, Dst: toIPNet(w.Destination), Type: kind, Protocol: netlink.RouteProtocol(a.protocol)}
	if w.Link != "" {
		l, err := a.link(w.Link)
		if err != nil {
			return nil, err
		}
		r.LinkIndex = l.Attrs().Index
	}
	if w.Gateway.IsValid() {
		r.Gw = w.Gateway.AsSlice()
	} else if w.Kind == "" {
		r.Scope = unix.RT_SCOPE_LINK
	}
	if w.Source.IsValid() {
		r.Src = w.Source.AsSlice()
	}
	if w.OnLink {
		r.Flags |= int(netlink.FLAG_ONLINK)
	}
	return r, nil
}

func (a *applier) routeFrom(h netlink.Route) Route {
	r := Route{Table: h.Table, Gateway: toAddr(h.Gw), Source: toAddr(h.Src), OnLink: h.Flags&int(netlink.FLAG_ONLINK) != 0}
	r.Destination = toPrefix(h.Dst)
	if h.Dst == nil {
		r.Destination = defaultRoute(h.Family)
	}
	for name, kind := range routeKinds {
		if kind == h.Type {
			r.Kind = name
		}
	}
	if r.Kind == "" {
		r.Link = a.name[h.LinkIndex]
	}
	return r
}

// String is the route as ip-route(8) writes it.
func (r Route) String() string {
	var b bytes.Buffer
	if r.Kind != "" {
		fmt.Fprintf(&b, "%s ", r.Kind)
	}
	fmt.Fprint(&b, r.Destination)
	if r.Gateway.IsValid() {
		fmt.Fprintf(&b, " via %s", r.Gateway)
	}
	if r.Link != "" {
		fmt.Fprintf(&b, " dev %s", r.Link)
	}
	if r.OnLink {
		b.WriteString(" onlink")
	}
	if r.Source.IsValid() {
		fmt.Fprintf(&b, " src %s", r.Source)
	}
	if r.Table != 0 && r.Table != unix.RT_TABLE_MAIN {
		fmt.Fprintf(&b, " table %d", r.Table)
	}
	return b.String()
}

func (a *applier) rules(s State) error {
	stale := map[Rule]netlink.Rule{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		have, err := a.h.RuleList(family)
		if err != nil {
			return fmt.Errorf("list rules: %w", err)
		}
		for _, h := range have {
			if int(h.Protocol) == a.protocol {
				h.Family = family
				stale[ruleFrom(h)] = h
			}
		}
	}
	for _, w := range s.Rules {
		if _, ok := stale[w]; ok {
			delete(stale, w)
			continue
		}
		if err := a.h.RuleAdd(a.ruleTo(w)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add rule %d: %w", w.Priority, err)
		}
	}
	for _, h := range stale {
		if err := a.h.RuleDel(&h); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete rule %d: %w", h.Priority, err)
		}
	}
	return nil
}

func ruleFrom(h netlink.Rule) Rule {
	r := Rule{Priority: h.Priority, Mark: h.Mark, Table: h.Table, From: toPrefix(h.Src), To: toPrefix(h.Dst)}
	if h.Mask != nil {
		r.Mask = *h.Mask
	}
	return r
}

func (a *applier) ruleTo(w Rule) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Protocol, r.Priority, r.Table = netlink.FAMILY_V4, uint8(a.protocol), w.Priority, w.Table
	if w.From.IsValid() {
		r.Src = toIPNet(w.From)
	}
	if w.To.IsValid() {
		r.Dst = toIPNet(w.To)
	}
	if w.From.Addr().Is6() || w.To.Addr().Is6() {
		r.Family = netlink.FAMILY_V6
	}
	if w.Mask != 0 {
		r.Mark, r.Mask = w.Mark, &w.Mask
	}
	return r
}

func toIPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// toPrefix is the zero Prefix for nil.
func toPrefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(toAddr(n.IP), bits)
}

// toAddr is the zero Addr for nil.
func toAddr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func defaultRoute(family int) netip.Prefix {
	if family == netlink.FAMILY_V6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

var scopes = map[string]int{"": unix.RT_SCOPE_UNIVERSE, "link": unix.RT_SCOPE_LINK, "host": unix.RT_SCOPE_HOST}

func scopeOf(name string) int { return scopes[name] }

func scopeName(scope int) string {
	for name, s := range scopes {
		if s == scope {
			return name
		}
	}
	return fmt.Sprint(scope)
}
