package lab

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

// noted is a part that notes what is done with it.
type noted struct {
	name   string
	notes  *notes
	start  func(context.Context) error
	change error
}

type notes struct {
	mu  sync.Mutex
	all []string
}

func (n *notes) add(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, what)
}

func (p noted) Start(ctx context.Context) error {
	p.notes.add("start " + p.name)
	if p.start != nil {
		return p.start(ctx)
	}
	return nil
}
func (p noted) Change(context.Context, change) error {
	p.notes.add("change " + p.name)
	return p.change
}
func (p noted) Report(*status.Status) { p.notes.add("report " + p.name) }
func (p noted) Stop()                 { p.notes.add("stop " + p.name) }

// untilEnded waits as a part does that waits for something that never comes.
func untilEnded(ctx context.Context) error {
	<-ctx.Done()
	return errors.New("kube-apiserver is not ready")
}

func TestPartsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n notes
		var ps parts
		slow := func(context.Context) error { time.Sleep(time.Second); return nil }
		ps.place("a", noted{name: "a", notes: &n, start: slow})
		ps.place("b", noted{name: "b", notes: &n}, "a")
		ps.place("c", noted{name: "c", notes: &n, change: unfinished{errors.New("one node stays")}}, "b")
		ps.place("d", noted{name: "d", notes: &n}, "a", "c")
		if err := ps.start(t.Context(), newDeadline(time.Minute), nil); err != nil {
			t.Fatal(err)
		}
		if err := ps.change(t.Context(), change{}); err == nil || !errors.As(err, new(unfinished)) {
			t.Errorf("change: %v", err)
		}
		var s status.Status
		ps.report(&s)
		ps.stop()
		want := strings.Fields("start a start b start c start d change a change b change c change d report a report b report c report d stop d stop c stop b stop a")
		if got := strings.Fields(strings.Join(n.all, " ")); !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}
	})
}

// TestSlowStart: a part may take nearly all of the time by itself, whatever the others took.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n notes
		var ps parts
		slow := func(context.Context) error { time.Sleep(72 * time.Second); return nil }
		ps.place("the API server", noted{name: "api", notes: &n, start: slow})
		ps.place("the nodes", noted{name: "nodes", notes: &n, start: slow}, "the API server")
		if err := ps.start(t.Context(), newDeadline(DefaultTimeout), nil); err != nil {
			t.Error(err)
		}
		ps.stop()
	})
}

// TestStartBefore: what was started in time lives on after the bound; what was not is ended, and the error has its last words.
func TestStartBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bounded, cancel := newDeadline(time.Minute).bound(t.Context())
		defer cancel()
		life, end := context.WithCancel(t.Context())
		if err := startBefore(bounded, end, func() error { time.Sleep(50 * time.Second); return nil }); err != nil {
			t.Error(err)
		}
		err := startBefore(bounded, end, func() error { return untilEnded(life) })
		if want := "not done within 1m0s; --timeout allows more time: kube-apiserver is not ready"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	})
}

func TestChangeEndsAtTheFirstThatFails(t *testing.T) {
	var n notes
	var ps parts
	ps.place("a", noted{name: "a", notes: &n, change: errors.New("no")})
	ps.place("b", noted{name: "b", notes: &n})
	if err := ps.change(t.Context(), change{}); err == nil || !slices.Equal(n.all, []string{"change a"}) {
		t.Errorf("%v %q", err, n.all)
	}
}

// TestStartEnds: whatever a part does, start comes back, and says which part it waited for and what that waited for.
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
			var n notes
			var ps parts
			ps.place("fine", noted{name: "fine", notes: &n})
			ps.place("the plane", noted{name: "plane", notes: &n, start: c.start}, "fine")
			ps.place("nodes", noted{name: "nodes", notes: &n}, "the plane")
			broken := make(chan error, 1)
			if c.broken != nil {
				broken <- c.broken
			}
			err := ps.start(t.Context(), newDeadline(200*time.Millisecond), broken)
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

// TestReportWhileStarting: a status names what is waited for, and asks only what is up.
func TestReportWhileStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n notes
		var ps parts
		ps.place("a", noted{name: "a", notes: &n})
		ps.place("the control plane", noted{name: "plane", notes: &n, start: untilEnded}, "a")
		ps.place("nodes", noted{name: "nodes", notes: &n}, "the control plane")
		go func() { _ = ps.start(t.Context(), newDeadline(time.Minute), nil) }()
		synctest.Wait()
		var s status.Status
		ps.report(&s)
		if want := []string{"the lab starts, and waits for: the control plane, nodes"}; !slices.Equal(s.Problems, want) ||
			!slices.Contains(n.all, "report a") {
			t.Errorf("%q %q", s.Problems, n.all)
		}
		time.Sleep(2 * time.Minute)
	})
}
