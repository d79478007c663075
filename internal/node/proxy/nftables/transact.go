//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// apply makes the steps in as few transactions as the kernel takes; first is made with the first of them. If strict, it is over with
// ERESTART as soon as others write, too.
func (s *Syncer) apply(ctx context.Context, c *Changes, strict bool, first ...netlink.Message) error {
	var written []string
	most := s.most
	for steps := c.Steps; len(steps) > 0; {
		n, elements := 0, 0
		for n < len(steps) && (n == 0 || elements+steps[n].elements() <= most) {
			elements += steps[n].elements()
			n++
		}
		err := s.commit(ctx, steps[:n], strict, first)
		if isTooLarge(err) && n > 1 {
			most = elements / 4
			continue
		}
		if err != nil {
			return err
		}
		for i := range steps[:n] {
			for j := range steps[i].Chains {
				written = append(written, steps[i].Chains[j].Name)
			}
		}
		steps, first = steps[n:], nil
	}
	return s.listen(ctx, written)
}

// isTooLarge reports whether the kernel may take less in one transaction.
func isTooLarge(err error) bool {
	return errors.Is(err, unix.EMSGSIZE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM)
}

// commit makes steps in one transaction. Clients that are with endpoints which go are forgotten in it, and those that came to them
// meanwhile after it.
func (s *Syncer) commit(ctx context.Context, steps []Step, strict bool, first []netlink.Message) error {
	var forget []Forget
	for i := range steps {
		forget = append(forget, steps[i].Forget...)
		for j := range steps[i].Sets {
			delete(s.unsure, steps[i].Sets[j].Name)
		}
	}
	lost, err := s.deleteClients(ctx, forget)
	if err != nil {
		return err
	}
	messages := append(slices.Clip(first), s.messages(steps)...)
	err = s.transact(ctx, append(slices.Clip(messages), lost...), strict)
	if errors.Is(err, unix.ENOENT) && len(lost) > 0 { // the time of one of them was over
		err = s.transact(ctx, messages, strict)
	}
	if err != nil {
		return err
	}
	for _, f := range forget {
		s.unsure[f.Set] = f
	}
	return s.forget(ctx, forget)
}

// transact makes a transaction, and follows the generation of the rules. Others may have written since: if strict, that is ERESTART.
func (s *Syncer) transact(ctx context.Context, messages []netlink.Message, strict bool) error {
	if len(messages) == 0 {
		return nil
	}
	err := s.rules.commit(ctx, messages, &s.generation)
	if errors.Is(err, unix.ERESTART) && !strict {
		s.generation = 0
		err = s.rules.commit(ctx, messages, &s.generation)
	}
	return err
}

// listen notes what the kernel says of chains that were written, unless another process can have written to them since.
func (s *Syncer) listen(ctx context.Context, written []string) error {
	if len(written) == 0 {
		return nil
	}
	chains, err := s.readChains(ctx, written)
	if err != nil {
		return err
	}
	now, err := s.rules.now(ctx)
	for _, name := range written {
		if s.said[name] = chains[name]; now != s.generation {
			delete(s.said, name)
		}
	}
	return err
}

// messages returns those of several steps: sets, then all chains without rules, so that rules can lead to any, then rules, and elements.
// What is called by the kernel's hooks comes last.
func (s *Syncer) messages(steps []Step) (messages []netlink.Message) {
	id := uint32(0)
	var chains []*nf.Chain // each as the last step has it
	at := map[string]int{}
	for i := range steps {
		for j := range steps[i].Sets {
			if id == 0 {
				messages = append(messages, s.table.Make())
			}
			id++
			messages = append(messages, s.table.MakeSet(&steps[i].Sets[j], id))
		}
		for j := range steps[i].Chains {
			c := &steps[i].Chains[j]
			if k, twice := at[c.Name]; twice {
				chains[k] = c
				continue
			}
			at[c.Name] = len(chains)
			chains = append(chains, c)
		}
	}
	for _, c := range chains {
		messages = append(messages, s.table.MakeChain(c), s.table.FlushChain(c.Name))
	}
	for _, c := range chains {
		messages = append(messages, s.table.AddRules(c)...)
	}
	bySet(steps, func(s *Step) []Change { return s.Delete }, func(set *nf.Set, e []*nf.Element) {
		messages = append(messages, s.table.DeleteElements(set, e)...)
	})
	bySet(steps, func(s *Step) []Change { return s.Add }, func(set *nf.Set, e []*nf.Element) {
		messages = append(messages, s.table.AddElements(set, e)...)
	})
	return messages
}

// bySet calls f for the elements of each set, in the order of the sets' names.
func bySet(steps []Step, of func(*Step) []Change, f func(*nf.Set, []*nf.Element)) {
	elements := map[*nf.Set][]*nf.Element{}
	for i := range steps {
		changes := of(&steps[i])
		for j := range changes {
			set := changes[j].Set
			elements[set] = append(elements[set], &changes[j].Element)
		}
	}
	for _, set := range slices.SortedFunc(maps.Keys(elements), func(a, b *nf.Set) int { return strings.Compare(a.Name, b.Name) }) {
		f(set, elements[set])
	}
}

// deleteClients deletes the clients of removed endpoints.
func (s *Syncer) deleteClients(ctx context.Context, forget []Forget) (messages []netlink.Message, err error) {
	for _, f := range forget {
		elements, err := s.elements(ctx, f.Set)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var gone []*nf.Element
		for i := range elements {
			if !f.Keep[elements[i].Value] {
				gone = append(gone, &elements[i])
			}
		}
		messages = append(messages, s.table.DeleteElements(&nf.Set{Name: f.Set}, gone)...)
	}
	return messages, nil
}

// forget deletes the clients of endpoints that are no longer there, until there is none.
func (s *Syncer) forget(ctx context.Context, forget []Forget) error {
	for range tries {
		lost, err := s.deleteClients(ctx, forget)
		if err != nil || len(lost) == 0 {
			return err
		}
		err = s.transact(ctx, lost, false)
		if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: the time of one of them was over, and none is deleted
			return err
		}
	}
	return nil // who comes to what is gone while it is forgotten is unsure, and the next look's
}

// clean deletes what nothing leads to any more. Chains first: a rule of theirs may look into a set.
func (s *Syncer) clean(ctx context.Context, c *Changes) error {
	var messages []netlink.Message
	for _, name := range c.GoneChains {
		delete(s.said, name)
		messages = append(messages, s.table.FlushChain(name))
	}
	for _, name := range c.GoneChains {
		messages = append(messages, s.table.DeleteChain(name))
	}
	for _, name := range c.GoneSets {
		messages = append(messages, s.table.DeleteSet(name))
	}
	if err := s.transact(ctx, messages, false); err != nil {
		s.generation = 0 // the next comparison tries again
		return fmt.Errorf("delete unused chains and sets: %w", err)
	}
	return nil
}
