package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// debianArchs are Debian's names of architectures, in the names of its compilers and directories, by GOARCH.
var debianArchs = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

// seccompSuite is the release of Debian whose libseccomp is linked.
const seccompSuite = "trixie"

// unpackTime bounds the download of libseccomp, with what its packages depend on (3 MB).
const unpackTime = 5 * time.Minute

// seccompLibrary unpacks Debian's libseccomp for GOARCH into a directory below dir, and returns the variables by which the go command links
// it. It comes from Debian's mirror and not from this machine, so that a machine can build for the other architecture. remove deletes it.
func seccompLibrary(ctx context.Context, dir string) (env []string, remove func(), err error) {
	arch, triplet := os.Getenv("GOARCH"), debianArchs[os.Getenv("GOARCH")]
	dir, err = os.MkdirTemp(dir, "libseccomp-")
	if err != nil {
		return nil, nil, err
	}
	remove = func() { os.RemoveAll(dir) }
	bounded, cancel := context.WithTimeout(ctx, unpackTime)
	defer cancel()
	archive := filepath.Join(dir, "packages.tar")
	for _, args := range [][]string{
		{"mmdebstrap", "--mode=chrootless", "--variant=extract", // needs no root, as nothing is installed
			"--architectures=" + arch, "--include=libseccomp-dev", "--format=tar", seccompSuite, archive},
		{"tar", "--extract", "--file=" + archive, "--directory=" + dir, "./usr/include", "./usr/lib/" + triplet},
	} {
		command := exec.CommandContext(bounded, args[0], args[1:]...)
		command.WaitDelay = time.Second
		if out, err := command.CombinedOutput(); err != nil {
			remove()
			return nil, nil, fmt.Errorf("unpack libseccomp: %s: %w\n%s", args[0], err, out)
		}
	}
	compiler := "gcc"
	if arch != runtime.GOARCH {
		compiler = triplet + "-gcc"
	}
	return []string{
		"CC=" + compiler, "PKG_CONFIG=true", // which would name this machine's library
		"CGO_CFLAGS=-O2 -I" + filepath.Join(dir, "usr/include"),
		"CGO_LDFLAGS=" + filepath.Join(dir, "usr/lib", triplet, "libseccomp.a"),
	}, remove, nil
}
