package kubelet

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlotsOfNodes: what one node holds for long, as starts that a pod of it has stopped, holds up that node alone.
func TestSlotsOfNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, stopped, other := make(slots, 2), make(slots, 2), make(slots, 2)
		take := func(node slots) func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*startWork)
			defer cancel()
			release, err := takeBoth(ctx, node, all, startWork)
			if err != nil {
				return nil
			}
			return release
		}
		held := []func(){take(stopped), take(stopped)}
		if take(stopped) != nil {
			t.Error("a node has more than its slots")
		}
		goesOn := []func(){take(other), take(other)}
		if goesOn[0] == nil || goesOn[1] == nil {
			t.Fatal("another node is held up")
		}
		for _, release := range held {
			release()
		}
		if len(all) != 2 {
			t.Errorf("%d are in use, want the other node's 2: one was given back twice", len(all))
		}
		for _, release := range goesOn {
			release()
		}
		time.Sleep(2 * startWork)
		if n := len(all) + len(stopped) + len(other); n != 0 {
			t.Errorf("%d are left in use", n)
		}
	})
}

// TestStartsAreBounded: a start that something holds up ends.
func TestStartsAreBounded(t *testing.T) {
	b := newBench(t)
	b.create(testPod("web"))
	if c := b.runtime.next(t); !c.hasTime {
		t.Error("a start may take for ever")
	}
}
