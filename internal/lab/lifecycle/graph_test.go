package lifecycle

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"packetwalk.dev/internal/lab/status"
)

// A recorder is a component that records what is done with it.
type recorder struct {
	name   string
	calls  *calls
	start  func(context.Context) error
	change error
}

type calls struct {
	mu  sync.Mutex
	all []string
}

func (n *calls) add(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, what)
}

func (p recorder) Start(ctx context.Context) error {
	p.calls.add("start " + p.name)
	if p.start != nil {
		return p.start(ctx)
	}
	return nil
}
func (p recorder) Change(context.Context, Change) error {
	p.calls.add("change " + p.name)
	return p.change
}
func (p recorder) Report(*status.Status) { p.calls.add("report " + p.name) }
func (p recorder) Stop()                 { p.calls.add("stop " + p.name) }

// units builds the units of a graph by their names.
type units []*Unit

func (us *units) add(name string, c Component, after ...string) {
	u := &Unit{Name: name, Component: c}
	for _, one := range *us {
		if slices.Contains(after, one.Name) {
			u.After = append(u.After, one)
		}
	}
	*us = append(*us, u)
}

func (us *units) graph(t *testing.T) *Graph {
	t.Helper()
	g, err := NewGraph(*us...)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// untilEnded waits as a component does that waits for something that never comes.
func untilEnded(ctx context.Context) error {
	<-ctx.Done()
	return errors.New("kube-apiserver is not ready")
}

func TestGraphInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n calls
		var u units
		slow := func(context.Context) error { time.Sleep(time.Second); return nil }
		u.add("a", recorder{name: "a", calls: &n, start: slow})
		u.add("b", recorder{name: "b", calls: &n}, "a")
		u.add("c", recorder{name: "c", calls: &n, change: PartialError{Err: errors.New("one node stays")}}, "b")
		u.add("d", recorder{name: "d", calls: &n}, "a", "c")
		g := u.graph(t)
		if err := g.Start(t.Context(), NewDeadline(time.Minute), nil); err != nil {
			t.Fatal(err)
		}
		if err := g.Change(t.Context(), Change{}); err == nil || !errors.As(err, new(PartialError)) {
			t.Errorf("change: %v", err)
		}
		var s status.Status
		g.Report(&s)
		g.Stop()
		want := strings.Fields("start a start b start c start d change a change b change c change d report a report b report c report d stop d stop c stop b stop a")
		if got := strings.Fields(strings.Join(n.all, " ")); !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}
	})
}

// TestSlowStart: a component may take nearly all of the time by itself, whatever the others took.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n calls
		var u units
		slow := func(context.Context) error { time.Sleep(72 * time.Second); return nil }
		u.add("the API server", recorder{name: "api", calls: &n, start: slow})
		u.add("the nodes", recorder{name: "nodes", calls: &n, start: slow}, "the API server")
		g := u.graph(t)
		if err := g.Start(t.Context(), NewDeadline(DefaultTimeout), nil); err != nil {
			t.Error(err)
		}
		g.Stop()
	})
}

// TestStartBefore: what was started in time lives on after the bound; what was not is ended, and the error has its last words.
func TestStartBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bounded, cancel := NewDeadline(time.Minute).Bound(t.Context())
		defer cancel()
		life, end := context.WithCancel(t.Context())
		if err := StartBefore(bounded, end, func() error { time.Sleep(50 * time.Second); return nil }); err != nil {
			t.Error(err)
		}
		err := StartBefore(bounded, end, func() error { return untilEnded(life) })
		if want := "not done within 1m0s; --timeout allows more time: kube-apiserver is not ready"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	})
}

// TestChangeEndsAtTheFirstThatFails: a component after one that fails does not change.
func TestChangeEndsAtTheFirstThatFails(t *testing.T) {
	var n calls
	var u units
	u.add("a", recorder{name: "a", calls: &n, change: errors.New("no")})
	u.add("b", recorder{name: "b", calls: &n})
	g := u.graph(t)
	if err := g.Change(t.Context(), Change{}); err == nil || !slices.Equal(n.all, []string{"change a"}) {
		t.Errorf("%v %q", err, n.all)
	}
}

