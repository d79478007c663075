package claims

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A world is a running lab, driven as a user drives it: by the packetwalk command alone.
type world struct {
	name string
	root string // of the repository
}

// worlds are brought up once and shared by the tests of this package; TestMain takes them down.
var worlds struct {
	sync.Mutex
	byExample map[string]*world
}

func TestMain(m *testing.M) {
	worlds.byExample = map[string]*world{}
	code := m.Run()
	for _, w := range worlds.byExample {
		if _, err := w.try(time.Minute, "down", "--name", w.name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// up returns the world of an example folder, which is up with the manifests applied and rolled out.
func up(t *testing.T, example string, manifests ...string) *world {
	t.Helper()
	needRoot(t)
	worlds.Lock()
	defer worlds.Unlock()
	w := worlds.byExample[example]
	if w == nil {
		root, err := filepath.Abs("../..")
		if err != nil {
			t.Fatal(err)
		}
		w = &world{name: fmt.Sprintf("claims-%d-%d", os.Getpid(), len(worlds.byExample)), root: root}
		worlds.byExample[example] = w
		if _, err := w.try(2*time.Minute, "up", "--name", w.name, "-f", w.example(example, "cluster.yaml")); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range manifests {
		w.kubectl(t, "apply", "-f", w.example(example, m))
	}
	return w
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("claims need root")
	}
	t.Skip("needs root")
}

func (w *world) example(elem ...string) string {
	return filepath.Join(append([]string{w.root, "examples"}, elem...)...)
}

// try runs packetwalk and gives what it printed on standard output.
func (w *world) try(limit time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(w.root, "bin", "packetwalk"), args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = errors.Join(err, ctx.Err())
		}
		return out.String(), fmt.Errorf("packetwalk %s: %w\n%s%s", strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String(), nil
}

func (w *world) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.try(time.Minute, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (w *world) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return w.run(t, append([]string{"kubectl", "--name", w.name}, args...)...)
}

func (w *world) ssh(t *testing.T, host string, command ...string) string {
	t.Helper()
	return w.run(t, append([]string{"ssh", "--name", w.name, host, "--"}, command...)...)
}

func (w *world) az(t *testing.T, args ...string) string {
	t.Helper()
	return w.run(t, append([]string{"az", "--name", w.name}, args...)...)
}

// get decodes an object of the API.
func (w *world) get(t *testing.T, v any, args ...string) {
	t.Helper()
	if err := json.Unmarshal([]byte(w.kubectl(t, append([]string{"get", "-o", "json"}, args...)...)), v); err != nil {
		t.Fatal(err)
	}
}

// eventually tries until check is content, for at most limit.
func eventually(t *testing.T, limit time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", limit, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// capture runs tcpdump on a host while during runs, and gives its lines.
func (w *world) capture(t *testing.T, host, link, filter string, during func()) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(w.root, "bin", "packetwalk"), "ssh", "--name", w.name, host, "--",
		"tcpdump", "-n", "-l", "-i", link, "--immediate-mode", filter)
	var out bytes.Buffer
	cmd.Stdout = &out
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// tcpdump says "listening on" when its socket is open: from then on it misses nothing.
	buf := make([]byte, 4096)
	for heard := ""; !strings.Contains(heard, "listening on"); {
		n, err := errs.Read(buf)
		if err != nil {
			t.Fatalf("tcpdump on %s %s: %v: %s", host, link, err, heard)
		}
		heard += string(buf[:n])
	}
	during()
	time.Sleep(200 * time.Millisecond) // the last packets on their way from the kernel
	_ = cmd.Process.Signal(os.Interrupt)
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		_ = cmd.Process.Kill()
		<-done
	}
	return out.String()
}
