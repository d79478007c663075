package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"packetwalk.dev/internal/base/pause"

	"packetwalk.dev/internal/pods/container"
)

// apps runs the applications of hosts.
type apps struct{ *core }

// Pauses of an application that ends, as of a VM's service manager, and how long it must run to be well.
const (
	appPause  = time.Second
	appSteady = time.Minute
)

// start runs the host's application, or takes it over, and keeps it until ctx ends or the host's end is called.
func (l apps) start(ctx context.Context, h *host) error {
	ctx, h.stop = context.WithCancel(ctx)
	h.done = make(chan struct{})
	c, err := l.run(ctx, h)
	if err != nil {
		close(h.done)
		return fmt.Errorf("application of %s: %w", h.Name, err)
	}
	go func() {
		defer close(h.done)
		l.keepApp(ctx, h, c)
	}()
	return nil
}

// run takes over the host's application when it runs, or starts it.
func (l apps) run(ctx context.Context, h *host) (*container.Container, error) {
	dir := filepath.Join(l.dir.Host(h.Name), "app")
	c, err := l.runtime.Adopt(dir)
	if err == nil {
		select {
		case <-c.Done():
			err = c.Remove()
		default:
			h.runs(c)
			return c, nil
		}
	}
	if err != nil && !errors.Is(err, container.ErrNoContainer) && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if c, err = l.begin(ctx, h, dir); err == nil {
		h.runs(c)
	}
	return c, err
}

// begin starts the host's application, from the next image where one was removed before its layers were mounted.
func (l apps) begin(ctx context.Context, h *host, dir string) (c *container.Container, err error) {
	const tries = 3
	for range tries {
		image, failed := l.builtIn.Image(ctx, h.App)
		if failed != nil {
			return nil, failed
		}
		s := container.Spec{ID: h.Name, Name: h.Name, Dir: dir, LogPath: l.dir.Log(h.Name), NetNS: h.ns.Path(), Hostname: h.Name, Args: h.args,
			Mounts: h.mounts, ResolvConf: resolvConf(resolverOf(h.Kind))}
		if err = image.Apply(&s); err != nil {
			return nil, err
		}
		if c, err = l.runtime.Start(ctx, s); err == nil || !image.Gone() {
			break
		}
	}
	return c, err
}

// keepApp starts the application again whenever it ends.
func (l apps) keepApp(ctx context.Context, h *host, c *container.Container) {
	restart := "the application of " + h.Name + " does not start again"
	defer func() { _ = l.fault(restart, nil) }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.Done():
		}
		h.ended()
		l.log.Warn("application ended", "host", h.Name, "app", h.App, "exit", c.Exit().Code)
		for {
			if !pause.For(ctx, appPause) {
				return
			}
			next, err := l.run(ctx, h)
			if l.fault(restart, err) == nil {
				c = next
				break
			}
		}
	}
}

// end ends the keeping of the host's application, if there is one, and waits for that; the application runs on.
func (h *host) end() {
	if h.stop != nil {
		h.stop()
		<-h.done
	}
}

// remove ends the host's application.
func (h *host) remove() error {
	h.end()
	if h.app == nil {
		return nil
	}
	return h.app.Remove()
}

func (h *host) runs(c *container.Container) {
	h.begun.Store(time.Now().UnixNano())
	h.pid.Store(int64(c.Pid()))
	h.app = c
}

// steady tells whether the application has run for long, since it was begun the last time.
func (h *host) steady() bool { return time.Since(time.Unix(0, h.begun.Load())) >= appSteady }

func (h *host) ended() {
	h.pid.Store(0)
	if h.steady() {
		h.failures.Store(0)
	}
	h.failures.Add(1)
}

// report adds the host to a status.
func (h *host) report(s *Status) {
	one := h.Host
	one.Pid = int(h.pid.Load())
	s.Hosts = append(s.Hosts, one)
	if n := h.failures.Load(); n >= hopeless && !h.steady() {
		s.Problems = append(s.Problems, fmt.Sprintf("%s: its application %s goes on ending, %d times so far; its log: packetwalk logs %s", h.Name,
			h.App, n, h.Name))
	}
}
