package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"packetwalk.dev/internal/lab/status"
)

// A Component is a piece of a lab that starts by itself. It may also be a [Changer], a [Reporter] or a [Stopper].
type Component interface {
	// Start brings the component up, or takes over what an earlier lab process left of it, and returns when others can rely on it.
	// What it keeps running goes on until ctx ends.
	Start(ctx context.Context) error
}

// A Changer is a component that differs with cluster.yaml.
type Changer interface {
	// Change brings the component from one cluster to another.
	Change(ctx context.Context, c Change) error
}

// A Reporter is a component that adds to a lab's status.
type Reporter interface {
	// Report is called only after Start has succeeded.
	Report(s *status.Status)
}

// A Stopper is a component that keeps something running.
type Stopper interface {
	// Stop waits for what Start keeps running, whose context has ended. What the component made stays, for the next lab process.
	Stop()
}

// A Repairer is a component that can make again what is missing of it.
type Repairer interface {
	// Repair returns what it repaired, in words. It is called only after Start has succeeded.
	Repair(ctx context.Context) ([]string, error)
}

// StartFunc is a component that only starts.
type StartFunc func(ctx context.Context) error

// Start calls the function.
func (f StartFunc) Start(ctx context.Context) error { return f(ctx) }

// A Unit is a component with its place in a graph.
type Unit struct {
	Name      string // in words, such as "the API server"
	Component Component
	After     []*Unit // those that must be up before it starts

	up  chan struct{} // closes when Start has succeeded
	end context.CancelFunc
}

// isUp reports whether the unit's Start has succeeded.
func (u *Unit) isUp() bool {
	select {
	case <-u.up:
		return true
	default:
		return false
	}
}

// A Graph starts, changes and stops units in the order of what they need.
type Graph struct{ units []*Unit }

// NewGraph returns the graph of units. Each comes after those that it needs, and otherwise in the order of the arguments. A unit that needs
// one which is not among them, or itself by way of others, is an error.
func NewGraph(units ...*Unit) (*Graph, error) {
	g := &Graph{}
	for i, u := range units {
		if slices.Contains(units[:i], u) {
			return nil, fmt.Errorf("component %q is twice in the graph", u.Name)
		}
		for _, needed := range u.After {
			if needed == nil || !slices.Contains(units, needed) {
				return nil, fmt.Errorf("component %q needs an unknown component%s", u.Name, nameOf(needed))
			}
		}
		u.up = make(chan struct{})
	}
	waiting := slices.Clone(units)
	for len(waiting) > 0 {
		i := slices.IndexFunc(waiting, func(u *Unit) bool { return g.missing(u) == nil })
		if i < 0 {
			return nil, fmt.Errorf("components need each other: %s", strings.Join(g.cycle(waiting[0]), " needs "))
		}
		g.units = append(g.units, waiting[i])
		waiting = slices.Delete(waiting, i, i+1)
	}
	return g, nil
}

func nameOf(u *Unit) string {
	if u == nil {
		return ""
	}
	return fmt.Sprintf(" %q", u.Name)
}

// missing returns the first unit that u needs and the graph does not have, nil for none.
func (g *Graph) missing(u *Unit) *Unit {
	for _, needed := range u.After {
		if !slices.Contains(g.units, needed) {
			return needed
		}
	}
	return nil
}

// cycle returns the names along a dependency cycle: it follows from u, unit by unit, a dependency that is not in the graph yet.
func (g *Graph) cycle(u *Unit) []string {
	var path []*Unit
	for !slices.Contains(path, u) {
		path = append(path, u)
		u = g.missing(u)
	}
	var names []string
	for _, on := range append(path[slices.Index(path, u):], u) {
		names = append(names, on.Name)
	}
	return names
}

// Components returns the components in their order.
func (g *Graph) Components() []Component {
	var all []Component
	for _, u := range g.units {
		all = append(all, u.Component)
	}
	return all
}

// Start starts all components, each as soon as those it needs are up. If one fails, or broken sends an error, all are stopped in the reverse
// order. The error names the component that failed. At the deadline it names every component that is still starting, and what it waits for.
func (g *Graph) Start(ctx context.Context, d Deadline, broken <-chan error) error {
	bounded, cancel := d.Bound(ctx)
	defer cancel()
	starting, fail := context.WithCancelCause(bounded)
	defer fail(nil)
	late := make([]error, len(g.units)) // those that are starting at the deadline
	go func() {
		select {
		case err := <-broken:
			fail(err)
		case <-starting.Done():
		}
	}()
	var all sync.WaitGroup
	for i, u := range g.units {
		life, end := context.WithCancel(ctx)
		u.end = end
		all.Go(func() {
			if !waitUp(starting, u.After) {
				return
			}
			err := StartBefore(starting, end, func() error { return u.Component.Start(life) })
			var tooLate *lateError
			switch {
			case err == nil:
				close(u.up)
			case errors.As(err, &tooLate):
				late[i] = tooLate.waitingFor(u.Name)
			default:
				fail(fmt.Errorf("%s: %w", u.Name, err))
			}
		})
	}
	all.Wait()
	err := context.Cause(starting)
	if err == nil {
		return nil
	}
	g.Stop()
	return errors.Join(append([]error{err}, late...)...)
}

// waitUp waits for units to be up, and reports false when ctx ended first.
func waitUp(ctx context.Context, units []*Unit) bool {
	for _, u := range units {
		select {
		case <-u.up:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// Change brings the components to another cluster, one after the other. The first error ends it, unless it is a [PartialError].
func (g *Graph) Change(ctx context.Context, c Change) error {
	return ChangeEach(ctx, c, g.Components()...)
}

// ChangeEach does what [Graph.Change] does for some components.
func ChangeEach(ctx context.Context, c Change, components ...Component) error {
	var partial error
	for _, one := range components {
		changer, ok := one.(Changer)
		if !ok {
			continue
		}
		if err := changer.Change(ctx, c); errors.As(err, new(PartialError)) {
			partial = err
		} else if err != nil {
			return err
		}
	}
	return partial
}

// Report asks the components that are up. Those that are starting are a problem of the lab; the others wait for them.
func (g *Graph) Report(s *status.Status) {
	isDown := func(u *Unit) bool { return !u.isUp() }
	var starting []string
	for _, u := range g.units {
		reporter, reports := u.Component.(Reporter)
		switch {
		case u.isUp() && reports:
			reporter.Report(s)
		case isDown(u) && !slices.ContainsFunc(u.After, isDown):
			starting = append(starting, u.Name)
		}
	}
	if len(starting) > 0 {
		s.Problems = append(s.Problems, "the lab starts, and waits for: "+strings.Join(starting, ", "))
	}
}

// Stop ends what this process does for the components, the last first. Those that are not up have nothing to wait for.
func (g *Graph) Stop() {
	for _, u := range slices.Backward(g.units) {
		u.end()
		if stopper, ok := u.Component.(Stopper); ok && u.isUp() {
			stopper.Stop()
		}
	}
}

// A PartialError is the error of a component that works where it stopped on its way. The other components still change, and the lab becomes
// what it reached.
type PartialError struct{ Err error }

func (e PartialError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e PartialError) Unwrap() error { return e.Err }
