package capture

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"packetwalk.dev/internal/model/snapshot"
)

// atOnce is how many hosts Take has in memory. Of a node with 10,000 services each takes some 50 MB.
const atOnce = 8

// Summary is what a capture got.
type Summary struct {
	Head
	Hosts int
	// Failed are the texts that could not be had, as the tools told why, and of how many hosts.
	Failed map[string]int
	// Nothing says that none could be had of any host.
	Nothing bool
}

// Take writes a capture of hosts, all that there are where none is named, with the Kubernetes objects: each as it comes, so that few are in
// memory. The head's Tools are the origin's; to its Notes come hosts that went away meanwhile and objects that cannot be had. A named host
// that there is none of, or that cannot be had, is an error. What was written before an error is no capture.
func Take(ctx context.Context, o Origin, out io.Writer, h Head, hosts ...string) (*Summary, error) {
	there := slices.Sorted(maps.Keys(o.Hosts))
	named := len(hosts) > 0
	if !named {
		hosts = there
	}
	for _, name := range hosts {
		if _, ok := o.Hosts[name]; !ok {
			return nil, snapshot.NotFound(name, there)
		}
	}
	w, err := NewWriter(out, h)
	if err != nil {
		return nil, err
	}
	t := &captureRun{origin: o, out: w, named: named, Summary: Summary{Head: h, Failed: map[string]int{}, Nothing: true}}
	if err := cmp.Or(t.all(ctx, slices.Compact(slices.Sorted(slices.Values(hosts)))), ctx.Err()); err != nil {
		return nil, err
	}
	if t.Hosts == 0 {
		return nil, fmt.Errorf("nothing to capture: %s", strings.Join(t.Notes, "; "))
	}
	if o.Tools != nil {
		t.Tools = o.Tools()
	}
	return &t.Summary, w.Close(t.Tools, t.Notes)
}

// captureRun is a capture that is being taken.
type captureRun struct {
	origin Origin
	out    *Writer
	named  bool

	mu sync.Mutex
	Summary
	gone map[string]error // hosts that could not be had
}

func (t *captureRun) all(ctx context.Context, hosts []string) error {
	t.gone = map[string]error{}
	var listsErr error
	lists, ctx := errgroup.WithContext(ctx)
	lists.Go(func() error {
		var had map[string][]byte
		had, listsErr = t.origin.lists()
		return t.out.AddLists(had)
	})
	lists.Go(func() error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(atOnce)
		for _, name := range hosts {
			g.Go(func() error {
				if err := ctx.Err(); err != nil {
					return err
				}
				return t.host(name)
			})
		}
		return g.Wait()
	})
	if err := lists.Wait(); err != nil {
		return err
	}
	var gone []string
	for _, err := range t.gone {
		gone = append(gone, err.Error())
	}
	slices.Sort(gone)
	t.Notes = slices.Concat(t.Notes, slices.Compact(gone)) // what is wrong with a machine is so for all of its hosts
	if listsErr != nil {
		t.Notes = append(t.Notes, listsErr.Error())
	}
	return nil
}

func (t *captureRun) host(name string) error {
	raw, err := t.origin.Fetch(name)
	if err != nil {
		if t.named {
			return err
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.gone[name] = err
		return nil
	}
	raw.Machine = t.origin.Hosts[name].Machine
	if err := t.out.Add(raw); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Hosts++
	for _, out := range raw.Outputs {
		switch {
		case out.Error != "":
			t.Failed[out.failure()]++
		case out.Skipped == "":
			t.Nothing = false
		}
	}
	return nil
}

// failure returns what a tool, or the reading of what no tool prints, failed with.
func (o Output) failure() string {
	text := strings.TrimRight(o.Error, " :")
	if o.Command != "" {
		text = o.Command + ": " + text
	}
	return text
}

// lists returns the Kubernetes objects' lists that could be had, also with an error.
func (o Origin) lists() (map[string][]byte, error) {
	if o.Lists == nil {
		return map[string][]byte{}, nil
	}
	lists, err := o.Lists()
	had := map[string][]byte{}
	for file, list := range lists {
		if list != nil {
			had[file] = list
		}
	}
	return had, err
}

// OriginOf gives hosts and lists of objects that are in memory.
func OriginOf(hosts []*Raw, lists map[string][]byte) Origin {
	o := Origin{Hosts: map[string]NetNS{}, Lists: func() (map[string][]byte, error) { return lists, nil }}
	byName := map[string]*Raw{}
	for _, h := range hosts {
		o.Hosts[h.Name], byName[h.Name] = NetNS{h.Machine, h.NetNS}, h
	}
	o.Fetch = func(name string) (*Raw, error) {
		if raw := byName[name]; raw != nil {
			return raw, nil
		}
		return nil, fmt.Errorf("host %q: %w", name, fs.ErrNotExist)
	}
	return o
}
