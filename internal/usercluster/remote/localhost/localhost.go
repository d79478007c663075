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
	"packetwalk.dev/internal/kernel/hostns"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/resolver"
	"packetwalk.dev/internal/model/witness"
	"packetwalk.dev/internal/usercluster/remote"
)

// Machine returns this machine, whose own namespace is "node/" and its name; with "" its host name.
func Machine(node string) remote.Machine { return machine(node) }

type machine string

func (m machine) Look(ctx context.Context) (capture.Origin, map[string]string, error) {
	return hostns.Look(ctx, string(m))
}

// maxFile is the most bytes of a process's resolv.conf or hosts file.
const maxFile = 1 << 20

// LookUp implements remote.Machine, by the files of a process in the namespace.
func (machine) LookUp(ctx context.Context, path string, inode uint64, name string) (witness.Lookup, error) {
	ns, err := open(path, inode)
	if err != nil {
		return witness.Lookup{}, err
	}
	defer ns.Close()
	files, err := hostns.Files(inode, maxFile, "etc/resolv.conf", "etc/hosts")
	if err != nil {
		return witness.Lookup{}, err
	}
	return resolver.LookUp(ctx, ns.Dial, resolver.Files{ResolvConf: files[0], Hosts: files[1]}, name)
}

// Open opens the network namespace of a path. One with another inode is not the one that was found: its process has ended, and another
// process has the number.
func (machine) Open(path string, inode uint64) (proof.Place, func(), error) {
	ns, err := open(path, inode)
	if err != nil {
		return nil, nil, err
	}
	return local.Place(ns), func() { _ = ns.Close() }, nil
}

func open(path string, inode uint64) (*netns.Namespace, error) {
	ns, err := netns.Open(path)
	if err != nil {
		return nil, err
	}
	if ns.Inode() != inode {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, fs.ErrNotExist), ns.Close())
	}
	return ns, nil
}
