// Command controlplane (tools/controlplane) keeps and builds the nested module controlplane/, upstream's control plane as one program, and
// keeps controlplane/oracle, the module that compares our service proxy with upstream's.
//
//	go run ./tools/controlplane gen     write both modules' go.mod from that of the k8s.io/kubernetes release that each requires
//	go run ./tools/controlplane build   build the program into the user's cache, once for all clones, and link bin/packetwalk-controlplane
//	                                    to it
//	go run ./tools/controlplane path    print where that program is, or will be
//
// It drives the go command and owns nothing at run time; it must not import packetwalk.dev/internal packages.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

const usage = "usage: go run ./tools/controlplane gen | build | path"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New(usage)
	}
	root, err := repository()
	if err != nil {
		return err
	}
	module := filepath.Join(root, "controlplane")
	switch args[0] {
	case "gen":
		for _, dir := range generated(root) {
			if err := writeModule(ctx, dir); err != nil {
				return err
			}
		}
		return nil
	case "build":
		return build(ctx, module, filepath.Join(root, "bin", program))
	case "path":
		target, err := newTarget(ctx, module)
		if err != nil {
			return err
		}
		fmt.Println(target.binary())
		return nil
	}
	return fmt.Errorf("unknown command %q; %s", args[0], usage)
}

// generated are the folders of the modules that import k8s.io/kubernetes.
func generated(root string) []string {
	return []string{filepath.Join(root, "controlplane"), filepath.Join(root, "controlplane", "oracle")}
}

// repository finds the checkout that the working directory lies in: the nearest folder upwards that holds controlplane/go.mod.
func repository() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		_, err := os.Stat(filepath.Join(dir, "controlplane", "go.mod"))
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find controlplane/go.mod above %s: not in a packetwalk checkout; run this inside one", start)
		}
	}
}
