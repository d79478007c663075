// Package localhost is this machine as the subject of a conversation of package remote.
package localhost

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/answer/proof/local"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/cluster/remote"
	"packetwalk.dev/internal/kernel/hostns"
	"packetwalk.dev/internal/kernel/netns"
)

// Machine is this machine, whose own namespace is "node/" and its name; with "" its host name.
func Machine(node string) remote.Machine { return machine(node) }

type machine string

func (m machine) Look(ctx context.Context) (capture.Origin, map[string]string, error) {
	return hostns.Look(ctx, string(m))
}

// Open opens the network namespace of a path. One with another inode is not the one that was found: its process has ended, and another
// process has the number.
func (machine) Open(path string, inode uint64) (proof.Place, func(), error) {
	ns, err := netns.Open(path)
	if err != nil {
		return nil, nil, err
	}
	if ns.Inode() != inode {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w", path, fs.ErrNotExist), ns.Close())
	}
	return local.Place(ns), func() { _ = ns.Close() }, nil
}
