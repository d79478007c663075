package armview

import (
	"slices"
	"sync"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
)

// WithDoubts returns a lab's source, in which the rules of the lab's own fabric that are doubted ask what is unknown of Azure, as those of
// [Extend] do. The kernel of the lab decides them by one reading, which Azure need not have.
func WithDoubts(src snapshot.Source) snapshot.Source { return &doubtingSource{Source: src} }

type doubtingSource struct {
	snapshot.Source
	mu sync.Mutex
}

// Host returns a host, the fabric with its doubts.
func (d *doubtingSource) Host(name string) (*snapshot.Host, error) {
	h, err := d.Source.Host(name)
	if err != nil || name != Host || h.Rules == nil {
		return h, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	changed := false
	for _, t := range h.Rules.Tables {
		for _, c := range t.Chains {
			for i := range c.Rules {
				changed = addDoubt(&c.Rules[i]) || changed
			}
		}
	}
	if changed {
		h.Rules.Index()
	}
	return h, nil
}

// Outline returns a host's links, addresses and wires. A source that has none apart gives the whole host.
func (d *doubtingSource) Outline(name string) (*snapshot.Host, error) {
	return snapshot.Outline(d.Source, name)
}

// addDoubt adds the question to a doubted rule, before its verdict. It reports false for other rules, and for one that asks already.
func addDoubt(r *netfilter.Rule) bool {
	if !vnet.IsDoubted(r.Comment) || len(r.Statements) == 0 || slices.Contains(r.Statements, internetDoubt) {
		return false
	}
	r.Statements = slices.Insert(slices.Clone(r.Statements), len(r.Statements)-1, internetDoubt)
	return true
}
