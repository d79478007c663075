// Command controlplane (tools/controlplane) keeps and builds the nested modules controlplane/, upstream's control plane as one program, and
// controlplane/e2e, Kubernetes' own suite, controlplane/containerd, controlplane/metrics, metrics-server, controlplane/calico and
// calico-3.27, Calico's agent, and controlplane/foreign, network plugins of others. It keeps controlplane/oracle, the module that compares
// our service proxy with upstream's.
//
//	go run ./tools/controlplane gen               write the modules' go.mod from that of the k8s.io/kubernetes release that each requires
//	go run ./tools/controlplane build [-arch ARCH] [-bin FOLDER] [PRODUCT]
//	                                              build the programs of a product into the user's cache, once for all clones, and make
//	                                              links to them: bin/packetwalk-controlplane without one, else e2e's, realnode's,
//	                                              calico's or foreign's in the folder of that name in bin
//	go run ./tools/controlplane path              print where the control plane's program is, or will be
//
// It drives the go command and owns nothing at run time; of packetwalk.dev/internal it must import base alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

const usage = "usage: go run ./tools/controlplane gen | build [-arch ARCH] [-bin FOLDER] [e2e|realnode|calico|calico-3.27|foreign] | path"

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
	if len(args) == 0 {
		return errors.New(usage)
	}
	root, err := repository()
	if err != nil {
		return err
	}
	module := filepath.Join(root, "controlplane")
	switch what := args[0]; {
	case what == "gen" && len(args) == 1:
		for _, dir := range generated(root) {
			if err := writeModule(ctx, dir); err != nil {
				return err
			}
		}
		return nil
	case what == "build":
		return buildProduct(ctx, root, args[1:])
	case what == "path" && len(args) == 1:
		target, err := newTarget(ctx, module, products["controlplane"][0])
		if err != nil {
			return err
		}
		fmt.Println(target.binary())
		return nil
	}
	return errors.New(usage)
}

// buildProduct builds the programs of the product that args name.
func buildProduct(ctx context.Context, root string, args []string) error {
	f := flag.NewFlagSet("build", flag.ContinueOnError)
	arch := f.String("arch", runtime.GOARCH, "the architecture to build for, as GOARCH")
	bin := f.String("bin", "bin", "the folder below the checkout for the links")
	if err := f.Parse(args); err != nil {
		return err
	}
	name, folder := "controlplane", filepath.Join(root, *bin)
	switch f.NArg() {
	case 0:
	case 1:
		name = f.Arg(0)
		folder = filepath.Join(folder, linkFolder(name))
	default:
		return errors.New(usage)
	}
	if products[name] == nil {
		return fmt.Errorf("unknown product %q; %s", name, usage)
	}
	if err := os.Setenv("GOARCH", *arch); err != nil { // of each go command
		return err
	}
	for _, p := range products[name] {
		if err := build(ctx, filepath.Join(root, "controlplane"), folder, p); err != nil {
			return err
		}
	}
	if f.NArg() == 0 {
		return nil
	}
	return removeOthers(folder, programsOf(linkFolder(name)))
}

// linkFolder returns the folder of bin that has a product's links. Releases of Calico share one.
func linkFolder(product string) string {
	folder, _, _ := strings.Cut(product, "-")
	return folder
}

// programsOf lists what can be linked in a folder of bin.
func programsOf(folder string) (names []string) {
	for product, programs := range products {
		if linkFolder(product) != folder {
			continue
		}
		for _, p := range programs {
			names = append(names, p.name)
		}
	}
	return names
}

// removeOthers removes links of products that are no longer made from a product's folder, which archives take whole.
func removeOthers(folder string, names []string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.Type() == fs.ModeSymlink && !slices.Contains(names, e.Name()) {
			errs = append(errs, os.Remove(filepath.Join(folder, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// generated returns the folders of the modules that import k8s.io/kubernetes.
func generated(root string) (dirs []string) {
	for _, module := range []string{"", "oracle", "e2e"} {
		dirs = append(dirs, filepath.Join(root, "controlplane", module))
	}
	return dirs
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
