package verify

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/kerneltest"
)

var (
	worlds   = flag.Uint64("worlds", 100, "how many worlds")
	seed     = flag.Uint64("seed", 1, "of the first world; the next ones count up; of TestWorlds: $WORLDS_SEED by default")
	parallel = flag.Int("worlds-parallel", 4, "how many worlds run at the same time")
	shrink   = flag.Duration("shrink", 30*time.Second, "how long to shrink a world in which model and kernel disagree; 0 not to")
	hold     = flag.Bool("hold", false, "make one world and keep it until an interrupt")
	show     = flag.Bool("show", false, "print the worlds")
)

// runDirectory is where the test's namespaces are.
var runDirectory string

// stop ends with an interrupt, so that everything is taken away.
var stop context.Context

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(*parallel)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	var cancel context.CancelFunc
	stop, cancel = signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	if os.Getuid() != 0 {
		return m.Run()
	}
	debug.SetGCPercent(400) // a world is small and makes much garbage
	d, err := OpenDirectory()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer d.Close()
	runDirectory = d.path
	return m.Run()
}

// TestFound replays the worlds in which model and kernel once disagreed.
func TestFound(t *testing.T) {
	kerneltest.NeedRoot(t)
	paths, err := filepath.Glob("testdata/found/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			w, err := ParseWorld(text)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Run(stop, runDirectory, w)
			if err != nil {
				t.Fatal(err)
			}
			report(t, r)
		})
	}
}

// maxStored bounds how many worlds of one run are shrunk.
const maxStored = 10

// worldsSeed returns the seed of the first world: that of the flag, else that of make, which is another one for each commit.
func worldsSeed(t *testing.T) uint64 {
	text, given := os.Getenv("WORLDS_SEED"), false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "seed" })
	if given || text == "" {
		return *seed
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("read $WORLDS_SEED: %v", err)
	}
	return n
}

// TestWorlds compares random worlds.
func TestWorlds(t *testing.T) {
	kerneltest.NeedRoot(t)
	type found struct {
		seed uint64
		w    *World
		f    Failure
	}
	var failed []found
	c := Campaign{Seed: worldsSeed(t), Worlds: *worlds, Parallel: *parallel, Each: func(seed uint64, w *World, r Result, err error) {
		if *show {
			t.Logf("seed %d:\n%s", seed, w.Text())
		}
		if err != nil || len(r.Failures) > 0 {
			t.Logf("seed %d: %v", seed, err)
		}
		for _, f := range r.Failures {
			t.Log(f.Report())
		}
		for _, text := range r.Excused {
			t.Logf("seed %d, %s", seed, text)
		}
		if len(r.Failures) > 0 {
			failed = append(failed, found{seed, w, r.Failures[0]})
		}
	}}
	s, err := c.Run(stop, runDirectory)
	t.Log(s)
	for _, x := range failed[:min(len(failed), maxStored)] {
		if *shrink == 0 {
			break
		}
		w, f := ShrinkFor(stop, *shrink, runDirectory, x.w, x.f)
		path, err := Store("testdata/found", fmt.Sprintf("seed-%d", x.seed), w, f)
		t.Logf("seed %d, shrunk: %s %v", x.seed, path, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if why := s.Wrong(); why != "" {
		t.Error(why)
	}
	if n := s.Fates[Disagreed]; n > 0 {
		t.Errorf("%d packets disagree, of seeds %v", n, s.Failed)
	}
}

func report(t *testing.T, r Result) {
	t.Helper()
	for _, e := range r.Excused {
		t.Log(e)
	}
	for _, f := range r.Failures {
		t.Error(f.Report())
	}
}

// TestHold makes the world of -seed, or of the file in VERIFY_WORLD, sends its packets and keeps it until an interrupt, for who wants to
// look at it.
func TestHold(t *testing.T) {
	if !*hold {
		t.Skip("only with -hold")
	}
	w := Generate(*seed)
	if path := os.Getenv("VERIFY_WORLD"); path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if w, err = ParseWorld(text); err != nil {
			t.Fatal(err)
		}
	}
	b, err := build(stop, runDirectory, w)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	for _, line := range w.Packets {
		r := Result{Account: newAccount(), errors: map[string]int{}}
		fate, f, err := b.send(stop, line, &r)
		fmt.Printf("%s: %s %+v %v\n", line, fate, f, err)
	}
	for name, ns := range b.spaces {
		fmt.Printf("nsenter --net=%s # %s\n", ns.Path(), name)
	}
	<-stop.Done()
}
