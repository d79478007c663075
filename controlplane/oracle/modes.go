package oracle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/netfilter"
)

// Tally counts what was compared.
type Tally struct {
	Packets   int // walked through both nftables modes, and the iptables mode
	Known     int // of those to service ports with session affinity, walked once more from clients that are known there
	Landed    int // real flows
	Ambiguous int // names of destinations that two service ports want
	// Differences are packets that upstream's modes treat differently, by kind.
	Differences map[string]int
}

// NewTally has counted nothing.
func NewTally() *Tally { return &Tally{Differences: map[string]int{}} }

// packetsOfStep is how many packets are walked in each step of a case.
const packetsOfStep = 60

// tableModes are the nftables modes of both proxies, each in a namespace; in a third ours writes everything anew.
type tableModes struct {
	settings   Settings
	namespaces [3]*netns.Namespace
	others     []*netns.Namespace // all other hosts, for each of the first two, where real flows are sent
	upstream   *upstream
	ours       *oursMaps
	tally      *Tally
}

func newTableModes(ctx context.Context, dir string, v Settings, tally *Tally) (m *tableModes, err error) {
	m = &tableModes{settings: v, tally: tally}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	for i, name := range []string{"upstream-maps", "ours-maps", "fresh-maps"} {
		if i < 2 && v.Landing {
			var others *netns.Namespace
			m.namespaces[i], others, err = wired(ctx, dir, name, v)
			m.others = append(m.others, others)
		} else {
			m.namespaces[i], err = newNamespace(dir, name, v)
		}
		if err != nil {
			return m, err
		}
	}
	if m.upstream, err = newUpstreamMaps(m.namespaces[0], v); err != nil {
		return m, err
	}
	m.ours, err = newOursMaps(m.namespaces[1], v)
	return m, err
}

func (m *tableModes) close() error {
	var errs []error
	if m.upstream != nil {
		errs = append(errs, m.upstream.stop())
	}
	for _, ns := range append(m.namespaces[:], m.others...) {
		if ns != nil {
			errs = append(errs, ns.Remove())
		}
	}
	return errors.Join(errs...)
}

// step brings both to a world, and walks packets through their tables, ours made anew, and iptables' rules.
func (m *tableModes) step(ctx context.Context, world *World, saved [][]byte) (*Disagreement, error) {
	w := world.short()
	err := both(func() error { return m.upstream.sync(w) }, func() error {
		return errors.Join(m.ours.sync(ctx, w), m.ours.compare(ctx), m.ours.fresh(ctx, m.namespaces[2]))
	})
	if err == nil && w.Full {
		err = m.upstream.rewrite()
	}
	if err != nil {
		return &Disagreement{What: "sync of the nftables modes", Diff: err.Error()}, nil
	}
	listings, err := m.list(ctx)
	if err != nil {
		return nil, err
	}
	nodes := make([]*node, len(listings)+1)
	for i, listing := range listings {
		tables, err := tablesOf(listing)
		if err != nil {
			return nil, err
		}
		nodes[i] = newNode(m.settings, tables, false)
	}
	tables, err := tablesOfSaved(m.settings, saved)
	if err != nil {
		return nil, err
	}
	nodes[3] = newNode(m.settings, tables, m.settings.LocalhostNodePorts)
	drawn, ambiguous := probes(m.settings, w, packetsOfStep)
	m.tally.Packets, m.tally.Ambiguous = m.tally.Packets+len(drawn), m.tally.Ambiguous+ambiguous
	d, err := m.walk(drawn, nodes)
	if d == nil && err == nil {
		d, err = m.walkKnown(drawn, listings)
	}
	if d == nil && err == nil && w.Full {
		d, err = m.land(ctx, drawn, nodes)
	}
	return d, err
}

// list reads the tables of all namespaces.
func (m *tableModes) list(ctx context.Context) ([][]byte, error) {
	listings, errs := make([][]byte, len(m.namespaces)), make([]error, len(m.namespaces))
	var wait sync.WaitGroup
	for i, ns := range m.namespaces {
		wait.Go(func() { listings[i], errs[i] = listed(ctx, ns) })
	}
	wait.Wait()
	return listings, errors.Join(errs...)
}

// walk compares what becomes of packets: with upstream's nftables mode, ours, ours made anew, and the iptables mode.
func (m *tableModes) walk(packets []probe, nodes []*node) (*Disagreement, error) {
	for i := range packets {
		p := &packets[i]
		var went [4]outcomes
		for j, n := range nodes {
			var err error
			if went[j], err = n.outcomes(p); err != nil {
				return nil, err
			}
		}
		switch {
		case !went[0].equal(went[1]):
			return parted("walks of the nftables modes", p, went[0], went[1]), nil
		case !went[1].equal(went[2]):
			return parted("walks after changes (-) and after a first sync (+)", p, went[1], went[2]), nil
		case !went[0].equal(went[3]):
			q := question{p, m.settings, went[3], went[0]}
			name := q.differs()
			if name == "" {
				return parted("walks of upstream's iptables mode (-) and nftables mode (+)", p, went[3], went[0]), nil
			}
			m.tally.Differences[name]++
		}
	}
	return nil, nil
}

// walkKnown compares what becomes of packets whose senders have been with an endpoint before.
func (m *tableModes) walkKnown(packets []probe, listings [][]byte) (*Disagreement, error) {
	known, to := clients(packets, m.ours.ports)
	if len(to) == 0 {
		return nil, nil
	}
	theirs, err := tablesOf(listings[0])
	if err != nil {
		return nil, err
	}
	our, err := tablesOf(listings[1])
	if err != nil {
		return nil, err
	}
	for i := range known {
		with, remembered := known[i].rememberUpstream(sets(theirs))
		if known[i].rememberOurs(sets(our), with) != remembered {
			return &Disagreement{What: "whether clients are remembered", Diff: fmt.Sprintf("- %t\n+ %t\n", remembered, !remembered)}, nil
		}
	}
	upstream, ours := newNode(m.settings, theirs, false), newNode(m.settings, our, false)
	for i := range to {
		p := &to[i]
		a, err := upstream.outcomes(p)
		if err != nil {
			return nil, err
		}
		b, err := ours.outcomes(p)
		if err != nil {
			return nil, err
		}
		if m.tally.Known++; !a.equal(b) {
			return parted("walks of known clients", p, a, b), nil
		}
	}
	return nil, nil
}

// sets returns the sets of the one table that is not empty.
func sets(tables []*netfilter.Table) map[string]*netfilter.Set { return tables[0].Sets }

func parted(what string, p *probe, a, b outcomes) *Disagreement {
	side := func(sign string, o outcomes) string { return strings.ReplaceAll(o.String(), "  ", sign+" ") }
	return &Disagreement{What: what, Diff: fmt.Sprintf("%s\n%s%s", p, side("-", a), side("+", b))}
}
