package container_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"packetwalk.dev/internal/pods/container"
)

// heldEnv makes the test binary a process that tries to start something where all is stopped that begins: a try, as JSON.
const heldEnv = "PACKETWALK_TEST_HELD"

// A try is the container of a directory to execute a command in, or what to start.
type try struct {
	Binary, Dir string
	Start       container.Spec
}

const (
	heldTries = 20
	heldTime  = 200 * time.Millisecond // of one
)

// held tries. Other goroutines go on meanwhile, also those that stop the world.
func held(text string) int {
	var t try
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		panic(err)
	}
	go func() {
		for {
			runtime.GC()
			time.Sleep(time.Millisecond)
		}
	}()
	for n := range heldTries {
		ctx, cancel := context.WithTimeout(context.Background(), heldTime)
		t.once(ctx, n)
		cancel()
	}
	return 0
}

func (t *try) once(ctx context.Context, n int) {
	r := newRuntime(t.Binary)
	if t.Dir == "" {
		s := t.Start
		s.Dir += fmt.Sprint(n)
		if c, err := r.Start(ctx, s); err == nil {
			_ = c.Remove()
		}
		return
	}
	if c, err := r.Adopt(t.Dir); err == nil {
		_, _ = c.Exec(ctx, container.Exec{Args: []string{"true"}})
	}
}

// TestHeldUp: a container that stops all that begins in its process namespace holds up who starts something there for no longer than that
// one likes, nothing else of that process, and leaves nothing of it there.
func TestHeldUp(t *testing.T) {
	m := newMachine(t)
	stops := func(of string) container.Spec {
		s := m.spec("ubuntu", "sh", "-c", "while :; do kill -STOP -1; done")
		s.ProcessesOf = of
		return s
	}
	own := m.start(stops(""))
	node := m.start(m.spec("pause"))
	m.start(stops(node.Spec().Dir))
	below := m.spec("whereami")
	below.ProcessesBelow = node.Spec().Dir
	for _, tt := range []struct {
		name string
		try  try
		in   *container.Container
		own  int // processes of the container's, and of what shares its process namespace
	}{
		{"exec", try{Dir: own.Spec().Dir}, own, 1},
		{"start", try{Start: below}, node, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.try.Binary = binary
			text, err := json.Marshal(tt.try)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), heldTries*heldTime+30*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0])
			cmd.Env, cmd.WaitDelay = append(os.Environ(), heldEnv+"="+string(text)), time.Second
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("who starts something there: %v\n%s", err, out)
			}
			if left := inProcessesOf(t, tt.in); len(left) > tt.own {
				t.Errorf("%d processes are there: %v", len(left), left)
			}
		})
	}
}

// inProcessesOf lists what is in the container's process namespace.
func inProcessesOf(t *testing.T, c *container.Container) (all []string) {
	t.Helper()
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", c.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	links, _ := filepath.Glob("/proc/[0-9]*/ns/pid")
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && to == own {
			name, _ := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(link)), "cmdline"))
			all = append(all, fmt.Sprintf("%s %q", link, name))
		}
	}
	return all
}
