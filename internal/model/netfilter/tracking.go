package netfilter

import (
	"slices"

	"packetwalk.dev/internal/model/packet"
)

// Tracking says whether a statement that the model does not understand makes the kernel track connections.
type Tracking uint8

// The answers. The zero value is for what may be anything.
const (
	MayTrack Tracking = iota
	NeverTracks
	Tracks
)

func (t Tracking) truth() truth { return [...]truth{MayTrack: maybe, NeverTracks: no, Tracks: yes}[t] }

// tracker is implemented by statements that make the kernel track connections in their family, or may. The kernel does so only on request
// (nf_ct_netns_get). A chain of type nat alone requests nothing: without a rule that does, it is never called (nf_nat_inet_fn).
type tracker interface{ tracking() truth }

// familyMember is implemented by statements that may be for IPv4 or IPv6 only, also in tables of family inet, and then have only that one's
// connections tracked (nft_nat_init). Inet stands for both.
type familyMember interface{ family() Family }

func (t *Translate) family() Family {
	switch {
	case !t.Low.IsValid():
		return Inet
	case t.Low.Is6():
		return IPv6
	}
	return IPv4
}

func (t *TranslateTo) family() Family {
	switch t.EtherType {
	case packet.EtherIPv4:
		return IPv4
	case packet.EtherIPv6:
		return IPv6
	}
	return Inet
}

func (*MatchConntrack) tracking() truth   { return yes }
func (*MatchStates) tracking() truth      { return yes }
func (*MatchDirection) tracking() truth   { return yes }
func (*MatchFlowAddress) tracking() truth { return yes }
func (*MatchFlowPort) tracking() truth    { return yes }
func (*MatchStatus) tracking() truth      { return yes }
func (*MatchHelper) tracking() truth      { return yes }
func (*Translate) tracking() truth        { return yes }
func (*CopyMark) tracking() truth         { return yes }
func (m *MatchHistory) tracking() truth   { return truthOf(m.Connections) }

func (m *MatchMark) tracking() truth { return truthOf(m.Connection) }
func (s *SetMark) tracking() truth   { return truthOf(s.Connection) }
func (n *Note) tracking() truth      { return truthOf(n.Tracks) }

func (u *UnknownTest) tracking() truth   { return u.Tracking.truth() }
func (u *UnknownEffect) tracking() truth { return u.Tracking.truth() }

// A chain that is not shown may have any rule. Whether it does anything is asked where it is called, so it is assumed to need tracking.
func (j *JumpTo) tracking() truth { return truthOf(j.Chain == nil) }

// Zones need it; not to track needs nothing (net/netfilter/xt_CT.c: xt_ct_tg_check).
func (s *SetTracking) tracking() truth { return truthOf(!s.NoTrack) }

// Tracks reports whether packets of a family (IPv4 or IPv6) are tracked; known is false where that depends on rules that are not shown or
// not understood. Index must have been called.
func (rs *Ruleset) Tracks(f Family) (tracked, known bool) {
	return rs.tracks[f] == yes, rs.tracks[f] != maybe
}

// Translates reports whether address translation is switched on for a family: whether there is a nat chain. Index must have been called.
func (rs *Ruleset) Translates(f Family) bool { return rs.translates[f] }

// rememberer is implemented by statements that may change what other packets meet: the mark of the connection, a list of addresses.
type rememberer interface{ remembers() bool }

func (s *SetMark) remembers() bool  { return s.Connection }
func (s *CopyMark) remembers() bool { return !s.Restore }
func (s *Assign) remembers() bool   { return s.Target == TargetConnmark }
func (*Recent) remembers() bool     { return true }

// Remembers reports whether a rule of a family changes what other packets meet. Index must have been called.
func (rs *Ruleset) Remembers(f Family) bool { return rs.remembers[f] }

func (c *Chain) remembers() bool {
	return slices.ContainsFunc(c.Rules, func(r Rule) bool {
		return slices.ContainsFunc(r.Statements, func(s Statement) bool {
			m, ok := s.(rememberer)
			return ok && m.remembers()
		})
	})
}

// noteTracking notes what a table makes the kernel do. Tracking in a bridge's family includes that of IP (nf_ct_netns_get).
func (rs *Ruleset) noteTracking(t *Table) {
	families := []Family{t.Family}
	if t.Family == Inet || t.Family == Bridge {
		families = []Family{IPv4, IPv6, t.Family}
	}
	for _, f := range families {
		tracked := truthOf(t.Tracks)
		for _, c := range t.Chains {
			tracked = eitherTracks(tracked, c.tracks(f))
			rs.remembers[f] = rs.remembers[f] || c.remembers()
			rs.translates[f] = rs.translates[f] || c.Base != nil && c.Base.Type == "nat" && t.Family != Bridge
		}
		rs.tracks[f] = eitherTracks(rs.tracks[f], tracked)
	}
}

// tracks reports whether a statement of the chain makes the kernel track a family's connections.
func (c *Chain) tracks(f Family) truth {
	tracked := no
	if c.Partial { // the answer says that it holds as far as the chain is shown
		tracked = yes
	}
	for i := range c.Rules {
		for _, s := range c.Rules[i].Statements {
			n, ok := s.(tracker)
			if !ok {
				continue
			}
			if one, ok := s.(familyMember); !ok || one.family() == Inet || one.family() == f {
				tracked = eitherTracks(tracked, n.tracking())
			}
		}
	}
	return tracked
}

// eitherTracks returns whether one of two things makes the kernel track connections.
func eitherTracks(a, b truth) truth {
	if a == yes || b == no {
		return a
	}
	return b
}
