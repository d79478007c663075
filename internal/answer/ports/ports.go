package ports

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// MasqueradePorts is how many source ports the kernel chooses from for a connection from port 1024 or higher, if the rule names none: 1024 to
// 65535 (nf_nat_l4proto_unique_tuple, net/netfilter/nf_nat_core.c).
const MasqueradePorts = 65535 - 1024 + 1

// Key identifies what a source port can be used for once on a host.
type Key struct {
	Host        string
	Protocol    packet.Protocol
	Source      netip.Addr     // as the destination sees it
	Destination netip.AddrPort // after translation by the host
	// Client is the sender, for hosts that give each client its own ports; invalid for others.
	Client netip.Addr
}

// Use holds the source ports in use under a key.
type Use struct {
	Key
	InUse    int // source ports of some connection
	TimeWait int // source ports of connections in state TIME_WAIT
	// Limit is the number of ports that connections can have; 0 if unknown, because of Reason.
	Limit   int
	Reason  string
	Clients []Client // by descending count
	// PerSecond is the growth of InUse between two readings. Measured says whether there were two.
	PerSecond float64
	Measured  bool
}

// Client holds how many of the ports connections of one address use.
type Client struct {
	Address netip.Addr
	InUse   int
}

// Full returns after which time all ports are in use, if their number goes on growing at the measured rate. It is false if it does not grow,
// or if the limit is unknown.
func (u *Use) Full() (time.Duration, bool) {
	if !u.Measured || u.PerSecond <= 0 || u.Limit == 0 {
		return 0, false
	}
	seconds := float64(max(u.Limit-u.InUse, 0)) / u.PerSecond
	return time.Duration(min(seconds, maxForecast.Seconds()) * float64(time.Second)), true
}

// maxForecast bounds a forecast, which fits a time.Duration then.
const maxForecast = 10_000 * time.Hour

// Count counts the source ports that a host's connections use, for those keys where the host translates the source of one or more
// connections. hasOwn reports whether a client has ports of a source to itself; its ports are then counted apart. It may be nil. The result is
// sorted by descending use.
func Count(h *snapshot.Host, hasOwn func(client, source netip.Addr) bool) []Use {
	if h.Flows == nil {
		return nil
	}
	groups := map[Key]*group{}
	for i := range h.Flows.Flows {
		f := &h.Flows.Flows[i]
		if !f.Original.Protocol.HasPorts() {
			continue
		}
		key := Key{
			Host: h.Name, Protocol: f.Original.Protocol, Source: f.Reply.Destination,
			Destination: netip.AddrPortFrom(f.Reply.Source, f.Reply.SourcePort.Number),
		}
		if hasOwn != nil && hasOwn(f.Original.Source, key.Source) {
			key.Client = f.Original.Source
		}
		g := groups[key]
		if g == nil {
			g = &group{ports: map[uint16]bool{}, clients: map[netip.Addr]map[uint16]bool{}}
			groups[key] = g
		}
		g.add(f)
	}
	limits := map[bool]limit{false: kernelLimit(h, false), true: kernelLimit(h, true)}
	var all []Use
	for key, g := range groups {
		if g.translated {
			u := g.use(key)
			l := limits[key.Source.Is6()]
			u.Limit, u.Reason = l.ports, l.reason
			all = append(all, u)
		}
	}
	Sort(all)
	return all
}

// Sort sorts by descending use, and then by key.
func Sort(all []Use) {
	slices.SortFunc(all, func(a, b Use) int {
		return cmp.Or(cmp.Compare(b.InUse, a.InUse), cmp.Compare(a.Host, b.Host), a.Source.Compare(b.Source), a.Destination.Compare(b.Destination),
			cmp.Compare(a.Protocol, b.Protocol), a.Client.Compare(b.Client))
	})
}

// group collects the connections of a key.
type group struct {
	translated bool
	ports      map[uint16]bool // true if every connection with the port is in state TIME_WAIT
	clients    map[netip.Addr]map[uint16]bool
}

func (g *group) add(f *packet.Flow) {
	port, from := f.Reply.DestinationPort.Number, f.Original.Source
	g.translated = g.translated || from != f.Reply.Destination || f.Original.SourcePort != f.Reply.DestinationPort
	waiting, known := g.ports[port]
	g.ports[port] = f.State == "TIME_WAIT" && (waiting || !known)
	if g.clients[from] == nil {
		g.clients[from] = map[uint16]bool{}
	}
	g.clients[from][port] = true
}

func (g *group) use(key Key) Use {
	u := Use{Key: key, InUse: len(g.ports)}
	for waiting := range maps.Values(g.ports) {
		if waiting {
			u.TimeWait++
		}
	}
	for address, used := range g.clients {
		u.Clients = append(u.Clients, Client{address, len(used)})
	}
	slices.SortFunc(u.Clients, func(a, b Client) int { return cmp.Or(cmp.Compare(b.InUse, a.InUse), a.Address.Compare(b.Address)) })
	return u
}

// Grow returns the uses of the later reading, with their growth since the one before. Hosts whose connections were unknown then have none.
func Grow(before, after []Use, unknownBefore map[string]string, elapsed time.Duration) []Use {
	earlier := make(map[Key]int, len(before))
	for _, u := range before {
		earlier[u.Key] = u.InUse
	}
	grown := slices.Clone(after)
	for i := range grown {
		u := &grown[i]
		if _, unknown := unknownBefore[u.Host]; unknown {
			continue
		}
		u.PerSecond, u.Measured = float64(u.InUse-earlier[u.Key])/elapsed.Seconds(), true
	}
	return grown
}

// limit holds a number of ports, or 0 and the reason why it is unknown.
type limit struct {
	ports  int
	reason string
}

// kernelLimit returns how many ports the kernel chooses from on a host for one family.
func kernelLimit(h *snapshot.Host, ipv6 bool) limit {
	if h.Rules == nil {
		return limit{reason: "rules unknown"}
	}
	for _, table := range h.Rules.Tables {
		for _, c := range table.Chains {
			for i := range c.Rules {
				if slices.ContainsFunc(c.Rules[i].Statements, mayChooseSourcePort) {
					return limit{reason: c.Ref(&c.Rules[i]) + " may choose other ports"}
				}
			}
		}
	}
	parts := []snapshot.Part{snapshot.NFT, snapshot.Rules}
	if ipv6 {
		parts[1] = snapshot.RulesIPv6
	}
	for _, part := range parts {
		for _, unknown := range []map[snapshot.Part]string{h.Unread, h.Missing, h.Partial} {
			if why, ok := unknown[part]; ok {
				return limit{reason: fmt.Sprintf("%s unknown: %s", part, why)}
			}
		}
	}
	return limit{ports: MasqueradePorts}
}

// mayChooseSourcePort reports whether a statement translates sources to ports that it names, or may do so.
func mayChooseSourcePort(s netfilter.Statement) bool {
	switch t := s.(type) {
	case *netfilter.Translate:
		return t.Source && t.PortLow != 0
	case *netfilter.TranslateTo:
		return t.Source && (t.PortLow != 0 || t.Port != nil || t.WithPort)
	case *netfilter.UnknownEffect, *netfilter.UnreadEffect:
		return true
	}
	return false
}
