// Package lifecycle starts, changes and stops the components of a lab in the order of what they need, each before a deadline, and has what
// components share.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/status"
	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/pods/source"
)

// Env is what all components of a lab share: its directory and programs, the cluster as it is, faults, and what keeps loops and processes
// running.
type Env struct {
	Dir      layout.Dir
	Binaries layout.Binaries
	Log      *slog.Logger
	Progress func(Step)
	BuiltIn  *source.BuiltIn
	// NodeBounds are of each node and each container group's machine, podProcesses the most processes and threads of a pod there.
	NodeBounds   cgroup.Limits
	PodProcesses int64
	// Unbounded says what the control groups of containers do not bound, and why.
	Unbounded []string
	// NoDisk is why what nodes write is not bounded: there is no file system for them; "" where there is one.
	NoDisk string
	broken chan error // the error that ends the start of the lab; of size 1

	mu      sync.Mutex
	current *cluster.Cluster
	faults  map[string]error
}

// NewEnv returns the Env of a lab whose cluster is not known yet.
func NewEnv(dir layout.Dir, bin layout.Binaries, log *slog.Logger, say func(Step)) *Env {
	return &Env{Dir: dir, Binaries: bin, Log: log, Progress: say, broken: make(chan error, 1)}
}

// Done says that something is done.
func (c *Env) Done(format string, a ...any) { c.Progress(Step{Text: fmt.Sprintf(format, a...)}) }

// Cluster returns the cluster as it is, or is being made; do not modify it.
func (c *Env) Cluster() *cluster.Cluster {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// SetCluster makes a cluster the one that the lab is, or is being made.
func (c *Env) SetCluster(to *cluster.Cluster) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = to
}

// Fault records the last result of what is tried again: an error is a problem of the status until the next try succeeds. It returns err.
func (c *Env) Fault(what string, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		delete(c.faults, what)
		return nil
	}
	if c.faults == nil {
		c.faults = map[string]error{}
	}
	if c.Log != nil && (c.faults[what] == nil || c.faults[what].Error() != err.Error()) {
		c.Log.Error(what, "err", err)
	}
	c.faults[what] = err
	return err
}

// FaultLines returns the faults, one a line.
func (c *Env) FaultLines() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var lines []string
	for _, what := range slices.Sorted(maps.Keys(c.faults)) {
		lines = append(lines, fmt.Sprintf("%s: %s", what, status.OneLine(c.faults[what])))
	}
	return lines
}

const (
	// KeepSteady is how long a function must run until Keep clears its fault.
	KeepSteady = 5 * time.Second
	keepPause  = 2 * time.Second // between the end of what Keep runs and its next start
	again      = " has failed and is started again"
)

// Keep runs f in the background until ctx ends, and closes done then. One that ends before is a fault until it runs again, and is begun
// again.
func (c *Env) Keep(ctx context.Context, what string, f func(context.Context) error) (done <-chan struct{}) {
	over := make(chan struct{})
	go func() {
		defer close(over)
		for ctx.Err() == nil {
			steady := time.AfterFunc(KeepSteady, func() { _ = c.Fault(what+again, nil) })
			err := f(ctx)
			steady.Stop()
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				err = fmt.Errorf("ended")
			}
			_ = c.Fault(what+again, err)
			pause.For(ctx, keepPause)
		}
	}()
	return over
}

// Break ends the start of the lab with an error; a lab that is up goes on.
func (c *Env) Break(err error) {
	select {
	case c.broken <- err:
	default:
	}
}

// Serve listens and serves in the background until ctx ends. If the first listen fails, Serve returns the error; a later failure is a fault.
func (c *Env) Serve(ctx context.Context, what string, listen func(context.Context) (net.Listener, error),
	serve func(context.Context, net.Listener) error,
) error {
	l, err := listen(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	c.Keep(ctx, what, func(ctx context.Context) (err error) {
		if l == nil {
			if l, err = listen(ctx); err != nil {
				return err
			}
		}
		defer func() { l.Close(); l = nil }()
		return serve(ctx, l)
	})
	return nil
}

// ListenUnix listens on a unix socket, taking the place of one that a dead process left.
func ListenUnix(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var lc net.ListenConfig
	return lc.Listen(ctx, "unix", path)
}

// Broken returns the channel of errors that end the start of the lab.
func (c *Env) Broken() <-chan error { return c.broken }
