package servicemaps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/node/serviceproxy"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// Kernel is nf_tables of the node's network namespace.
type Kernel interface {
	// Commit makes a transaction: all messages or none.
	Commit(ctx context.Context, messages []netlink.Message) error
	// Ask sends a request and gives the answers. The error is ENOENT for what is not there.
	Ask(ctx context.Context, request netlink.Message) ([]netlink.Message, error)
}

// most is how many elements are changed in one transaction; more go into several.
const most = 200_000

// Syncer keeps the kernel's table equal to the service ports. It is not safe for concurrent use.
type Syncer struct {
	kernel Kernel
	config serviceproxy.Config
	table  nf.Table

	state *State            // what was written last; nil after a failure, and before the first sync
	rules map[string]string // of each chain, as the kernel says them after they were written
}

// NewSyncer makes a syncer; it touches nothing before the first Sync.
func NewSyncer(config serviceproxy.Config, kernel Kernel) *Syncer {
	return &Syncer{kernel: kernel, config: config, table: newWriter(config).table()}
}

// Configure changes what the table depends on; the next Sync writes what that changes. Family must stay as it is.
func (s *Syncer) Configure(c serviceproxy.Config) {
	if !reflect.DeepEqual(c, s.config) {
		s.config = c
		s.ForceFull()
	}
}

// ForceFull makes the next Sync a full one.
func (s *Syncer) ForceFull() { s.state = nil }

// Sync makes the table that of the service ports. The first sync, and the one after a failure, compare everything with what the kernel
// holds (a full sync); the others write what has changed.
func (s *Syncer) Sync(ctx context.Context, ports []service.Port) (serviceproxy.Result, error) {
	result := serviceproxy.Result{Full: s.state == nil}
	state := s.state
	s.state = nil
	var err error
	var c Changes
	if result.Full {
		state, c, err = s.compared(ctx, ports)
	} else {
		c = state.Update(ports)
	}
	if err == nil {
		err = s.apply(ctx, &c)
	}
	if errors.Is(err, unix.EEXIST) && result.Full { // what is there is of another making
		state = NewState(s.config, nil)
		state.Update(ports)
		c = state.Compare(nil)
		err = s.apply(ctx, &c, s.table.Make(), s.table.Delete())
	}
	if err != nil {
		return result, fmt.Errorf("write table %s: %w", s.table.Name, err)
	}
	result.CleanupErr = s.clean(ctx, &c)
	result.Written = map[string]int{TableName: c.elements()}
	result.Total = map[string]int{TableName: state.count()}
	result.NoLocalInternal, result.NoLocalExternal = state.Without()
	s.state = state
	return result, nil
}

// compared reads the table and compares it with the service ports.
func (s *Syncer) compared(ctx context.Context, ports []service.Port) (*State, Changes, error) {
	held, err := s.read(ctx)
	if err != nil {
		return nil, Changes{}, err
	}
	state := NewState(s.config, held.elements)
	state.Update(ports)
	c := state.Compare(held.elements)
	c.leftOver(held)
	return state, c, nil
}

// leftOver deletes sets and chains that are held and not wanted: they were in use when it was tried last, or are another's.
func (c *Changes) leftOver(h held) {
	sets, chains := maps.Clone(h.sets), maps.Clone(h.chains)
	for _, set := range c.Steps[0].Sets {
		delete(sets, set.Name)
	}
	for _, chain := range c.Steps[0].Chains {
		delete(chains, chain.Name)
	}
	c.GoneSets, c.GoneChains = slices.Sorted(maps.Keys(sets)), slices.Sorted(maps.Keys(chains))
}

