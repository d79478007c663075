package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"

	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// Tables reads and writes the kernel's iptables of one family.
type Tables interface {
	// Restore feeds the input to iptables-restore --noflush: each table changes whole or not at all.
	Restore(ctx context.Context, input []byte) error
	// Save dumps one table as iptables-save -t does, without counters.
	Save(ctx context.Context, table string) ([]byte, error)
}

// Applier is what a Syncer needs of them.
type Applier interface {
	Tables
	// Most is how many chains one Restore may name, as its own or as a rule's target, before each costs more than the one before; 0 where
	// it costs most to run at all.
	Most(ctx context.Context) int
}

// Syncer keeps the kernel's rules equal to the service ports. It is not safe for concurrent use.
type Syncer struct {
	applier Applier
	config  proxy.Config

	state   *state              // what was wanted last
	written bool                // and the kernel has it: not after a failure, and before the first sync
	readsAs map[chainKey]string // chains that the kernel's tools print differently from us, as read back
	most    int                 // how much one step of a plan may have
}

// NewSyncer makes a syncer; it touches nothing before the first Sync.
func NewSyncer(config proxy.Config, applier Applier) (*Syncer, error) {
	if _, err := versionOf(config.Rules); err != nil {
		return nil, err
	}
	return &Syncer{applier: applier, config: config, readsAs: map[chainKey]string{}}, nil
}

// Sync makes the rules those of the service ports. The first sync, and the one after a failure, compare all own chains and jumps with the
// kernel's (a full sync); the others write only what has changed.
func (s *Syncer) Sync(ctx context.Context, ports []service.Port) (proxy.Result, error) {
	result := proxy.Result{Full: !s.written}
	to, err := newState(s.config, ports, s.state)
	if err != nil {
		return result, err
	}
	from := s.state
	s.state, s.written = to, false
	result.Total = to.count()
	for _, p := range to.parts {
		if p.noLocalInternal {
			result.NoLocalInternal++
		}
		if p.noLocalExternal {
			result.NoLocalExternal++
		}
	}
	if !result.Full {
		p := difference(from, to, s.most)
		result.Written, result.Unchanged = p.rules, p.isZero()
		if result.CleanupErr, result.PartialErr = s.apply(ctx, &p); ctx.Err() != nil {
			return result, result.PartialErr
		}
		result.Full = result.PartialErr != nil // others may have changed our chains, or lead to one that was to go
	}
	if result.Full {
		if err := s.full(ctx, &result); err != nil {
			return result, err
		}
	}
	s.written = true
	return result, nil
}

// full compares what is wanted with the kernel's rules and writes what differs.
func (s *Syncer) full(ctx context.Context, result *proxy.Result) error {
	now, err := s.dump(ctx)
	if err != nil {
		return err
	}
	p := compare(s.state, now, nil, s.askMaxStep(ctx))
	result.Written, result.Unchanged = p.rules, p.isZero()
	result.CleanupErr, err = s.apply(ctx, &p)
	return err
}

// askMaxStep asks the applier how much one step of a plan may have.
func (s *Syncer) askMaxStep(ctx context.Context) int {
	if s.most = s.applier.Most(ctx); s.most == 0 {
		s.most = math.MaxInt
	}
	return s.most
}

// Configure changes what the rules depend on; the next Sync writes what that changes. Family and Rules must stay as they are.
func (s *Syncer) Configure(c proxy.Config) { s.config = c }

// ForceFull makes the next Sync a full one.
func (s *Syncer) ForceFull() { s.written = false }

// Canary reports whether the chain that only marks our presence is still in the mangle table. When it is gone, something has flushed the
// rules, and a full sync is due. It is the cheapest look there is.
func (s *Syncer) Canary(ctx context.Context) (bool, error) {
	dump, err := s.applier.Save(ctx, iptables.Mangle)
	if err != nil {
		return false, err
	}
	return bytes.Contains(dump, []byte(":"+chainCanary+" ")), nil
}

// Repair compares a dump with what was written, puts back what others have deleted or changed in own chains, and the jumps to them.
// It returns the names of what it wrote, as table/chain. Before the first sync it does nothing.
func (s *Syncer) Repair(ctx context.Context) ([]string, error) {
	if !s.written {
		return nil, nil
	}
	now, err := s.dump(ctx)
	if err != nil {
		return nil, err
	}
	p := compare(s.state, now, s.readsAs, s.most)
	if p.isZero() {
		return nil, nil
	}
	if _, err := s.apply(ctx, &p); err != nil {
		s.written = false
		return nil, err
	}
	after, err := s.dump(ctx)
	if err != nil {
		return nil, err
	}
	return s.repaired(&p, now, after), nil
}

// repaired lists what a repair changed. A chain that reads after the repair as it did before was never damaged: the tools of this machine
// print some rule in another form than ours, which is remembered.
func (s *Syncer) repaired(p *plan, before, after chainDump) []string {
	want := map[chainKey]string{}
	s.state.each(func(c chainText) { want[c.chainKey] = c.rules })
	var names []string
	for _, at := range p.touched {
		rules, own := want[at]
		if own && after[at] != rules && lines(after[at]) == lines(rules) {
			s.readsAs[at] = after[at]
		}
		if old, there := before[at]; !own || !there || old != after[at] {
			names = append(names, at.table+"/"+at.chain)
		}
	}
	return names
}

func (s *Syncer) dump(ctx context.Context) (chainDump, error) {
	var dumps [][]byte
	for _, table := range tables {
		dump, err := s.applier.Save(ctx, table)
		if err != nil {
			return nil, err
		}
		dumps = append(dumps, dump)
	}
	return readDump(dumps...), nil
}

// apply makes the plan's steps, then its cleanup, whose failure is not theirs.
func (s *Syncer) apply(ctx context.Context, p *plan) (cleanupErr, err error) {
	for _, step := range p.steps {
		if err = ctx.Err(); err == nil {
			err = s.restore(ctx, step...)
		}
		if err != nil {
			return nil, fmt.Errorf("write rules: %w", err)
		}
	}
	for _, e := range p.cleanup {
		if err := s.restore(ctx, e); err != nil {
			cleanupErr = errors.Join(cleanupErr, fmt.Errorf("delete unused chains: %w", err))
		}
	}
	for _, at := range p.touched {
		delete(s.readsAs, at)
	}
	return cleanupErr, nil
}

func (s *Syncer) restore(ctx context.Context, edits ...*edit) error {
	var input []byte
	for _, e := range edits {
		if !e.isZero() {
			input = e.input(input)
		}
	}
	if len(input) == 0 {
		return nil
	}
	return s.applier.Restore(ctx, input)
}

// Remove removes the chains of all versions and the jumps to them. KUBE-MARK-MASQ stays where rules of others lead to it; KUBE-FIREWALL and
// KUBE-MARK-DROP are the kubelet's, too.
func (s *Syncer) Remove(ctx context.Context) error {
	s.written = false
	now, err := s.dump(ctx)
	if err != nil {
		return err
	}
	p := compare(&state{}, now, nil, s.askMaxStep(ctx))
	for _, at := range now.findUnused() {
		p.drop(at.table, []string{at.chain}, 1)
	}
	if p.isZero() {
		return nil
	}
	cleanupErr, err := s.apply(ctx, &p)
	return errors.Join(err, cleanupErr)
}
