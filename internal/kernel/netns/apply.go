package netns

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/sysctl"
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
	return a.run(s)
}

// run takes the steps of Apply after the settings.
func (a *applier) run(s State) error {
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
	return n.Do(func() error {
		for _, s := range settings {
			if _, err := sysctl.Ensure(s.Key, s.Value); err != nil {
				return err
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

	compareOnly bool     // change nothing, and note in missing what would be added
	missing     []string // in the words of ip(8)
}

// Missing returns what of a state the namespace lacks, in the words of ip(8). It passes over what the namespace has beyond the state, and
// the origin, the preferred source and the link of a route by a gateway: a CNI plugin may have moved such a route to a bridge.
func (n *Namespace) Missing(s State) ([]string, error) {
	var missing []string
	err := n.Do(func() error {
		for _, want := range s.Sysctls {
			value, err := sysctl.Read(want.Key)
			if err != nil {
				return err
			}
			if value != want.Value {
				missing = append(missing, fmt.Sprintf("setting %s=%s", want.Key, want.Value))
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("compare state with %s: %w", n.path, err)
	}
	a, err := n.applier(s)
	if err == nil {
		a.compareOnly = true
		err = a.run(s)
	}
	if err != nil {
		return nil, fmt.Errorf("compare state with %s: %w", n.path, err)
	}
	return append(missing, a.missing...), nil
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

// settle adds what is wanted and not there, by what it is, and then deletes what is there and not wanted. Errors that say that
// something came, or went, meanwhile are none. An applier that only compares notes what it would add.
func settle[K comparable, H any](a *applier, have map[K]H, want []K, name func(K) string, add func(K) error, del func(K, *H) error) error {
	for _, w := range want {
		if _, there := have[w]; there {
			delete(have, w)
		} else if a.compareOnly {
			a.missing = append(a.missing, name(w))
		} else if err := add(w); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add %s: %w", name(w), err)
		}
	}
	if a.compareOnly {
		return nil
	}
	for k, h := range have {
		err := del(k, &h)
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("delete %s: %w", name(k), err)
		}
	}
	return nil
}

func (a *applier) addresses(s State) error {
	list, err := a.h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	have := map[Address]netlink.Addr{}
	for _, h := range list {
		have[Address{Link: a.name[h.LinkIndex], Prefix: toPrefix(h.IPNet), Scope: scopeName(h.Scope)}] = h
	}
	name := func(w Address) string { return fmt.Sprintf("address %s on %s", w.Prefix, w.Link) }
	return settle(a, have, s.Addresses, name, func(w Address) error {
		l, err := a.link(w.Link)
		if err != nil {
			return err
		}
		// The label is the link's own name: nothing else is asked for. Duplicate address detection would only delay.
		return a.h.AddrReplace(l, &netlink.Addr{IPNet: toIPNet(w.Prefix), Scope: scopes[w.Scope], Flags: unix.IFA_F_NODAD})
	}, func(k Address, h *netlink.Addr) error {
		if !a.owned[k.Link] || k.Prefix.Addr().IsLoopback() || k.Prefix.Addr().IsLinkLocalUnicast() {
			return nil
		}
		l, err := a.link(k.Link)
		if err != nil {
			return err
		}
		return a.h.AddrDel(l, h)
	})
}

func (a *applier) neighbours(s State) error {
	if len(s.Links)+len(s.Neighbours) == 0 {
		return nil
	}
	have := map[Neighbour]netlink.Neigh{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := a.h.NeighList(0, family)
		if err != nil {
			return fmt.Errorf("list neighbours: %w", err)
		}
		for _, h := range list {
			if h.State&netlink.NUD_PERMANENT != 0 {
				have[Neighbour{Link: a.name[h.LinkIndex], Address: toAddr(h.IP), MAC: h.HardwareAddr.String()}] = h
			}
		}
	}
	type entry struct { // of the kernel's table: setting another link-layer address replaces it
		link    string
		address netip.Addr
	}
	replaced := map[entry]bool{}
	name := func(w Neighbour) string { return fmt.Sprintf("neighbour %s on %s", w.Address, w.Link) }
	return settle(a, have, s.Neighbours, name, func(w Neighbour) error {
		replaced[entry{w.Link, w.Address}] = true
		l, err := a.link(w.Link)
		if err != nil {
			return err
		}
		mac, err := net.ParseMAC(w.MAC)
		if err != nil {
			return err
		}
		return a.h.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: w.Address.AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT})
	}, func(k Neighbour, h *netlink.Neigh) error {
		if !a.owned[k.Link] || replaced[entry{k.Link, k.Address}] {
			return nil
		}
		return a.h.NeighDel(h)
	})
}

func (a *applier) routes(s State) error {
	filter, by := &netlink.Route{Protocol: netlink.RouteProtocol(a.protocol)}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE
	if a.compareOnly {
		by = netlink.RT_FILTER_TABLE
	}
	list, err := a.h.RouteListFiltered(netlink.FAMILY_ALL, filter, by)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	have := map[Route]netlink.Route{}
	for _, h := range list {
		have[a.comparable(a.routeFrom(h))] = h
	}
	type entry struct { // of the kernel's tables: another route to the same destination replaces it
		table       int
		destination netip.Prefix
	}
	replaced := map[entry]bool{}
	want := slices.Clone(s.Routes)
	for i := range want {
		want[i].Table = cmp.Or(want[i].Table, unix.RT_TABLE_MAIN)
		want[i] = a.comparable(want[i])
	}
	name := func(w Route) string { return "route " + w.String() }
	return settle(a, have, want, name, func(w Route) error {
		replaced[entry{w.Table, w.Destination}] = true
		r, err := a.routeTo(w)
		if err != nil {
			return err
		}
		return a.h.RouteReplace(r)
	}, func(k Route, h *netlink.Route) error {
		if replaced[entry{k.Table, k.Destination}] {
			return nil
		}
		return a.h.RouteDel(h)
	})
}

// comparable returns a route as routes are compared: by all that an Apply sets, or without the details that Missing passes over.
func (a *applier) comparable(r Route) Route {
	if a.compareOnly {
		r.Source, r.OnLink = netip.Addr{}, false
		if r.Gateway.IsValid() {
			r.Link = ""
		}
	}
	return r
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

func (a *applier) rules(s State) error {
	have := map[Rule]netlink.Rule{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := a.h.RuleList(family)
		if err != nil {
			return fmt.Errorf("list rules: %w", err)
		}
		for _, h := range list {
			if int(h.Protocol) == a.protocol {
				h.Family = family
				have[ruleFrom(h)] = h
			}
		}
	}
	name := func(w Rule) string { return fmt.Sprintf("rule %d for table %d", w.Priority, w.Table) }
	return settle(a, have, s.Rules, name, func(w Rule) error { return a.h.RuleAdd(a.ruleTo(w)) },
		func(_ Rule, h *netlink.Rule) error { return a.h.RuleDel(h) })
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

// toPrefix returns the zero Prefix for nil.
func toPrefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(toAddr(n.IP), bits)
}

// toAddr returns the zero Addr for nil.
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

func scopeName(scope int) string {
	for name, s := range scopes {
		if s == scope {
			return name
		}
	}
	return fmt.Sprint(scope)
}
