//go:build linux

package session

import (
	"context"
	"slices"
	"time"

	"packetwalk.dev/internal/answer/drops"
	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/kernel/dropwatch"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/witness"
)

// DropWatch watches the packets that the hosts of a lab drop.
type DropWatch struct {
	session  *Session
	kernel   *dropwatch.Watch
	chosen   map[string]bool   // nil for all hosts
	hosts    map[uint64]string // by the inode numbers of their namespaces
	flows    drops.Flows
	network  drops.Network
	machines snapshot.Source // of which the addresses of nodes, VMs and internet hosts are taken
	lookedAt time.Time       // for namespaces
}

// namespaceInterval is how often namespaces are looked for that came since.
const namespaceInterval = time.Second

// WatchDrops begins to watch hosts of a lab, by their full names; nil for all, with those that come later.
func (s *Session) WatchDrops(chosen map[string]bool) (*DropWatch, error) {
	kernel, err := dropwatch.Open(nil)
	if err != nil {
		return nil, err
	}
	w := &DropWatch{session: s, kernel: kernel, chosen: chosen, hosts: map[uint64]string{}, machines: s.Source()}
	if err := w.addNamespaces(); err != nil {
		_ = kernel.Close()
		return nil, err
	}
	return w, nil
}

// Close ends the watch.
func (w *DropWatch) Close() error { return w.kernel.Close() }

// Namespaces returns how many network namespaces are watched.
func (w *DropWatch) Namespaces() int { return len(w.hosts) }

// Flows returns all flows until now.
func (w *DropWatch) Flows() []*drops.Flow { return w.flows.All() }

// Owners returns names for the addresses of all hosts, and for the rules of some.
func (w *DropWatch) Owners(hosts []string) *explain.Owners {
	return w.session.OwnersOfAll(w.machines, hosts)
}

// Read returns the flows that have new drops, and how many packets of flows were dropped for which there was no room. Where a flow is new, it
// reads the states again: rules that were read before a drop may not be those that dropped.
func (w *DropWatch) Read(ctx context.Context) (changed []*drops.Flow, uncounted uint64, err error) {
	if time.Since(w.lookedAt) >= namespaceInterval {
		if err := w.addNamespaces(); err != nil {
			return nil, 0, err
		}
	}
	all, uncounted, err := w.kernel.Read()
	if err != nil {
		return nil, 0, err
	}
	all = slices.DeleteFunc(all, func(d witness.Drop) bool { return !drops.IsLoss(&d) })
	isNew := func(d witness.Drop) bool { return !w.flows.Knows(w.hosts[d.Namespace], &d) }
	if slices.ContainsFunc(all, isNew) {
		if err := w.session.Reread(ctx); err != nil {
			return nil, 0, err
		}
		w.network = drops.Network{Source: w.session.Source(), Owners: w.Owners}
	}
	for i := range all {
		if flow := w.flows.Add(w.network, w.hosts[all[i].Namespace], &all[i]); !slices.Contains(changed, flow) {
			changed = append(changed, flow)
		}
	}
	return changed, uncounted, nil
}

func (w *DropWatch) addNamespaces() error {
	w.lookedAt = time.Now()
	hosts, err := w.session.Lab.Namespaces()
	if err != nil {
		return err
	}
	for inode, host := range hosts {
		if w.hosts[inode] != "" || w.chosen != nil && !w.chosen[host] {
			continue
		}
		if err := w.kernel.Add(inode); err != nil {
			return err
		}
		w.hosts[inode] = host
	}
	return nil
}
