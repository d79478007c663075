package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"packetwalk.dev/internal/answer/endpoint"
	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/answer/proof/local"
	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/capture/excerpt"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/writers"
)

// world is what a walk goes through: a running lab, or what a file holds.
type world struct {
	snapshot.Source
	taken time.Time // of the state; zero for a lab, which is now
	// isRedacted says that a capture's addresses and names are replaced.
	isRedacted bool
	notes      []string
	// read is what reading the state had to assume.
	read []walk.Assumption
	text bool // the states are what a text shows
	// public are the public addresses of the lab's VMs; nil for a file.
	public func() map[string]netip.Addr
	// status is the lab's; nil for a file or a cluster.
	status func() lab.Status
	// lookUp asks the lab's resolver for a name's addresses; nil for a file or a cluster.
	lookUp func(name string) ([]netip.Addr, error)
	// unread is why Kubernetes objects, or some of them, are not known; nil where they are.
	unread error
	// place is where packets are sent and seen for --live; nil for a file.
	place proof.Places
	// again reads the lab's state anew; nil for a file.
	again func(context.Context) (snapshot.Source, error)
	// more reads the states of some hosts where they are read on demand; false where there is no more to be read.
	more func(ctx context.Context, hosts []string) bool
	// before is told what --live expects, before it sends anything; nil where nobody is to be told.
	before func(*walk.Result)
	// close gives back what was opened.
	close func() error
}

// open finds what to walk through.
func (o *walkOptions) open(ctx context.Context, s Streams, from, to *endpoint.End) (*world, error) {
	switch {
	case o.plugin != nil:
		return openCluster(ctx, s, o, from, to)
	case o.snapshot != "" && o.at == armview.Host && len(o.azure) > 0:
		// The host is Azure's, not the node that a text shows.
		return interruptible(ctx, func() (*world, error) { return openFile(s, o.snapshot, "", *to) })
	case o.snapshot != "":
		return interruptible(ctx, func() (*world, error) { return openFile(s, o.snapshot, o.at, *to) })
	}
	return openLab(ctx, o.name)
}

// closed gives back what was opened, after an error or not: that is told in any case, also where what was opened could not be given back.
func (w *world) closed(err error) error {
	left := w.close()
	if _, told := errors.AsType[exitStatus](left); told && err != nil {
		return err
	}
	return errors.Join(err, left)
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
	w := &world{Source: armview.WithDoubts(source)}
	w.place = w.namespaces(d)
	w.again = func(ctx context.Context) (snapshot.Source, error) {
		fresh, err := lab.Snapshot(ctx, d)
		if err != nil {
			return nil, err
		}
		return armview.WithDoubts(fresh), nil
	}
	w.lookUp = func(name string) ([]netip.Addr, error) { return lab.LookUp(ctx, d, name) }
	if err := source.ObjectsError(); err != nil {
		w.unread = err
		w.notes = append(w.notes, notAllKnown(err)...)
	}
	w.status = sync.OnceValue(func() lab.Status { return lab.StatusOf(ctx, d) })
	w.public = sync.OnceValue(func() map[string]netip.Addr {
		all := map[string]netip.Addr{}
		for _, h := range w.status().Hosts {
			if a, err := netip.ParseAddr(h.PublicIP); err == nil {
				all[h.Name] = a
			}
		}
		return all
	})
	return w, nil
}

// namespaces gives the places of a lab's hosts; what was opened is closed by close.
func (w *world) namespaces(d lab.Dir) proof.Places {
	var mu sync.Mutex
	opened := map[string]*netns.Namespace{}
	w.close = func() error {
		for _, ns := range opened {
			_ = ns.Close()
		}
		return nil
	}
	return func(host string) (proof.Place, error) {
		mu.Lock()
		defer mu.Unlock()
		if ns := opened[host]; ns != nil {
			return local.Place(ns), nil
		}
		at, err := d.FindHost(host)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", err, fs.ErrNotExist)
		}
		ns, err := netns.Open(at.NetNS)
		if err != nil {
			return nil, err
		}
		opened[host] = ns
		return local.Place(ns), nil
	}
}

// renew reads the state anew, and tells what has changed at some hosts meanwhile: "node/a: iptables rules".
func (w *world) renew(ctx context.Context, hosts []string) ([]string, error) {
	fresh, err := w.again(ctx)
	if err != nil {
		return nil, err
	}
	var changed []string
	for _, name := range hosts {
		before, err := w.Host(name)
		if err != nil {
			continue // it was not known before
		}
		after, err := fresh.Host(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			changed = append(changed, name+", which is gone")
			continue
		case err != nil:
			return nil, err
		}
		for _, part := range snapshot.Changes(before, after) {
			changed = append(changed, name+": "+string(part))
		}
	}
	if len(changed) > 0 {
		w.Source = fresh
	}
	return changed, nil
}