// Canary tells whether the table is still there. It is the cheapest look there is.
func (s *Syncer) Canary(ctx context.Context) (bool, error) {
	_, err := s.kernel.Ask(ctx, s.table.Get())
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// Repair compares the table with what was written and puts back what others have changed. It returns the names of the chains and sets that
// it wrote to. Before the first sync it does nothing.
func (s *Syncer) Repair(ctx context.Context) ([]string, error) {
	if s.state == nil {
		return nil, nil
	}
	state := s.state
	s.state = nil
	held, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	c := state.Compare(held.elements)
	c.leftOver(held)
	whole := &c.Steps[0]
	whole.Sets = slices.DeleteFunc(whole.Sets, func(set nf.Set) bool { return held.sets[set.Name] })
	whole.Chains = slices.DeleteFunc(whole.Chains, func(chain nf.Chain) bool {
		return held.chains[chain.Name] && held.rules[chain.Name] == s.rules[chain.Name]
	})
	names := c.names()
	if err := s.apply(ctx, &c); err != nil {
		return nil, fmt.Errorf("repair table %s: %w", s.table.Name, err)
	}
	s.state = state
	return names, s.clean(ctx, &c)
}

// names are the chains and sets that changes write to, each once.
func (c *Changes) names() []string {
	names := map[string]bool{}
	for i := range c.Steps {
		step := &c.Steps[i]
		for j := range step.Sets {
			names[step.Sets[j].Name] = true
		}
		for j := range step.Chains {
			names[step.Chains[j].Name] = true
		}
		for _, change := range slices.Concat(step.Delete, step.Add) {
			names[change.Set.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func (c *Changes) elements() (n int) {
	for i := range c.Steps {
		n += len(c.Steps[i].Add) + len(c.Steps[i].Delete)
	}
	return n
}

func (s *State) count() (n int) {
	for _, keys := range s.claims {
		n += len(keys)
	}
	return n
}

// apply makes the steps in as few transactions as the kernel takes; first is made with the first of them.
func (s *Syncer) apply(ctx context.Context, c *Changes, first ...netlink.Message) error {
	wrote := false
	for steps := c.Steps; len(steps) > 0; {
		n, elements := 0, 0
		for n < len(steps) && (n == 0 || elements < most) {
			elements += len(steps[n].Add) + len(steps[n].Delete)
			wrote = wrote || len(steps[n].Chains) > 0
			n++
		}
		if err := s.commit(ctx, steps[:n], first); err != nil {
			return err
		}
		steps, first = steps[n:], nil
	}
	if !wrote {
		return nil
	}
	var err error
	s.rules, err = s.readRules(ctx)
	return err
}

// commit makes steps in one transaction. Clients that are with endpoints which go are forgotten in it, and those that came to them
// meanwhile after it.
func (s *Syncer) commit(ctx context.Context, steps []Step, first []netlink.Message) error {
	var forget []Forget
	for i := range steps {
		forget = append(forget, steps[i].Forget...)
	}
	lost, err := s.lost(ctx, forget)
	if err != nil {
		return err
	}
	messages := append(append(first, s.messages(steps)...), lost...)
	if len(messages) == 0 {
		return nil
	}
	if err := s.kernel.Commit(ctx, messages); err != nil {
		return err
	}
	if lost, err = s.lost(ctx, forget); err == nil && len(lost) > 0 {
		err = s.kernel.Commit(ctx, lost)
		if errors.Is(err, unix.ENOENT) { // their time was over
			err = nil
		}
	}
	return err
}

// messages are those of several steps: sets, then all chains without rules, so that rules can lead to any, then rules, and elements. What
// is called by the kernel's hooks comes last.
func (s *Syncer) messages(steps []Step) (messages []netlink.Message) {
	id := uint32(0)
	var chains []*nf.Chain
	for i := range steps {
		for j := range steps[i].Sets {
			if id == 0 {
				messages = append(messages, s.table.Make())
			}
			id++
			messages = append(messages, s.table.MakeSet(&steps[i].Sets[j], id))
		}
		for j := range steps[i].Chains {
			chains = append(chains, &steps[i].Chains[j])
		}
	}
	for _, c := range chains {
		messages = append(messages, s.table.MakeChain(c), s.table.FlushChain(c.Name))
	}
	for _, c := range chains {
		messages = append(messages, s.table.AddRules(c)...)
	}
	var deleted, added []Change
	for i := range steps {
		deleted, added = append(deleted, steps[i].Delete...), append(added, steps[i].Add...)
	}
	bySet(deleted, func(set *nf.Set, e []nf.Element) { messages = append(messages, s.table.DeleteElements(set, e)...) })
	bySet(added, func(set *nf.Set, e []nf.Element) { messages = append(messages, s.table.AddElements(set, e)...) })
	return messages
}

// bySet calls f for the elements of each set, in the order of the sets' names.
func bySet(changes []Change, f func(*nf.Set, []nf.Element)) {
	sets := map[string]*nf.Set{}
	elements := map[string][]nf.Element{}
	for i := range changes {
		name := changes[i].Set.Name
		sets[name] = changes[i].Set
		elements[name] = append(elements[name], changes[i].Element)
	}
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		f(sets[name], elements[name])
	}
}

// lost deletes the clients of endpoints that are no longer there.
func (s *Syncer) lost(ctx context.Context, forget []Forget) (messages []netlink.Message, err error) {
	for _, f := range forget {
		elements, err := s.elements(ctx, f.Set)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, err
		}
		elements = slices.DeleteFunc(elements, func(e nf.Element) bool { return f.Keep[e.Value] })
		messages = append(messages, s.table.DeleteElements(&nf.Set{Name: f.Set}, elements)...)
	}
	return messages, nil
}

// clean deletes what nothing leads to any more. Chains first: a rule of theirs may look into a set.
func (s *Syncer) clean(ctx context.Context, c *Changes) error {
	var messages []netlink.Message
	for _, name := range c.GoneChains {
		messages = append(messages, s.table.FlushChain(name))
	}
	for _, name := range c.GoneChains {
		messages = append(messages, s.table.DeleteChain(name))
	}
	for _, name := range c.GoneSets {
		messages = append(messages, s.table.DeleteSet(name))
	}
	if len(messages) == 0 {
		return nil
	}
	if err := s.kernel.Commit(ctx, messages); err != nil {
		return fmt.Errorf("delete unused chains and sets: %w", err)
	}
	return nil
}

// held is what the kernel's table has.
type held struct {
	sets, chains map[string]bool
	rules        map[string]string
	elements     Elements
}

func (s *Syncer) read(ctx context.Context) (h held, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read table %s: %w", s.table.Name, err)
		}
	}()
	h = held{sets: map[string]bool{}, chains: map[string]bool{}, elements: Elements{}}
	for request, names := range map[*netlink.Message]map[string]bool{ptr(s.table.ListSets()): h.sets, ptr(s.table.ListChains()): h.chains} {
		answers, err := s.kernel.Ask(ctx, *request)
		if errors.Is(err, unix.ENOENT) {
			return held{}, nil
		}
		if err != nil {
			return held{}, err
		}
		all, err := s.table.Names(answers)
		if err != nil {
			return held{}, err
		}
		for _, name := range all {
			names[name] = true
		}
	}
	sets := newWriter(s.config).sets()
	for i := range sets {
		set := &sets[i]
		if !h.sets[set.Name] {
			continue
		}
		elements, err := s.elements(ctx, set.Name)
		if err != nil {
			return held{}, err
		}
		h.elements[set.Name] = make(map[string]Value, len(elements))
		for _, e := range elements {
			v := Value{e.Value, e.Comment}
			if set.Ranges {
				v.Value = e.End
			}
			h.elements[set.Name][e.Key] = v
		}
	}
	h.rules, err = s.readRules(ctx)
	return h, err
}

func ptr[T any](v T) *T { return &v }

func (s *Syncer) elements(ctx context.Context, set string) ([]nf.Element, error) {
	answers, err := s.kernel.Ask(ctx, s.table.ListElements(set))
	if err != nil {
		return nil, err
	}
	return nf.Elements(answers)
}

func (s *Syncer) readRules(ctx context.Context) (map[string]string, error) {
	answers, err := s.kernel.Ask(ctx, s.table.ListRules(""))
	if err != nil {
		return nil, err
	}
	return s.table.Rules(answers)
}

// Remove removes the table.
func (s *Syncer) Remove(ctx context.Context) error {
	s.state = nil
	there, err := s.Canary(ctx)
	if err == nil && there {
		err = s.kernel.Commit(ctx, []netlink.Message{s.table.Delete()})
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove table %s: %w", s.table.Name, err)
	}
	return nil
}
