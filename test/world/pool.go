package world

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// maxWorlds is how many labs the tests of a package have up at the same time. Idle labs use much of a small machine.
const maxWorlds = 2

// pool shares labs between the tests of a package. A test waits until the lab that it needs is free; then no other test has it until the
// test ends. Parallel tests of different labs run beside each other, those of one lab one after the other, by their order.
type pool struct {
	sync.Mutex
	changed sync.Cond
	shared  map[string]*sharedWorld // by cluster.yaml
	recent  []string                // the keys of shared, the last used one last
	owners  map[string]bool         // the names of tests with labs that only they have, and of labs that go down
	waiting []request
	made    int

	bringUp  func(w *World, file string) error
	takeDown func(*World) error
}

// sharedWorld holds a lab of the pool, and the test that has it; without a test it is idle.
type sharedWorld struct {
	*World // nil until it is up
	test   string
}

// request holds what a waiting test needs: a lab of the pool, by its cluster.yaml, or one of its own.
type request struct {
	test, file string
	order      string
}

var worlds = newPool()

func newPool() *pool {
	p := &pool{shared: map[string]*sharedWorld{}, owners: map[string]bool{}, bringUp: bringUp, takeDown: takeDown}
	p.changed.L = p
	return p
}

// Main runs the tests, for TestMain, and takes down the labs that they shared. All parallel tests start at once: the pool has them wait.
func Main(m *testing.M) int {
	flag.Parse() // m.Run would do it, and take go test's -parallel
	// Commands on a lab use the lab's kubeconfig, whatever the environment says.
	err := errors.Join(os.Setenv("KUBECONFIG", "/nonexistent/kubeconfig"), os.Setenv("KUBERNETES_MASTER", "http://127.0.0.1:1"),
		flag.Set("test.parallel", "1000"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	for _, s := range worlds.shared {
		if err := takeDown(s.World); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// Up returns the world of an example folder, which is up with the manifests applied. The test has it for itself until it ends.
func Up(t *testing.T, example string, manifests ...string) *World {
	t.Helper()
	return UpFile(t, example, "cluster.yaml", manifests...)
}

// UpFile does as Up for another cluster than the folder's cluster.yaml.
func UpFile(t *testing.T, example, cluster string, manifests ...string) *World {
	t.Helper()
	NeedRoot(t)
	w := worlds.take(t, filepath.Join(example, cluster), strings.Join(manifests, " "))
	for _, m := range manifests {
		w.Kubectl(t, "apply", "-f", w.Example(example, m))
	}
	return w
}

// Own waits until the test may have a lab that no other test has, and returns its world, which is not up yet. A test and its subtests count
// as one, however many worlds they make.
func Own(t *testing.T, name string) *World {
	t.Helper()
	w := New(t, name)
	worlds.own(t)
	return w
}

// own waits until there is room for a lab that only this test has, and keeps the room until the test ends.
func (p *pool) own(t *testing.T) {
	t.Helper()
	p.Lock()
	defer p.Unlock()
	for test := range p.owners {
		if test == t.Name() || strings.HasPrefix(t.Name(), test+"/") {
			return
		}
	}
	p.wait(t, request{test: t.Name()})
	p.owners[t.Name()] = true
	t.Cleanup(func() {
		p.Lock()
		defer p.Unlock()
		delete(p.owners, t.Name())
		p.changed.Broadcast()
	})
}

// take waits for a shared lab and returns it, up. Tests with the same manifests come one after the other.
func (p *pool) take(t *testing.T, file, manifests string) *World {
	t.Helper()
	p.Lock()
	defer p.Unlock()
	if s := p.shared[file]; s != nil && s.test == t.Name() {
		return s.World
	}
	for other, s := range p.shared {
		if s.test == t.Name() {
			t.Fatalf("the test has the lab of %s: two that wait for each other's lab would wait for ever", other)
		}
	}
	p.wait(t, request{test: t.Name(), file: file, order: manifests + " " + t.Name()})
	s := p.shared[file]
	if s == nil {
		s = &sharedWorld{}
		p.shared[file] = s
	}
	s.test = t.Name()
	p.recent = append(slices.DeleteFunc(p.recent, func(other string) bool { return other == file }), file)
	t.Cleanup(func() {
		p.Lock()
		defer p.Unlock()
		s.test = ""
		p.changed.Broadcast()
	})
	if s.World == nil {
		w := New(t, fmt.Sprintf("shared-%d-%d", os.Getpid(), p.made))
		p.made++
		p.Unlock()
		err := p.bringUp(w, file)
		p.Lock()
		s.World = w // also one that failed, to be taken down
		if err != nil {
			t.Fatal(err)
		}
	}
	return s.World
}

// wait returns when it is the test's turn. The caller holds the lock.
func (p *pool) wait(t *testing.T, r request) {
	t.Helper()
	p.waiting = append(p.waiting, r)
	defer func() {
		p.waiting = slices.DeleteFunc(p.waiting, func(other request) bool { return other == r })
		p.changed.Broadcast() // it may have been another one's turn but for this one
	}()
	for !p.isTurn(r) {
		if file := p.unneeded(); file != "" && p.needsRoom(r) {
			s := p.shared[file]
			delete(p.shared, file)
			p.recent = slices.DeleteFunc(p.recent, func(other string) bool { return other == file })
			p.owners["down of "+file] = true
			p.Unlock()
			err := p.takeDown(s.World)
			p.Lock()
			delete(p.owners, "down of "+file)
			p.changed.Broadcast()
			if err != nil {
				t.Fatal(err)
			}
			continue
		}
		p.changed.Wait()
	}
}

// isTurn reports whether a waiting test may go on: its lab is up and idle, and the test is the first of those that wait for it, or there is
// room for another lab, and no other lab that is not up has more tests that wait for it. So the labs of many tests are not left for the end.
func (p *pool) isTurn(r request) bool {
	if s := p.shared[r.file]; s != nil {
		return s.test == "" && !slices.ContainsFunc(p.waiting, func(other request) bool { return other.file == r.file && other.order < r.order })
	}
	return p.used() < maxWorlds && !slices.ContainsFunc(p.waiting, func(other request) bool {
		return p.shared[other.file] == nil && p.waitingFor(other.file) > p.waitingFor(r.file)
	})
}

// waitingFor returns how many tests wait for a shared lab; a lab that only one test has is waited for by that one.
func (p *pool) waitingFor(file string) int {
	count := 0
	for _, r := range p.waiting {
		if r.file == file {
			count++
		}
	}
	if file == "" {
		return min(count, 1)
	}
	return count
}

// needsRoom reports whether a waiting test needs a lab that is not up.
func (p *pool) needsRoom(r request) bool { return p.shared[r.file] == nil && p.used() >= maxWorlds }

func (p *pool) used() int { return len(p.shared) + len(p.owners) }

// unneeded returns the lab that was not used for longest of those that no test has or waits for; "" for none.
func (p *pool) unneeded() string {
	for _, file := range p.recent {
		if p.shared[file].test == "" && !slices.ContainsFunc(p.waiting, func(r request) bool { return r.file == file }) {
			return file
		}
	}
	return ""
}

// upLimit is how long a lab may take to come up, on a busy machine too.
const upLimit = 5 * time.Minute

func bringUp(w *World, file string) error {
	_, err := w.Try(upLimit, "up", "--name", w.Name, "-f", w.Example(file))
	return err
}

func takeDown(w *World) error {
	_, err := w.Try(runLimit, "down", "--name", w.Name)
	return err
}
