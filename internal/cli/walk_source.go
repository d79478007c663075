package cli

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"sync"
	"time"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/snapshot"
)

// world is what a walk goes through: a running lab, or what a file holds.
type world struct {
	snapshot.Source
	taken time.Time // of the state; zero for a lab, which is now
	notes []string
	// public are the public addresses of the lab's VMs; nil for a file.
	public func() map[string]netip.Addr
	// find tells where a host's network namespace is; nil for a file.
	find func(host string) (lab.Place, error)

	mu     sync.Mutex
	opened map[string]*kernel.Namespace
}

// open finds what to walk through.
func (o *walkOptions) open(ctx context.Context) (*world, error) {
	if o.snapshot != "" {
		return openFile(o.snapshot, o.at)
	}
	return openLab(ctx, o.name)
}

func openLab(ctx context.Context, name string) (*world, error) {
	if err := needRoot(); err != nil {
		return nil, err
	}
	d, err := lab.Select(name)
	if err != nil {
		return nil, badInput{err}
	}
	source, err := lab.Snapshot(ctx, d)
	if err != nil {
		return nil, err
	}
	w := &world{Source: source, find: d.FindHost, opened: map[string]*kernel.Namespace{}}
	if err := source.ObjectsError(); err != nil {
		w.notes = append(w.notes, "names of Kubernetes objects are not known: "+err.Error())
	}
	w.public = sync.OnceValue(func() map[string]netip.Addr {
		all := map[string]netip.Addr{}
		for _, h := range lab.StatusOf(ctx, d).Hosts {
			if a, err := netip.ParseAddr(h.PublicIP); err == nil {
				all[h.Name] = a
			}
		}
		return all
	})
	return w, nil
}

// namespace is a host's network namespace; it stays open until close.
func (w *world) namespace(host string) (*kernel.Namespace, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ns := w.opened[host]; ns != nil {
		return ns, nil
	}
	place, err := w.find(host)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, fs.ErrNotExist)
	}
	ns, err := kernel.OpenNamespace(place.NetNS)
	if err == nil {
		w.opened[host] = ns
	}
	return ns, err
}

func (w *world) close() {
	for _, ns := range w.opened {
		_ = ns.Close()
	}
}

// openFile reads a capture, or a text of rules.
func openFile(path, _ string) (*world, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, badInput{err}
	}
	defer f.Close()
	c, err := snapshot.Read(f)
	if err != nil {
		return nil, badInput{fmt.Errorf("%s: %w", path, err)}
	}
	names := make([]string, len(c.Hosts))
	for i, h := range c.Hosts {
		names[i] = h.Name
	}
	of := list(names)
	if len(names) > 3 {
		of = fmt.Sprintf("%d hosts", len(names))
	}
	w := &world{Source: snapshot.NewSource(c.Origin()), taken: c.Taken}
	w.notes = []string{fmt.Sprintf("prediction only: from a capture of %s, taken %s", of, c.Taken.UTC().Format("2006-01-02 15:04:05 UTC"))}
	return w, nil
}
