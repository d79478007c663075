package serviceproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// Applier reads and writes the kernel's iptables of one family.
type Applier interface {
	// Restore feeds the input to iptables-restore --noflush: each table changes whole or not at all.
	Restore(ctx context.Context, input []byte) error
	// Save dumps one table as iptables-save -t does, without counters.
	Save(ctx context.Context, table string) ([]byte, error)
}

// Result tells what a sync did.
type Result struct {
	Full bool
	// Written counts the rules written, Total those that the rule set has, each by table.
	Written, Total map[string]int
	// NoLocalInternal and NoLocalExternal are those of the RuleSet.
	NoLocalInternal, NoLocalExternal int
	// CleanupErr: chains out of use could not be deleted. They are harmless, and the next full sync tries again.
	CleanupErr error
}

// Syncer keeps the kernel's rules equal to the service ports. It is not safe for concurrent use.
type Syncer struct {
	applier Applier
	config  Config

	set     *RuleSet // what was written last; nil after a failure, and before the first sync
	written image
	readsAs image // chains that the kernel's tools print differently from us, as read back
}

// NewSyncer makes a syncer; it touches nothing before the first Sync.
func NewSyncer(config Config, applier Applier) (*Syncer, error) {
	if _, err := ageOf(config.Rules); err != nil {
		return nil, err
	}
	return &Syncer{applier: applier, config: config, readsAs: image{}}, nil
}

// Sync makes the rules those of the service ports. The first sync, and the one after a failure, writes all own chains and jumps (a full
// sync); the others write only the chains that changed.
func (s *Syncer) Sync(ctx context.Context, ports []service.Port) (Result, error) {
	set, err := Generate(s.config, ports)
	if err != nil {
		return Result{}, err
	}
	want := render(set)
	full := s.set == nil
	var p plan
	if full {
		now, err := s.dump(ctx)
		if err != nil {
			return Result{Full: true}, err
		}
		p = planFull(set, now)
	} else {
		p = planPartial(set, want, s.written)
	}
	result := Result{Full: full, Written: p.rules, Total: map[string]int{},
		NoLocalInternal: set.NoLocalInternal, NoLocalExternal: set.NoLocalExternal}
	for i := range set.Tables {
		for j := range set.Tables[i].Chains {
			result.Total[set.Tables[i].Name] += len(set.Tables[i].Chains[j].Rules)
		}
	}
	s.set = nil
	if result.CleanupErr, err = s.apply(ctx, &p); err != nil {
		return result, err
	}
	for _, edit := range p.edits {
		for i := range edit.Replace {
			delete(s.readsAs, place{edit.Table, edit.Replace[i].Name})
		}
	}
	s.set, s.written = set, want
	return result, nil
}

// Configure changes what the rules depend on; the next Sync writes what that changes. Family and Rules must stay as they are.
func (s *Syncer) Configure(c Config) { s.config = c }

// ForceFull makes the next Sync a full one.
func (s *Syncer) ForceFull() { s.set = nil }

// Canary tells whether the chain that only marks our presence is still in the mangle table. When it is gone, something has flushed the
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
	if s.set == nil {
		return nil, nil
	}
	now, err := s.dump(ctx)
	if err != nil {
		return nil, err
	}
	p := planRepair(s.set, s.written, s.readsAs, now)
	if p.isZero() {
		return nil, nil
	}
	if _, err := s.apply(ctx, &p); err != nil {
		s.set = nil
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
func (s *Syncer) repaired(p *plan, before, after dumped) []string {
	var names []string
	for _, edit := range p.edits {
		for i := range edit.Replace {
			at := place{edit.Table, edit.Replace[i].Name}
			if after[at] != s.written[at] && strings.Count(after[at], "\n") == strings.Count(s.written[at], "\n") {
				s.readsAs[at] = after[at]
			}
			if old, there := before[at]; !there || old != after[at] {
				names = append(names, at.table+"/"+at.chain)
			}
		}
		for _, j := range edit.Insert {
			names = append(names, edit.Table+"/"+j.Chain)
		}
	}
	return names
}

func (s *Syncer) dump(ctx context.Context) (dumped, error) {
	var dumps [][]byte
	for _, table := range []string{iptables.Filter, iptables.Mangle, iptables.NAT} {
		dump, err := s.applier.Save(ctx, table)
		if err != nil {
			return nil, err
		}
		dumps = append(dumps, dump)
	}
	return readDump(dumps...), nil
}

// apply makes the plan's edits, then its cleanup, whose failure is not the edits'.
func (s *Syncer) apply(ctx context.Context, p *plan) (cleanupErr, err error) {
	if input := iptables.AppendRestore(nil, p.edits); len(input) > 0 {
		if err := s.applier.Restore(ctx, input); err != nil {
			return nil, fmt.Errorf("write rules: %w", err)
		}
	}
	if input := iptables.AppendRestore(nil, p.cleanup); len(input) > 0 {
		if err := s.applier.Restore(ctx, input); err != nil {
			return fmt.Errorf("delete unused chains: %w", err), nil
		}
	}
	return nil, nil
}

// Remove removes the chains of all ages and the jumps to them; not KUBE-MARK-MASQ, which others may use.
func (s *Syncer) Remove(ctx context.Context) error {
	s.set = nil
	now, err := s.dump(ctx)
	if err != nil {
		return err
	}
	empty := &RuleSet{Tables: []iptables.Table{{Name: iptables.Filter}, {Name: iptables.Mangle}, {Name: iptables.NAT}}}
	p := planFull(empty, now)
	for i := range p.cleanup {
		edit := &p.cleanup[i]
		if _, there := now[place{edit.Table, chainCanary}]; there {
			edit.Delete = append(edit.Delete, chainCanary)
		}
	}
	if p.isZero() {
		return nil
	}
	cleanupErr, err := s.apply(ctx, &p)
	return errors.Join(err, cleanupErr)
}
