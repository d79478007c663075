package lab

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

// core is what all parts of a lab share.
type core struct {
	dir     layout.Dir
	bin     layout.Binaries
	log     *slog.Logger
	say     func(Step)
	builtIn *source.BuiltIn
	// nodeBounds are of each node and each container group's machine, podProcesses the most processes and threads of a pod there.
	nodeBounds   cgroup.Limits
	podProcesses int64
	// unbounded says what the control groups of containers do not bound, and why.
	unbounded []string
	// noDisk is why what nodes write is not bounded: there is no file system for them; "" where there is one.
	noDisk string
	broken chan error // what keeps a lab from starting, whoever waits for it; of size 1

	mu     sync.Mutex
	is     *cluster.Cluster
	faults map[string]error
}

func (c *core) done(format string, a ...any) { c.say(Step{Text: fmt.Sprintf(format, a...)}) }

// cluster is the cluster as it is, or is being made; nobody changes it in place.
func (c *core) cluster() *cluster.Cluster {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.is
}

func (c *core) become(to *cluster.Cluster) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.is = to
}

// fault notes how something went that is tried again, for the status: what is said of it, in words, until it goes well. It returns err.
func (c *core) fault(what string, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		delete(c.faults, what)
		return nil
	}
	if c.faults == nil {
		c.faults = map[string]error{}
	}
	if c.log != nil && (c.faults[what] == nil || c.faults[what].Error() != err.Error()) {
		c.log.Error(what, "err", err)
	}
	c.faults[what] = err
	return err
}

// problems are the faults there are.
func (c *core) problems() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var lines []string
	for _, what := range slices.Sorted(maps.Keys(c.faults)) {
		lines = append(lines, fmt.Sprintf("%s: %s", what, status.OneLine(c.faults[what])))
	}
	return lines
}

// Pauses of keep: before what has ended is begun again, and how long it must run to be well.
const (
	keepPause  = 2 * time.Second
	keepSteady = 5 * time.Second
	again      = " has failed and is started again"
)

// keep runs f in the background until ctx ends, and closes done then. One that ends before is a fault until it runs again, and is begun
// again.
func (c *core) keep(ctx context.Context, what string, f func(context.Context) error) (done <-chan struct{}) {
	over := make(chan struct{})
	go func() {
		defer close(over)
		for ctx.Err() == nil {
			steady := time.AfterFunc(keepSteady, func() { _ = c.fault(what+again, nil) })
			err := f(ctx)
			steady.Stop()
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				err = fmt.Errorf("ended")
			}
			_ = c.fault(what+again, err)
			pause.For(ctx, keepPause)
		}
	}()
	return over
}

// breaks ends the start of the lab; one that is up goes on.
func (c *core) breaks(err error) {
	select {
	case c.broken <- err:
	default:
	}
}

// serve listens and serves in the background until ctx ends. That it cannot listen at once is an error, what fails later a fault.
func (c *core) serve(ctx context.Context, what string, listen func(context.Context) (net.Listener, error),
	serve func(context.Context, net.Listener) error,
) error {
	l, err := listen(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	c.keep(ctx, what, func(ctx context.Context) (err error) {
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

// listenUnix listens on a unix socket, taking the place of one that a dead process left.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var lc net.ListenConfig
	return lc.Listen(ctx, "unix", path)
}
