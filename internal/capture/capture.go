package capture

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"packetwalk.dev/internal/model/snapshot"
)

// Capture is what one capture file holds: hosts as their tools printed them, and the Kubernetes objects that give things their names.
type Capture struct {
	Packetwalk string // version that took it
	Taken      time.Time
	Redacted   bool
	Tools      map[string]string // versions, as the tools tell them
	Hosts      []*Raw            // sorted by name
	Lists      map[string][]byte // by the File of ObjectLists
	Notes      []string          // what could not be had, in words
}

// Take dumps hosts, all that there are where none is named, with the Kubernetes objects. A host that there is none of is an error; one that
// went away meanwhile, and objects that cannot be had, are notes.
func Take(o Origin, version string, hosts ...string) (*Capture, error) {
	c := &Capture{Packetwalk: version, Taken: time.Now()}
	there := slices.Sorted(maps.Keys(o.Hosts))
	named := len(hosts) > 0
	if !named {
		hosts = there
	}
	for _, name := range hosts {
		if !slices.Contains(there, name) {
			return nil, snapshot.NotFound(name, there)
		}
	}
	hosts = slices.Compact(slices.Sorted(slices.Values(hosts)))
	var objects sync.WaitGroup
	var listsErr error
	objects.Go(func() { c.Lists, listsErr = o.lists() })
	raws, problems := o.fetch(hosts)
	objects.Wait()
	for i, err := range problems {
		switch {
		case err == nil:
			c.Hosts = append(c.Hosts, raws[i])
		case named:
			return nil, err
		default:
			c.Notes = append(c.Notes, err.Error())
		}
	}
	if len(c.Hosts) == 0 {
		return nil, fmt.Errorf("nothing to capture: %s", strings.Join(c.Notes, "; "))
	}
	if listsErr != nil {
		c.Notes = append(c.Notes, listsErr.Error())
	}
	if o.Tools != nil {
		c.Tools = o.Tools()
	}
	return c, nil
}

// fetch dumps hosts side by side. Of each there is a Raw or a problem.
func (o Origin) fetch(hosts []string) ([]*Raw, []error) {
	raws, problems := make([]*Raw, len(hosts)), make([]error, len(hosts))
	var g errgroup.Group
	g.SetLimit(2 * runtime.NumCPU())
	for i, name := range hosts {
		g.Go(func() error {
			raws[i], problems[i] = o.Fetch(name)
			if raws[i] != nil {
				raws[i].Machine = o.Hosts[name].Machine
			}
			return nil
		})
	}
	_ = g.Wait()
	return raws, problems
}

// lists are the Kubernetes objects' lists that could be had, also with an error.
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

// Origin gives the capture's hosts as the texts they are.
func (c *Capture) Origin() Origin {
	o := Origin{
		Hosts: map[string]NetNS{},
		Lists: func() (map[string][]byte, error) { return c.Lists, nil },
		Tools: func() map[string]string { return c.Tools },
	}
	byName := map[string]*Raw{}
	for _, h := range c.Hosts {
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

// Open reads a capture file into a Source.
func Open(path string) (*Lazy, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return NewSource(c.Origin()), nil
}
