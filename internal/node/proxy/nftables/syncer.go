//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// tries is how often the syncer attempts what other writers disturb. The last attempt does not make sure that no other process writes.
const tries = 5

// mostElements is how many elements one transaction changes, if more than one step has them. If any process, in whichever namespace,
// listens to nf_tables, the kernel keeps a notice of a page for each element until the transaction ends. With more elements a transaction
// is then twice as slow, and takes hundreds of MB.
const mostElements = 4_000

// Syncer keeps the kernel's table equal to the service ports. It is not safe for concurrent use.
type Syncer struct {
	rules  *Rules
	config proxy.Config
	table  nf.Table
	most   int // elements changed in one transaction

	state *State // what was written last; nil after a failure, and before the first sync
	// generation of the namespace's rules in which the table is what was written; 0: others wrote, to this table or to another. It is of
	// now if only syncers of the same Rules have written since.
	generation uint32
	said       map[string]string // chains with their rules, as the kernel says them after they were written
	unsure     map[string]Forget // clients who may have come to an endpoint that went, on their way while it did; by set
}

// NewSyncer makes a syncer of one family's table; it touches nothing before the first Sync.
func NewSyncer(config proxy.Config, rules *Rules) *Syncer {
	return &Syncer{rules: rules, config: config, table: newWriter(config).table(), most: mostElements,
		said: map[string]string{}, unsure: map[string]Forget{}}
}

// Configure changes what the table depends on; the next Sync writes what that changes. Family must stay as it is.
func (s *Syncer) Configure(c proxy.Config) {
	if !reflect.DeepEqual(c, s.config) {
		s.config = c
		s.ForceFull()
	}
}

// ForceFull makes the next Sync a full one.
func (s *Syncer) ForceFull() { s.state = nil }

// Sync makes the table that of the service ports, of which those of some services have changed since the last sync. The first sync, and the
// one after a failure, compare everything with what the kernel holds (a full sync); the others write what has changed.
func (s *Syncer) Sync(ctx context.Context, ports *service.Ports, changed []service.Key) (proxy.Result, error) {
	result := proxy.Result{Full: s.state == nil}
	state := s.state
	s.state = nil
	var err error
	var c Changes
	if result.Full {
		state, c, err = s.full(ctx, ports)
	} else {
		c = state.Update(portsOf(ports, changed))
		err = s.apply(ctx, &c, false)
	}
	if err != nil {
		return result, fmt.Errorf("write table %s: %w", s.table.Name, err)
	}
	result.CleanupErr = s.clean(ctx, &c)
	result.Written = map[string]int{TableName: c.elements()}
	result.Total = map[string]int{TableName: state.total}
	result.Unchanged = len(c.Steps)+len(c.GoneSets)+len(c.GoneChains) == 0
	result.NoLocalInternal, result.NoLocalExternal = state.Without()
	s.state = state
	return result, nil
}

func portsOf(ports *service.Ports, services []service.Key) map[service.Key][]service.Port {
	of := make(map[service.Key][]service.Port, len(services))
	for _, key := range services {
		of[key] = ports.Of(key)
	}
	return of
}

// full makes the table that of the service ports, whatever it is now. If the table must be rebuilt, a staging table forwards meanwhile. While
// both have a service port, the first that translates a flow does so for both.
func (s *Syncer) full(ctx context.Context, ports *service.Ports) (state *State, c Changes, err error) {
	staging := NewSyncer(s.config, s.rules)
	staging.table.Name, staging.most = stagingName, s.most
	state, c, err = s.compare(ctx, ports)
	if errors.Is(err, errOtherShape) {
		if _, _, err = staging.rebuild(ctx, ports); err == nil {
			state, c, err = s.rebuild(ctx, ports)
		}
	}
	if err == nil {
		err = s.removeStaging(ctx)
	}
	return state, c, err
}

// rebuild writes the whole table.
func (s *Syncer) rebuild(ctx context.Context, ports *service.Ports) (*State, Changes, error) {
	if err := remove(ctx, s.rules, s.table); err != nil {
		return nil, Changes{}, err
	}
	return s.compare(ctx, ports)
}

// removeStaging removes the staging table, also one of an older version that ended during a rebuild.
func (s *Syncer) removeStaging(ctx context.Context) error {
	var errs []error
	for _, name := range []string{stagingName, oldStagingName} {
		errs = append(errs, remove(ctx, s.rules, nf.Table{Family: s.table.Family, Name: name}))
	}
	return errors.Join(errs...)
}

var errOtherShape = errors.New("sets and chains have other shapes")

// compare makes the table that of the service ports by what differs. The error is errOtherShape where that cannot be.
func (s *Syncer) compare(ctx context.Context, ports *service.Ports) (state *State, c Changes, err error) {
	err = s.retryOnConflict(ctx, func(h heldTable) error {
		state = s.desiredState(ports, h.elements)
		c = state.replace(h)
		if h.hasOtherShape(&c.Steps[0]) {
			return errOtherShape
		}
		err := s.apply(ctx, &c, true)
		if isTooDeep(err) && len(c.GoneChains) > 0 {
			return errOtherShape
		}
		return err
	})
	if err != nil {
		return nil, Changes{}, err
	}
	return state, c, nil
}

// desiredState returns the state of all service ports, where a table holds elements.
func (s *Syncer) desiredState(ports *service.Ports, held Elements) *State {
	state := NewState(s.config, held)
	state.apply(portsOf(ports, ports.Services()), nil)
	return state
}

