package netfilter

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"packetwalk.dev/internal/model/packet"
)

// RecentList is a list of recent addresses (net/netfilter/xt_recent.c), by address.
type RecentList map[netip.Addr]*RecentEntry

// RecentEntry is an address in a list.
type RecentEntry struct {
	Seen []time.Duration // how long ago packets of the address were noted
	// Unsure says that a rule may have taken the entry away ("--reap").
	Unsure bool
}

// Clone copies a list, with its entries.
func (l RecentList) Clone() RecentList {
	copied := make(RecentList, len(l))
	for a, e := range l {
		copied[a] = &RecentEntry{slices.Clone(e.Seen), e.Unsure}
	}
	return copied
}

// RecentAction tells how a rule uses a list.
type RecentAction string

// The actions.
const (
	RecentSet    RecentAction = "set"    // notes the packet
	RecentCheck  RecentAction = "rcheck" // tests whether the address was seen
	RecentUpdate RecentAction = "update" // the same, and notes the packet if so
	RecentRemove RecentAction = "remove" // takes the address away
)

// Recent tests or changes a list of recent addresses ("-m recent"). It is an effect also where it only tests: "--reap" changes the list.
type Recent struct {
	Action      RecentAction
	Not         bool
	List        string
	Destination bool          // the packet's, else its source
	Mask        netip.Addr    // of the address; invalid for all of it
	Within      time.Duration // 0 for any time
	Hits        int           // 0 for one
	Reap        bool          // entries without a packet Within may go
	TTL         bool          // the entry's last packet had the same TTL
	Words       string
}

// recentSlack is how inexact an age is: by the time between dump and packet.
const recentSlack = 2 * time.Second

// Effect says that it may change a list, which later rules test.
func (m *Recent) Effect() EffectKind { return Modifies }

func (m *Recent) String() string { return m.Words }

// Eval does what recent_mt does.
func (m *Recent) Eval(c *Context) Verdict {
	list, a, known := m.entryOf(c)
	if m.Action == RecentSet {
		if known {
			list.note(a)
		}
		return c.hold(yes.xor(m.Not), m)
	}
	if !known {
		return c.askTest(Unknown, recentQuestion{m, a}, 0, 0)
	}
	e := list[a]
	if e == nil {
		return c.hold(no.xor(m.Not), m)
	}
	held := yes
	if m.Action != RecentRemove {
		held = m.seen(e)
	}
	if e.Unsure || m.TTL {
		held = held.and(maybe)
	}
	v := Verdict{Kind: Continue}
	if held = held.xor(m.Not); held == no {
		v.Kind = Break
	} else if held == maybe {
		v = c.askTest(Unknown, recentQuestion{m, a}, 0, 0)
	}
	switch {
	case m.Action == RecentRemove:
		delete(list, a)
	case m.Action == RecentUpdate && v.Kind == Continue:
		list.note(a)
	case m.Reap && !slices.ContainsFunc(e.Seen, func(age time.Duration) bool { return age < m.Within-recentSlack }):
		e.Unsure = true
	}
	return v
}

// entryOf finds the list and the address that the rule looks for; false where one of them is not known.
func (m *Recent) entryOf(c *Context) (RecentList, netip.Addr, bool) {
	a := c.Packet.Source
	if m.Destination {
		a = c.Packet.Destination
	}
	if c.Host == nil {
		return nil, a, false
	}
	list, known := c.Host.Recent(m.List)
	if m.Mask.IsValid() && a.IsValid() && m.Mask.Is4() == a.Is4() {
		bits, mask := a.AsSlice(), m.Mask.AsSlice()
		for i := range bits {
			bits[i] &= mask[i]
		}
		a, _ = netip.AddrFromSlice(bits)
	}
	return list, a, known && !packet.IsUnknown(a)
}

// seen reports whether enough packets were noted in the time.
func (m *Recent) seen(e *RecentEntry) truth {
	sure, possible := 0, 0
	for _, age := range e.Seen {
		if m.Within == 0 || age < m.Within-recentSlack {
			sure++
		}
		if m.Within == 0 || age < m.Within+recentSlack {
			possible++
		}
	}
	wanted := max(m.Hits, 1)
	switch {
	case sure >= wanted:
		return yes
	case possible < wanted:
		return no
	}
	return maybe
}

func (l RecentList) note(a netip.Addr) {
	e := l[a]
	if e == nil {
		e = &RecentEntry{}
		l[a] = e
	}
	e.Seen = append(e.Seen, 0)
}

// recentQuestion is a test with the address that it is asked about.
type recentQuestion struct {
	test *Recent
	of   netip.Addr
}

func (q recentQuestion) String() string { return fmt.Sprintf("%s (%s)", q.test, q.of) }
