// Package world drives a lab as a user does, by the packetwalk command alone, for the tests of what users see.
// Of the project's packages it must import those for tests alone.
package world

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/bpflock"
)

// A World is a running lab, driven as a user drives it: by the packetwalk command alone.
type World struct {
	Name string
	Root string   // of the repository
	Env  []string // of its commands, NAME=VALUE, beside the test's
}

// New returns a world of that name that is not up yet.
func New(t *testing.T, name string) *World {
	t.Helper()
	NeedRoot(t)
	root, err := filepath.Abs("../..") // tests run in their package's folder, test/NAME
	if err != nil {
		t.Fatal(err)
	}
	return &World{Name: name, Root: root}
}

// NeedRoot skips a test that a user without root runs, and fails it in CI.
func NeedRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("claims need root")
	}
	t.Skip("needs root")
}

// Example returns the path of a file of examples/.
func (w *World) Example(elem ...string) string {
	return filepath.Join(append([]string{w.Root, "examples"}, elem...)...)
}

// Try runs packetwalk and gives what it printed on standard output.
func (w *World) Try(limit time.Duration, args ...string) (string, error) {
	return w.TryInput(limit, "", args...)
}

// TryInput does what Try does with a text on standard input.
func (w *World) TryInput(limit time.Duration, input string, args ...string) (string, error) {
	if !slices.Contains([]string{"walk", "drops", "tour", "capture"}, args[0]) {
		return w.try(limit, input, args...)
	}
	unlock, err := bpflock.Walk()
	if err != nil {
		return "", err
	}
	defer unlock()
	return w.try(limit, input, args...)
}

func (w *World) try(limit time.Duration, input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(w.Root, "bin", "packetwalk"), args...)
	cmd.Env = append(os.Environ(), w.Env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) } // it then writes where its goroutines are
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = errors.Join(err, ctx.Err())
		}
		return out.String(), fmt.Errorf("packetwalk %s: %w\n%s%s", strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String(), nil
}

// runLimit is how long a command may take that must succeed, on a busy machine too: nodes join, and pods are evicted.
const runLimit = 3 * time.Minute

// Run does what Try does, and must succeed.
func (w *World) Run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.Try(runLimit, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Kubectl runs kubectl on the lab.
func (w *World) Kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return w.Run(t, append([]string{"kubectl", "--name", w.Name}, args...)...)
}

// SSH runs a command on a host.
func (w *World) SSH(t *testing.T, host string, command ...string) string {
	t.Helper()
	return w.Run(t, append([]string{"ssh", "--name", w.Name, host, "--"}, command...)...)
}

// Az runs an az command.
func (w *World) Az(t *testing.T, args ...string) string {
	t.Helper()
	return w.Run(t, append([]string{"az", "--name", w.Name}, args...)...)
}

// Get decodes an object of the API.
func (w *World) Get(t *testing.T, v any, args ...string) {
	t.Helper()
	if err := json.Unmarshal([]byte(w.Kubectl(t, append([]string{"get", "-o", "json"}, args...)...)), v); err != nil {
		t.Fatal(err)
	}
}

// Command returns packetwalk with arguments, to be started.
func (w *World) Command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(w.Root, "bin", "packetwalk"), args...)
	cmd.Env = append(os.Environ(), w.Env...)
	return cmd
}

// talkLimit is how long a Talk may last: one that hangs must not hang its test.
const talkLimit = 5 * time.Minute

// Talk starts a bash script on a host that reads lines from in and answers with lines on out. Its arguments are $1 and so on. It ends with
// its standard input: by end, or with the test.
func (w *World) Talk(t *testing.T, host, script string, args ...string) (in io.Writer, out *bufio.Reader, end func()) {
	t.Helper()
	cmd := w.Command(append([]string{"ssh", "--name", w.Name, host, "--", "bash", "-c", script, "talk"}, args...)...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(talkLimit, func() { _ = cmd.Process.Kill() })
	end = sync.OnceFunc(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
		kill.Stop()
	})
	t.Cleanup(end)
	return stdin, bufio.NewReader(stdout), end
}
