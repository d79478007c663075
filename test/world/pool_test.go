package world

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// TestPool: no two tests have a lab at the same time, no more labs than allowed are up. No labs are made:
// bringing one up and taking one down is counted.
func TestPool(t *testing.T) {
	const tests = 12 // and one with a lab of its own
	p := newPool()
	var mu sync.Mutex
	var arrived atomic.Int64
	up, busy, ups := map[string]bool{}, map[string]string{}, 0
	var all sync.Once
	p.bringUp = func(w *World, file string) error {
		// The other tests wait by now, but for one with the second lab, and the one with its own: a lab that no test waits for is taken down.
		all.Do(func() {
			began := time.Now()
			for waiting := 0; waiting < tests-maxWorlds || arrived.Load() < tests+1; time.Sleep(time.Millisecond) {
				p.Lock()
				waiting = len(p.waiting)
				p.Unlock()
				if time.Since(began) > time.Minute {
					t.Errorf("%d tests have begun, and %d wait", arrived.Load(), waiting)
					return
				}
			}
		})
		mu.Lock()
		defer mu.Unlock()
		up[w.Name], ups = true, ups+1
		if len(up) > maxWorlds {
			t.Errorf("labs %v are up", up)
		}
		return nil
	}
	p.takeDown = func(w *World) error {
		mu.Lock()
		defer mu.Unlock()
		delete(up, w.Name)
		return nil
	}
	t.Run("tests", func(t *testing.T) {
		for i := range tests {
			file, manifest := fmt.Sprintf("cluster-%d", i%3), fmt.Sprintf("manifest-%d", i/3%2)
			t.Run(fmt.Sprintf("%s %s %02d", file, manifest, i), func(t *testing.T) {
				t.Parallel()
				arrived.Add(1)
				w := p.take(t, file, manifest)
				if again := p.take(t, file, "another"); again != w {
					t.Error("asked twice, a test gets another lab")
				}
				mu.Lock()
				if busy[w.Name] != "" || !up[w.Name] {
					t.Errorf("lab %s is %t up, and %q has it", w.Name, up[w.Name], busy[w.Name])
				}
				busy[w.Name] = t.Name()
				mu.Unlock()
				time.Sleep(time.Millisecond)
				mu.Lock()
				busy[w.Name] = ""
				mu.Unlock()
			})
		}
		t.Run("own", func(t *testing.T) {
			t.Parallel()
			arrived.Add(1)
			p.own(t)
			t.Run("again", func(t *testing.T) { p.own(t) })
			mu.Lock()
			defer mu.Unlock()
			if len(up) >= maxWorlds {
				t.Errorf("labs %v are up beside a test's own", up)
			}
		})
	})
	if ups != 3 {
		t.Errorf("3 labs were brought up %d times", ups)
	}
	p.Lock()
	defer p.Unlock()
	if len(p.waiting) > 0 || len(p.owners) > 0 {
		t.Errorf("left: %v, %v", p.waiting, p.owners)
	}
}

// TestPoolOrder brings up the lab first that most tests wait for.
func TestPoolOrder(t *testing.T) {
	p := newPool()
	few, many, own := request{"few", "a", ""}, request{"many", "b", ""}, request{"own", "", ""}
	p.waiting = []request{few, many, {"more", "b", ""}, own, {"another", "", ""}}
	expect := func(want map[request]bool) {
		t.Helper()
		for r, turn := range want {
			if p.isTurn(r) != turn {
				t.Errorf("it is the turn of test %q: %t, want %t", r.test, !turn, turn)
			}
		}
	}
	expect(map[request]bool{few: false, many: true, own: false})
	p.shared["b"] = &sharedWorld{test: "many"}
	expect(map[request]bool{few: true, many: false, own: true})
	p.owners["own"] = true
	expect(map[request]bool{few: false, many: false, own: false})
}
