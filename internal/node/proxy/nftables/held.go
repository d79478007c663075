//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// heldTable is what the kernel's table has.
type heldTable struct {
	generation uint32            // 0: others wrote while it was read
	flags      uint32            // of the table
	sets       map[string]string // their shapes
	hooks      map[string]string // of chains
	chains     map[string]string // with their rules, as the kernel says them
	elements   Elements
}

// read reads the table; where there is none it has nothing.
func (s *Syncer) read(ctx context.Context) (h heldTable, err error) {
	before, err := s.rules.now(ctx)
	if err == nil {
		h, err = s.readAll(ctx)
	}
	if errors.Is(err, unix.ENOENT) {
		h, err = heldTable{}, nil
	}
	if err == nil {
		h.generation, err = s.rules.now(ctx)
	}
	if err != nil {
		return heldTable{}, fmt.Errorf("read table %s: %w", s.table.Name, err)
	}
	if h.generation != before {
		h.generation = 0
	}
	return h, nil
}

func (s *Syncer) readAll(ctx context.Context) (h heldTable, err error) {
	var chains []netlink.Message
	for _, ask := range []struct {
		request netlink.Message
		take    func([]netlink.Message) error
	}{
		{s.table.Get(), func(m []netlink.Message) (err error) { h.flags, err = s.table.Flags(m); return err }},
		{s.table.ListSets(), func(m []netlink.Message) (err error) { h.sets, err = s.table.Sets(m); return err }},
		{s.table.ListChains(), func(m []netlink.Message) (err error) { chains = m; h.hooks, err = s.table.Hooks(m); return err }},
	} {
		answers, err := s.rules.Ask(ctx, ask.request)
		if err == nil {
			err = ask.take(answers)
		}
		if err != nil {
			return h, err
		}
	}
	if h.chains, err = s.withRules(ctx, chains, ""); err != nil {
		return h, err
	}
	h.elements = Elements{}
	w := newWriter(s.config)
	sets := w.sets()
	for name, shape := range h.sets {
		set := w.fanSet(name)
		if _, ok := fanOfSet(name); ok && shape == set.Shape() {
			sets = append(sets, set)
		}
	}
	for i := range sets {
		set := &sets[i]
		if _, there := h.sets[set.Name]; there {
			if h.elements[set.Name], err = s.values(ctx, set); err != nil {
				return h, err
			}
		}
	}
	return h, nil
}

// values returns the elements of a set that is no map of clients.
func (s *Syncer) values(ctx context.Context, set *nf.Set) (map[string]Value, error) {
	elements, err := s.elements(ctx, set.Name)
	if err != nil {
		return nil, err
	}
	values := make(map[string]Value, len(elements))
	for i := range elements {
		e := &elements[i]
		v := Value{e.Value, e.Comment}
		if set.Ranges {
			v.Value = e.End
		}
		values[e.Key] = v
	}
	return values, nil
}

func (s *Syncer) elements(ctx context.Context, set string) ([]nf.Element, error) {
	answers, err := s.rules.Ask(ctx, s.table.ListElements(set))
	if err != nil {
		return nil, err
	}
	return nf.Elements(answers)
}

// few is how many chains are asked for one by one.
const few = 8

// readChains reads chains with their rules: those that are named, or all if they are many.
func (s *Syncer) readChains(ctx context.Context, names []string) (map[string]string, error) {
	if len(names) > few {
		names = []string{""}
	}
	chains := map[string]string{}
	for _, name := range names {
		ask := s.table.ListChains()
		if name != "" {
			ask = s.table.GetChain(name)
		}
		answers, err := s.rules.Ask(ctx, ask)
		if err != nil {
			return nil, err
		}
		one, err := s.withRules(ctx, answers, name)
		if err != nil {
			return nil, err
		}
		maps.Copy(chains, one)
	}
	return chains, nil
}

// withRules returns the chains that the kernel listed, with the rules of one chain, or of all if it has no name.
func (s *Syncer) withRules(ctx context.Context, told []netlink.Message, name string) (map[string]string, error) {
	chains, err := s.table.Chains(told)
	if err != nil {
		return nil, err
	}
	answers, err := s.rules.Ask(ctx, s.table.ListRules(name))
	if err != nil {
		return nil, err
	}
	rules, err := s.table.Rules(answers)
	for chain, base := range chains {
		chains[chain] = "chain" + base + rules[chain] // never empty
	}
	return chains, err
}