// interruptible returns when f does, or when ctx ends: reading a pipe, or a text that is long, does not ask for it. The program ends then.
func interruptible[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		o.value, o.err = f()
		done <- o
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// openFile opens a capture, or reads a text that shows some of a machine's state; "-" is standard input. Which it is shows in its first
// bytes.
func openFile(s Streams, path, at string, to endpoint.End) (*world, error) {
	f, size, err := input(s, path)
	if err != nil {
		return nil, badInput{err}
	}
	c, err := capture.Read(f, size)
	if err != nil {
		defer f.Close()
	}
	switch {
	case errors.Is(err, capture.ErrNotCapture):
		text, err := limitio.Read(io.NewSectionReader(f, 0, size), maxText)
		if err != nil {
			return nil, badInput{fmt.Errorf("read %s: %w", path, err)}
		}
		return openText(path, text, at, to)
	case err != nil:
		return nil, badInput{fmt.Errorf("%s: %w", path, err)}
	}
	source := capture.NewSource(c.Origin())
	names := source.Names()
	of := fmt.Sprintf("%d hosts", len(names))
	if len(names) <= 3 {
		of = snapshot.List(names)
	}
	w := &world{Source: armview.WithDoubts(source), taken: c.Taken, isRedacted: c.Redacted, close: f.Close}
	w.notes = []string{fmt.Sprintf("prediction only: from a capture of %s, taken %s", of, c.Taken.UTC().Format("2006-01-02 15:04:05 UTC"))}
	return w, nil
}

const (
	// maxText is the most bytes of a text that shows rules.
	maxText = 64 << 20
	// maxSpool is the most that is read of a pipe: four times what a capture of 5,000 nodes has.
	maxSpool = 16 << 30
)

// input opens what can be read at any place: a plain file as it is, all else as a nameless copy.
func input(s Streams, path string) (*os.File, int64, error) {
	in := s.In
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, 0, err
		}
		info, err := f.Stat()
		if err == nil && info.Mode().IsRegular() {
			return f, info.Size(), nil
		}
		defer f.Close()
		in = f
	}
	f, err := nameless(os.TempDir())
	if err != nil {
		return nil, 0, inTemp(err)
	}
	buffered, limit := bufio.NewReader(in), int64(maxText)
	if magic, _ := buffered.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) { // gzip's (RFC 1952)
		limit = maxSpool
	}
	n, err := io.Copy(f, io.LimitReader(buffered, limit+1))
	if err == nil && n > limit {
		err = &limitio.TooLongError{Limit: limit}
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("read %s: %w", path, inTemp(err)), f.Close())
	}
	return f, n, nil
}

// openText takes a text for what somebody saw on one node: the one that --at names.
func openText(path string, text []byte, at string, to endpoint.End) (*world, error) {
	if bytes.IndexByte(text, 0) >= 0 {
		return nil, badInput{fmt.Errorf("%s: neither a capture nor a text that shows rules: it has NUL bytes", path)}
	}
	name := strings.TrimPrefix(cmp.Or(at, "node"), "node/")
	nft := func(text []byte) ([]byte, error) { return ruleset.LoadNFT(context.Background(), text) }
	source, err := excerpt.Read(writers.Book(&snapshot.Objects{}), nft, name, text, netip.AddrPortFrom(to.Address, to.Port))
	if err != nil {
		return nil, badInput{fmt.Errorf("%s: neither a capture nor a text that shows rules: %w", path, err)}
	}
	w := &world{Source: source, text: true, close: func() error { return nil }}
	for _, n := range source.Names() {
		h, err := source.Host(n)
		if err != nil {
			return nil, err
		}
		for _, a := range h.Assumed {
			w.read = append(w.read, walk.Assumption{Host: n, What: a})
		}
	}
	if path == "-" {
		path = "standard input"
	}
	w.notes = append(w.notes, fmt.Sprintf("prediction only: from what %s shows", path))
	return w, nil
}

// notAllKnown are notes about Kubernetes objects that could not be read.
func notAllKnown(err error) []string {
	lines := strings.Split(err.Error(), "\n")
	lines[0] = "not all Kubernetes objects are known: " + lines[0]
	return lines
}
