package netfilter

import "packetwalk.dev/internal/model/packet"

// tracker is implemented by statements that make the kernel track connections in their family. The kernel does so only on request
// (nf_ct_netns_get). A chain of type nat alone requests nothing: without a rule that does, it is never called (nf_nat_inet_fn).
type tracker interface{ needsTracking() bool }

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

func (*MatchConntrack) needsTracking() bool   { return true }
func (*MatchStates) needsTracking() bool      { return true }
func (*MatchDirection) needsTracking() bool   { return true }
func (*MatchFlowAddress) needsTracking() bool { return true }
func (*MatchFlowPort) needsTracking() bool    { return true }
func (*MatchStatus) needsTracking() bool      { return true }
func (*MatchHelper) needsTracking() bool      { return true }
func (*Translate) needsTracking() bool        { return true }
func (*CopyMark) needsTracking() bool         { return true }
func (m *MatchHistory) needsTracking() bool   { return m.Connections }

func (m *MatchMark) needsTracking() bool { return m.Connection }
func (s *SetMark) needsTracking() bool   { return s.Connection }

// What is not shown or not understood may need it: a walk must not conclude from its absence that nothing is translated.
func (j *JumpTo) needsTracking() bool        { return j.Chain == nil }
func (u *UnknownTest) needsTracking() bool   { return true }
func (u *UnknownEffect) needsTracking() bool { return true }

// Zones need it; not to track needs nothing (net/netfilter/xt_CT.c: xt_ct_tg_check).
func (s *SetTracking) needsTracking() bool { return !s.NoTrack }

// Tracks reports whether packets of a family (IPv4 or IPv6) are tracked. Index must have been called.
func (rs *Ruleset) Tracks(f Family) bool { return rs.tracks[f] }

// Translates reports whether address translation is switched on for a family: whether there is a nat chain. Index must have been called.
func (rs *Ruleset) Translates(f Family) bool { return rs.translates[f] }

func (rs *Ruleset) noteTracking(t *Table, c *Chain, families []Family) {
	translates := c.Base != nil && c.Base.Type == "nat" && t.Family != Bridge
	for _, f := range families {
		rs.tracks[f] = rs.tracks[f] || c.tracks(f)
		rs.translates[f] = rs.translates[f] || translates
	}
}

// tracks reports whether a statement of the chain makes the kernel track a family's connections, or may.
func (c *Chain) tracks(f Family) bool {
	if c.Partial {
		return true
	}
	for i := range c.Rules {
		for _, s := range c.Rules[i].Statements {
			if n, ok := s.(tracker); !ok || !n.needsTracking() {
				continue
			}
			if one, ok := s.(familyMember); !ok || one.family() == Inet || one.family() == f {
				return true
			}
		}
	}
	return false
}
