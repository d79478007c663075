package netfilter

// needsTracking is implemented by statements that make the kernel track connections in their family: it does so only where somebody asks
// (nf_ct_netns_get). A chain of type nat alone does not: without a rule that asks, it is never called (nf_nat_inet_fn).
type needsTracking interface{ needsTracking() bool }

func (*MatchConntrack) needsTracking() bool   { return true }
func (*MatchStates) needsTracking() bool      { return true }
func (*MatchDirection) needsTracking() bool   { return true }
func (*MatchFlowAddress) needsTracking() bool { return true }
func (*MatchFlowPort) needsTracking() bool    { return true }
func (*MatchStatus) needsTracking() bool      { return true }
func (*MatchHelper) needsTracking() bool      { return true }
func (*Translate) needsTracking() bool        { return true }
func (*CopyMark) needsTracking() bool         { return true }

func (m *MatchMark) needsTracking() bool { return m.Connection }
func (s *SetMark) needsTracking() bool   { return s.Connection }

// Zones need it; not to track needs nothing (net/netfilter/xt_CT.c: xt_ct_tg_check).
func (s *SetTracking) needsTracking() bool { return !s.NoTrack }

// Tracks tells whether packets of a family (IPv4 or IPv6) are tracked. Index must have been called.
func (rs *Ruleset) Tracks(f Family) bool { return rs.tracks[f] }

// Translates tells whether address translation is switched on for a family: whether there is a nat chain. Index must have been called.
func (rs *Ruleset) Translates(f Family) bool { return rs.translates[f] }

func (rs *Ruleset) noteTracking(t *Table, c *Chain, families []Family) {
	translates := c.Base != nil && c.Base.Type == "nat" && t.Family != Bridge
	tracks := false
	for i := range c.Rules {
		for _, s := range c.Rules[i].Statements {
			if n, ok := s.(needsTracking); ok && n.needsTracking() {
				tracks = true
			}
		}
		if tracks {
			break
		}
	}
	for _, f := range families {
		rs.tracks[f] = rs.tracks[f] || tracks
		rs.translates[f] = rs.translates[f] || translates
	}
}