// isTooDeep reports whether the kernel refused it because chains would lead to each other in a circle, or through too many. Ours alone never
// do; where there are others in the table, they go with it.
func isTooDeep(err error) bool { return isOneOf(err, unix.EMLINK, unix.ELOOP) }

func isOneOf(err error, errnos ...unix.Errno) bool {
	return slices.ContainsFunc(errnos, func(e unix.Errno) bool { return errors.Is(err, e) })
}

// hasOtherShape reports whether the table has flags, or sets and chains of the names in a step that it cannot make what they are to be:
// those of another version, or of who took the table's name. Only a new table helps.
func (h *heldTable) hasOtherShape(frame *Step) bool {
	other := func(held map[string]string, name, want string) bool {
		is, there := held[name]
		return there && is != want
	}
	return h.flags != 0 || slices.ContainsFunc(frame.Sets, func(s nf.Set) bool { return other(h.sets, s.Name, s.Shape()) }) ||
		slices.ContainsFunc(frame.Chains, func(c nf.Chain) bool { return other(h.hooks, c.Name, c.Hook()) })
}

// retryOnConflict reads the table and calls do. It repeats both if others write in between.
func (s *Syncer) retryOnConflict(ctx context.Context, do func(heldTable) error) error {
	for try := range tries {
		h, err := s.read(ctx)
		if err != nil {
			return err
		}
		if s.generation = h.generation; try == tries-1 {
			s.generation = 0
		}
		if err = do(h); !errors.Is(err, unix.ERESTART) {
			return err
		}
	}
	return unix.ERESTART
}

// leftOver deletes sets and chains that are held and not wanted: they were in use when it was tried last, or are another's.
func (c *Changes) leftOver(h heldTable) {
	sets, chains := maps.Clone(h.sets), maps.Clone(h.chains)
	for _, set := range c.Steps[0].Sets {
		delete(sets, set.Name)
	}
	for _, chain := range c.Steps[0].Chains {
		delete(chains, chain.Name)
	}
	c.GoneSets, c.GoneChains = slices.Sorted(maps.Keys(sets)), slices.Sorted(maps.Keys(chains))
}

// Canary reports whether the table is still there. It is the cheapest look there is.
func (s *Syncer) Canary(ctx context.Context) (bool, error) {
	_, err := s.rules.Ask(ctx, s.table.Get())
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// Repair compares the table with what was written, if another process has written anything since, and restores what others have changed. It
// returns the names of the chains and sets that it wrote to. Before the first sync it does nothing.
func (s *Syncer) Repair(ctx context.Context) ([]string, error) {
	if s.state == nil {
		return nil, nil
	}
	state := s.state
	s.state = nil
	names, err := s.repair(ctx, state)
	if err != nil {
		return names, fmt.Errorf("repair table %s: %w", s.table.Name, err)
	}
	s.state = state
	return names, nil
}

func (s *Syncer) repair(ctx context.Context, state *State) (names []string, err error) {
	if err := s.forget(ctx, slices.Collect(maps.Values(s.unsure))); err != nil {
		return nil, err
	}
	clear(s.unsure)
	now, err := s.rules.now(ctx)
	if err != nil || now == s.rules.current(s.generation) && now != 0 {
		return nil, err
	}
	var c Changes
	err = s.retryOnConflict(ctx, func(h heldTable) error {
		c = state.Compare(h.elements)
		c.leftOver(h)
		names = s.damage(&c, h)
		var first []netlink.Message
		if h.flags != 0 {
			names, first = append(names, s.table.Name), []netlink.Message{s.table.Make()}
		}
		return s.apply(ctx, &c, true, first...)
	})
	if err != nil {
		return nil, err
	}
	return names, s.clean(ctx, &c)
}

// damage leaves of the chains and sets that a comparison writes those that are not as they were written, and names what others changed.
func (s *Syncer) damage(c *Changes, h heldTable) []string {
	whole := &c.Steps[0]
	whole.Sets = slices.DeleteFunc(whole.Sets, func(set nf.Set) bool {
		_, there := h.sets[set.Name]
		return there
	})
	whole.Chains = slices.DeleteFunc(whole.Chains, func(chain nf.Chain) bool {
		is, there := h.chains[chain.Name]
		return there && is == s.said[chain.Name]
	})
	return slices.DeleteFunc(c.names(), func(name string) bool { // those that were read in a race are not damaged, as far as is known
		_, there := h.chains[name]
		return there && s.said[name] == ""
	})
}

// names returns the chains and sets that changes write to, each once.
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
		n += c.Steps[i].elements()
	}
	return n
}

func (s *Step) elements() int { return len(s.Delete) + len(s.Add) }

// Remove removes the table, and staging tables.
func (s *Syncer) Remove(ctx context.Context) error {
	s.state = nil
	return errors.Join(remove(ctx, s.rules, s.table), s.removeStaging(ctx))
}

// unknown are the answers of a kernel that has no such table, or no nf_tables.
var unknown = []unix.Errno{unix.ENOENT, unix.EINVAL, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT}

func remove(ctx context.Context, k Kernel, table nf.Table) error {
	_, err := k.Ask(ctx, table.Get())
	if err == nil {
		err = k.Commit(ctx, []netlink.Message{table.Delete()}, 0)
	}
	if err != nil && !isOneOf(err, unknown...) {
		return fmt.Errorf("remove table %s: %w", table.Name, err)
	}
	return nil
}