// TestStartEnds: Start returns whatever a component does, and its error names the component and what that waited for.
func TestStartEnds(t *testing.T) {
	for _, c := range []struct {
		name   string
		start  func(context.Context) error
		broken error
		want   []string
	}{
		{"fails", func(context.Context) error { return errors.New("no room") }, nil, []string{"the plane: no room"}},
		{"hangs and says why", untilEnded, nil,
			[]string{"not done within 200ms; --timeout allows more time", "still waiting for the plane: kube-apiserver is not ready"}},
		{"hangs and cannot be ended", func(context.Context) error { select {} }, nil,
			[]string{"not done within 200ms; --timeout allows more time", "still waiting for the plane"}},
		{"a process is crash-looping", untilEnded, errors.New("etcd has ended 3 times in a row"), []string{"etcd has ended 3 times in a row"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var n calls
			var u units
			u.add("fine", recorder{name: "fine", calls: &n})
			u.add("the plane", recorder{name: "plane", calls: &n, start: c.start}, "fine")
			u.add("nodes", recorder{name: "nodes", calls: &n}, "the plane")
			g := u.graph(t)
			broken := make(chan error, 1)
			if c.broken != nil {
				broken <- c.broken
			}
			err := g.Start(t.Context(), NewDeadline(200*time.Millisecond), broken)
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %q in it", err, want)
				}
			}
			if slices.Contains(n.all, "start nodes") || n.all[len(n.all)-1] != "stop fine" {
				t.Errorf("%q", n.all)
			}
		})
	}
}

// TestReportWhileStarting: a status names what is starting, without what waits for that, and asks only what is up.
func TestReportWhileStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n calls
		var u units
		u.add("a", recorder{name: "a", calls: &n})
		u.add("the control plane", recorder{name: "plane", calls: &n, start: untilEnded}, "a")
		u.add("nodes", recorder{name: "nodes", calls: &n}, "the control plane")
		g := u.graph(t)
		go func() { _ = g.Start(t.Context(), NewDeadline(time.Minute), nil) }()
		synctest.Wait()
		var s status.Status
		g.Report(&s)
		if want := []string{"the lab starts, and waits for: the control plane"}; !slices.Equal(s.Problems, want) ||
			!slices.Contains(n.all, "report a") {
			t.Errorf("%q %q", s.Problems, n.all)
		}
		time.Sleep(2 * time.Minute)
	})
}

// TestNewGraph: units are ordered by what they need, and what cannot be ordered is an error.
func TestNewGraph(t *testing.T) {
	for _, test := range []struct {
		name  string
		needs []string // of each unit: its name, and those that it needs
		order string
		err   string
	}{
		{"in order", []string{"a", "b a", "c b"}, "a b c", ""},
		{"out of order", []string{"a c", "b", "c b"}, "b c a", ""},
		{"unknown", []string{"a", "b x"}, "", `component "b" needs an unknown component "x"`},
		{"twice", []string{"a", "b", "a"}, "", `component "a" is twice in the graph`},
		{"itself", []string{"a a"}, "", "components need each other: a needs a"},
		{"circular", []string{"a b", "b c", "c b"}, "", "components need each other: b needs c needs b"},
	} {
		t.Run(test.name, func(t *testing.T) {
			named := map[string]*Unit{}
			unit := func(name string) *Unit {
				if named[name] == nil {
					named[name] = &Unit{Name: name}
				}
				return named[name]
			}
			var all []*Unit
			for _, line := range test.needs {
				names := strings.Fields(line)
				u := unit(names[0])
				for _, needed := range names[1:] {
					u.After = append(u.After, unit(needed))
				}
				all = append(all, u)
			}
			g, err := NewGraph(all...)
			if test.err != "" {
				if err == nil || err.Error() != test.err {
					t.Errorf("error %v, want %s", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var order []string
			for _, u := range g.units {
				order = append(order, u.Name)
			}
			if got := strings.Join(order, " "); got != test.order {
				t.Errorf("order %s, want %s", got, test.order)
			}
		})
	}
	if _, err := NewGraph(&Unit{Name: "a", After: []*Unit{nil}}); err == nil {
		t.Error("no error for a nil unit")
	}
}

// TestOptionalMethods: a component that only starts is neither changed, asked nor stopped.
func TestOptionalMethods(t *testing.T) {
	var u units
	u.add("a", StartFunc(func(context.Context) error { return nil }))
	g := u.graph(t)
	if err := g.Start(t.Context(), NewDeadline(time.Minute), nil); err != nil {
		t.Fatal(err)
	}
	var s status.Status
	g.Report(&s)
	if err := g.Change(t.Context(), Change{}); err != nil || len(s.Problems) != 0 {
		t.Errorf("%v %q", err, s.Problems)
	}
	g.Stop()
}
