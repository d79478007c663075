package container_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"packetwalk.dev/internal/base/logs"
	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/distribution"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/pods/source"
	"packetwalk.dev/internal/testing/containertest"
	"packetwalk.dev/internal/testing/kerneltest"
)

// binary is packetwalk-app, built once for all tests.
var binary string

// builtIn makes the images of containers, in a store of the tests' own. All have the whole distribution: containers here look at what is
// around them.
var builtIn = &source.BuiltIn{Brought: map[string]string{}, Select: whole}

func whole(ctx context.Context, _ distribution.Part) (source.Distribution, error) {
	return source.Machine(func([]string) {})(ctx, distribution.Whole)
}

func newRuntime(binary string) *container.Runtime { return &container.Runtime{Binary: binary} }

// imaged is a container of a built-in application.
func imaged(tb testing.TB, app string, command ...string) container.Spec {
	tb.Helper()
	s := container.Spec{ID: "id", Name: "test", Hostname: "box", Command: command}
	i, err := builtIn.Image(tb.Context(), app)
	if err == nil {
		err = i.Apply(&s)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if os.Getenv(starterEnv) != "" {
		return starter()
	}
	if text := os.Getenv(heldEnv); text != "" {
		return held(text)
	}
	dir, err := os.MkdirTemp("", "packetwalk-container-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if binary, err = containertest.Build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	builtIn.Program = binary
	builtIn.Open = sync.OnceValues(func() (*images.Store, error) { return images.Open(filepath.Join(dir, "images")) })
	code := m.Run()
	// Each child was waited for.
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		if stat, err := os.ReadFile(file); err == nil && strings.Contains(string(stat), fmt.Sprintf(") Z %d ", os.Getpid())) {
			fmt.Fprintf(os.Stderr, "a zombie is left: %s", stat)
			code = 1
		}
	}
	return code
}

// A machine is what a test has to leave as it found it.
type machine struct {
	*testing.T
	runtime *container.Runtime
	n       int
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	kerneltest.NeedRoot(t)
	m := &machine{T: t, runtime: newRuntime(binary)}
	root, own := readMounts(t), filepath.Dir(t.TempDir())
	t.Cleanup(func() {
		now := readMounts(t)
		if first(root, " / / ") != first(now, " / / ") {
			t.Errorf("the root was %s and is %s", first(root, " / / "), first(now, " / / "))
		}
		if left := first(now, own); left != "" {
			t.Errorf("a mount is left: %s", left)
		}
		if left := processesOf(own); len(left) > 0 {
			t.Errorf("processes are left: %v", left)
		}
	})
	return m
}

// first is the first line with a string in it.
func first(text, part string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			return line
		}
	}
	return ""
}

func readMounts(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// processesOf lists our processes of containers below a directory.
func processesOf(dir string) (pids []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil && bytes.Contains(b, []byte(dir)) && bytes.HasPrefix(b, []byte("packetwalk-app\x00")) {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

func (m *machine) spec(app string, command ...string) container.Spec {
	m.Helper()
	return m.placed(imaged(m, app, command...))
}

// placed gives a container its own directory.
func (m *machine) placed(s container.Spec) container.Spec {
	m.n++
	s.Dir = filepath.Join(m.TempDir(), fmt.Sprintf("c%d", m.n))
	s.LogPath = s.Dir + ".logs/0.log"
	return s
}

func (m *machine) start(s container.Spec) *container.Container {
	m.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := m.runtime.Start(ctx, s)
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		if err := c.Remove(); err != nil {
			m.Error(err)
		}
	})
	return c
}

// run executes a command in a container and returns what it said.
func (m *machine) run(c *container.Container, args ...string) string {
	m.Helper()
	var out, errOut bytes.Buffer
	code, err := c.Exec(context.Background(), container.Exec{Args: args, Stdout: &out, Stderr: &errOut})
	if err != nil || code != 0 {
		m.Fatalf("%v: exit status %d, %v\n%s%s", args, code, err, out.String(), errOut.String())
	}
	return out.String()
}

func (m *machine) log(c *container.Container) string {
	m.Helper()
	var out bytes.Buffer
	if err := container.ReadLogs(context.Background(), c.Spec().LogPath, logs.Options{}, nil, &out); err != nil {
		m.Fatal(err)
	}
	return out.String()
}

// awaitLog waits until the container has written something.
func (m *machine) awaitLog(c *container.Container) { m.Helper(); m.awaitText(c, "") }

// awaitText waits until the container has written a text.
func (m *machine) awaitText(c *container.Container, text string) {
	m.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if log := m.log(c); log != "" && strings.Contains(log, text) {
			return
		}
		if time.Now().After(deadline) {
			m.Fatalf("the container does not write %q", text)
		}
	}
}

func (m *machine) wait(c *container.Container) container.Exit {
	m.Helper()
	select {
	case <-c.Done():
	case <-time.After(20 * time.Second):
		m.Fatal("the container does not end")
	}
	return c.Exit()
}

func contains(t *testing.T, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("%q is not in:\n%s", w, got)
		}
	}
}
