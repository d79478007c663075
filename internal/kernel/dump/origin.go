package dump

import (
	"context"
	"fmt"
	"io/fs"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/snapshot"
)

// Origin returns the states of hosts, each read when it is asked for. paths has for each host the path where its namespace is mounted, or
// /proc/PID/ns/net. root is [Dumper.Root].
func Origin(ctx context.Context, paths map[string]string, root string) capture.Origin {
	return (&Dumper{Root: root, Hosts: paths}).Origin(ctx)
}

// Origin returns the states of the hosts, each read when it is asked for.
func (d *Dumper) Origin(ctx context.Context) capture.Origin {
	o := capture.Origin{Hosts: map[string]capture.NetNS{}, Tools: func() map[string]string { return d.Versions(ctx) }}
	for name, path := range d.Hosts {
		if ns, err := netns.Open(path); err == nil {
			o.Hosts[name] = capture.NetNS{Inode: ns.Inode()}
			ns.Close()
		}
	}
	o.Fetch = func(name string) (*capture.Raw, error) { return d.fetch(ctx, &o, name) }
	return o
}

// Source returns the hosts' states, each read when it is asked for.
func (d *Dumper) Source(ctx context.Context, o capture.Origin) *capture.Lazy {
	source := capture.NewSource(o)
	source.ReadPartsBy(func(name string, parts ...snapshot.Part) (*capture.Raw, error) {
		return d.fetch(ctx, &o, name, parts...)
	})
	return source
}

// fetch reads a host of an origin, or some parts of its state.
func (d *Dumper) fetch(ctx context.Context, o *capture.Origin, name string, parts ...snapshot.Part) (*capture.Raw, error) {
	path, ok := d.Hosts[name]
	if !ok {
		return nil, fmt.Errorf("host %q: %w", name, fs.ErrNotExist)
	}
	ns, err := netns.Open(path)
	if err != nil {
		return nil, fmt.Errorf("host %q: %w", name, err)
	}
	defer ns.Close()
	if ns.Inode() != o.Hosts[name].Inode { // its process has ended, and another one has the number
		return nil, fmt.Errorf("host %q: %w", name, fs.ErrNotExist)
	}
	return d.Parts(ctx, name, ns, parts...)
}
