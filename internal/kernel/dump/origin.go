package dump

import (
	"context"
	"fmt"
	"io/fs"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/netns"
)

// Origin gives hosts as what their tools print, each when it is asked for: paths has for each the path where its namespace is mounted, or
// /proc/PID/ns/net. root is [Dumper.Root].
func Origin(ctx context.Context, paths map[string]string, root string) capture.Origin {
	dumper := &Dumper{Root: root, Hosts: paths}
	o := capture.Origin{Hosts: map[string]capture.NetNS{}, Tools: func() map[string]string { return dumper.Versions(ctx) }}
	for name, path := range paths {
		if ns, err := netns.Open(path); err == nil {
			o.Hosts[name] = capture.NetNS{Inode: ns.Inode()}
			ns.Close()
		}
	}
	o.Fetch = func(name string) (*capture.Raw, error) {
		path, ok := paths[name]
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
		return dumper.All(ctx, name, ns)
	}
	return o
}
