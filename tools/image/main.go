// Command image makes packetwalk's own image, without Docker: the programs, cross-compiled, and Debian's, of packages that packages.lock
// names with their digests. make image runs it:
//
//	go run ./tools/image -version VERSION [-arch amd64,arm64] [-o FILE] [-push REGISTRY/NAME[:TAG]]
//	go run ./tools/image -version VERSION -lock update     renews packages.lock by apt, which checks Debian's signatures, and builds
//	go run ./tools/image -version VERSION -arch ARCH -lab FILE -root FILE    makes the image of labs, of the archive of scripts/lab-archive
//
// Of Debian's packages it has nft, iptables of both variants, ebtables, ipset, ip, bridge and conntrack with the libraries that they need.
// There is no shell. The same files make the same image, with the same digest: owners are root, times the epoch, entries sorted.
//
//	layer 1   Debian's files, with each package's copyright file and record
//	layer 2   the programs, and usr/share/sbom/packetwalk.spdx.json
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

type options struct {
	version, ldflags string
	archs            []string
	archive          string // the file to write; the list of contents goes beside it
	push             string // "" for none
	mirror           string
	lab              string // the archive of scripts/lab-archive to make the image of labs from, "" for packetwalk's image
	labRoot          string // Debian's files for the image of labs: whole.tar of scripts/base
	update           bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse(os.Args[1:])
	if err == nil {
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		stop()
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	var archs, lock string
	f := flag.NewFlagSet("image", flag.ContinueOnError)
	f.StringVar(&o.version, "version", "dev", "the programs' version, whose tag the image gets")
	f.StringVar(&o.ldflags, "ldflags", "", "flags of Go's linker for the programs")
	f.StringVar(&archs, "arch", "amd64,arm64", "the architectures, separated by commas")
	f.StringVar(&o.archive, "o", "bin/packetwalk-image.tar", "the archive to write")
	f.StringVar(&o.push, "push", "", "REGISTRY/NAME[:TAG]: where to push the image, with the logins of docker")
	f.StringVar(&o.mirror, "mirror", "http://deb.debian.org", "the mirror that packages come from")
	f.StringVar(&o.lab, "lab", "", "the archive of scripts/lab-archive: make the image of labs from it")
	f.StringVar(&o.labRoot, "root", "bin/base/whole.tar", "Debian's files for the image of labs, of scripts/base")
	f.StringVar(&lock, "lock", "", "update: renew packages.lock first")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 || lock != "" && lock != "update" {
		return o, errors.New("usage: go run ./tools/image [flags]; see -h")
	}
	o.archs, o.update, o.mirror = strings.Split(archs, ","), lock == "update", strings.TrimSuffix(o.mirror, "/")
	return o, nil
}

// lockFile is below the repository.
const lockFile = "tools/image/packages.lock"

func run(ctx context.Context, o options) error {
	root, err := repository()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(root, "bin"), 0o755); err != nil {
		return err
	}
	m := maker{options: o, root: root, lock: filepath.Join(root, lockFile)}
	if o.lab != "" {
		return m.makeLab(ctx)
	}
	if o.update {
		if err := m.renew(ctx); err != nil {
			return err
		}
	}
	return m.make(ctx)
}

// repository returns the checkout that the working directory is in: the nearest folder upwards with tools/image.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for start := dir; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, filepath.Dir(lockFile), "main.go")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find tools/image above %s: run this in a packetwalk checkout", start)
		}
	}
}
