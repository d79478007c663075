package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/term"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/filelock"
)

// product is one program that is built of a nested module.
type product struct {
	name    string // the program's file name
	module  string // the module's folder, in controlplane/
	source  string // the package: "." or an import path of upstream's
	test    bool   // the package's tests are the program, not its main function
	seccomp bool   // it links libseccomp, by a C compiler
	files   bool   // not a program: the files of YAML in the folder source of the module that it is in, one behind the other
	what    string // of what it is, for people
	minutes int    // what its build takes with an empty build cache, in minutes of one core, measured on two
}

// products are what build makes, by the name that it takes. Products other than controlplane are only built on request.
var products = map[string][]product{
	"controlplane": {{name: "packetwalk-controlplane", source: ".", what: "upstream's control plane, etcd, CoreDNS and kubectl", minutes: 10}},
	"e2e": {
		{name: "e2e.test", module: "e2e", source: "k8s.io/kubernetes/test/e2e", test: true, what: "Kubernetes' end-to-end tests", minutes: 8},
		{name: "ginkgo", module: "e2e", source: "github.com/onsi/ginkgo/v2/ginkgo", what: "their runner", minutes: 1},
		{name: "agnhost", module: "e2e", source: "k8s.io/kubernetes/test/images/agnhost", what: "the program of their images", minutes: 5},
		{name: "sample-apiserver", module: "e2e", source: "k8s.io/sample-apiserver", what: "the API server that they add", minutes: 2},
		{name: "nonewprivs", module: "e2e", source: "k8s.io/kubernetes/test/images/nonewprivs", what: "a program of their images", minutes: 1},
		{name: "regression-issue-74839", module: "e2e", source: "k8s.io/kubernetes/test/images/regression-issue-74839",
			what: "a program of their images", minutes: 1},
	},
	"realnode": {
		{name: "kubelet", source: "k8s.io/kubernetes/cmd/kubelet", what: "upstream's kubelet", minutes: 8},
		{name: "containerd", module: "containerd", source: containerdModule + "/cmd/containerd", what: "containerd", minutes: 5},
		{name: "containerd-shim-runc-v2", module: "containerd", source: containerdModule + "/cmd/containerd-shim-runc-v2",
			what: "containerd's shim", minutes: 1},
		{name: "ctr", module: "containerd", source: containerdModule + "/cmd/ctr", what: "containerd's command", minutes: 1},
		{name: "runc", module: "containerd", source: runcModule, seccomp: true, what: "runc", minutes: 1},
		{name: "bandwidth", module: "containerd", source: pluginsModule + "/plugins/meta/bandwidth",
			what: "the CNI plugin bandwidth", minutes: 1},
		{name: "metrics-server", module: "metrics", source: "sigs.k8s.io/metrics-server/cmd/metrics-server", what: "metrics-server", minutes: 4},
	},
	"calico": {
		{name: "calico-felix-3.31", module: "calico", source: calicoModule + "/felix/cmd/calico-felix", what: "Calico's agent felix 3.31",
			minutes: 6},
		{name: "calico-crds-3.31.yaml", module: "calico", source: calicoModule + "/libcalico-go/config/crd", files: true,
			what: "the definitions of Calico's resources"},
	},
	"calico-3.27": {
		{name: "calico-felix-3.27", module: "calico-3.27", source: calicoModule + "/felix/cmd/calico-felix", what: "Calico's agent felix 3.27",
			minutes: 5},
		{name: "calico-crds-3.27.yaml", module: "calico-3.27", source: calicoModule + "/libcalico-go/config/crd", files: true,
			what: "the definitions of Calico's resources"},
	},
	"foreign": {
		{name: "flanneld", module: "foreign", source: ".", what: "flannel's daemon", minutes: 4},
		{name: "bridge", module: "foreign", source: pluginsModule + "/plugins/main/bridge", what: "the CNI plugin bridge", minutes: 1},
		{name: "host-local", module: "foreign", source: pluginsModule + "/plugins/ipam/host-local",
			what: "the CNI plugin host-local", minutes: 1},
		{name: "portmap", module: "foreign", source: pluginsModule + "/plugins/meta/portmap", what: "the CNI plugin portmap", minutes: 1},
	},
}

// calicoModule is the module of Calico.
const calicoModule = "github.com/projectcalico/calico"

// pluginsModule is the module of CNI's reference plugins.
const pluginsModule = "github.com/containernetworking/plugins"

// target is one build of a product: what goes in and where it comes out.
type target struct {
	product
	module string   // the nested module's folder
	folder string   // the build's folder in the user's cache, named by the key
	env    []string // the go command's environment, beside the process's own
	args   []string // the arguments of go build, without the output file
}

func (t target) binary() string { return filepath.Join(t.folder, t.name) }

// newTarget computes the build that the module's present sources, below folder, ask for.
// Its key is a hash of everything that decides the result: the module's files, the flags, the Go version and the platform.
func newTarget(ctx context.Context, folder string, p product) (target, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return target{}, fmt.Errorf("find the user's cache: %w; set HOME or XDG_CACHE_HOME", err)
	}
	module := filepath.Join(folder, p.module)
	text, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return target{}, err
	}
	file, err := modfile.Parse(filepath.Join(module, "go.mod"), text, nil)
	if err != nil {
		return target{}, err
	}
	platform, err := goCommand(ctx, module, "env", "GOVERSION", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GOFIPS140")
	if err != nil {
		return target{}, err
	}
	t := target{
		product: p,
		module:  module,
		env:     []string{"CGO_ENABLED=0", "GOWORK=off"},
		args:    []string{"build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=" + linkerFlags(file)},
	}
	if p.seccomp {
		t.env[0] = "CGO_ENABLED=1"
		t.args[len(t.args)-1] += " -extldflags -static"
		t.args = append(t.args, "-tags=seccomp,netgo,osusergo")
	}
	key, err := t.key(platform)
	if err != nil {
		return target{}, err
	}
	t.folder = filepath.Join(cache, "packetwalk", "controlplane", p.module, key)
	return t, nil
}

// Modules of programs that run containers.
const (
	containerdModule = "github.com/containerd/containerd/v2"
	runcModule       = "github.com/opencontainers/runc"
)

// linkerFlags strips the program and stamps the releases that a module requires into the variables that upstreams' own builds stamp
// (Kubernetes' hack/lib/version.sh, containerd's Makefile); without them the API server, kubelet and kubectl would report v0.0.0-master.
func linkerFlags(module *modfile.File) string {
	flags := []string{"-s", "-w"}
	for _, require := range module.Require {
		release := require.Mod.Version
		switch require.Mod.Path {
		case calicoModule: // its pseudo-version does not say the release, so go.mod has that as a comment
			for _, comment := range require.Syntax.Suffix {
				_, release, _ = strings.Cut(comment.Token, "; ")
			}
			for _, pkg := range []string{"/pkg/buildinfo", "/felix/buildinfo"} { // since 3.28, and before
				flags = append(flags, "-X "+calicoModule+pkg+".Version="+release)
			}
		case containerdModule:
			flags = append(flags, "-X "+containerdModule+"/version.Version="+release)
		case runcModule:
			flags = append(flags, "-X main.version="+strings.TrimPrefix(release, "v"))
		case upstreamModule:
			major, minor, _ := strings.Cut(strings.TrimPrefix(release, "v"), ".")
			minor, _, _ = strings.Cut(minor, ".")
			for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
				for _, value := range []string{"gitVersion=" + release, "gitMajor=" + major, "gitMinor=" + minor, "gitTreeState=clean", "gitCommit="} {
					flags = append(flags, "-X "+pkg+"."+value)
				}
			}
		}
	}
	return strings.Join(flags, " ")
}

// key hashes names and contents of the module's own files, in order, with flags and platform.
func (t target) key(platform string) (string, error) {
	entries, err := os.ReadDir(t.module)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%q %q %q\n", platform, t.env, t.args)
	for _, entry := range entries {
		name := entry.Name()
		if !isSource(name) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(t.module, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(hash, "%q %x\n", name, sha256.Sum256(text))
	}
	return hex.EncodeToString(hash.Sum(nil))[:16], nil
}

// isSource tells the files that decide what is built.
func isSource(name string) bool {
	if name == "go.mod" || name == "go.sum" {
		return true
	}
	return strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
}

// build makes the program when the cache lacks it and points a link in the folder bin at it.
func build(ctx context.Context, folder, bin string, p product) error {
	t, err := newTarget(ctx, folder, p)
	if err != nil {
		return err
	}
	if !exists(t.binary()) {
		if err := t.buildOnce(ctx); err != nil {
			return err
		}
	}
	return relink(t.binary(), filepath.Join(bin, p.name))
}

// buildOnce builds under a lock, because a second clone may want the same program at the same time; the second then finds it made.
func (t target) buildOnce(ctx context.Context) error {
	if err := os.MkdirAll(t.folder, 0o755); err != nil {
		return err
	}
	unlock, err := lock(ctx, filepath.Join(t.folder, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if exists(t.binary()) {
		return nil
	}
	if t.files {
		return t.collect(ctx)
	}
	return t.compile(ctx)
}

// compile builds beside the final path and renames, so that the final name is a whole program or nothing. First it removes what an earlier,
// killed build left. The lock guarantees that no other build is using it.
func (t target) compile(ctx context.Context) error {
	partial := t.binary() + ".partial"
	if err := os.Remove(partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	defer os.Remove(partial)
	packages, err := t.packages(ctx)
	if err != nil {
		return err
	}
	started := time.Now()
	progress := newProgress(os.Stderr, term.IsTerminal(int(os.Stderr.Fd())), packages, started)
	fmt.Fprintf(os.Stderr, "building %s from the sources: %d packages, %d min or more on this machine, once for this version\n",
		t.what, len(packages), max(1, t.minutes/runtime.NumCPU()))
	command := t.goBuild(ctx, partial)
	if t.seccomp {
		env, remove, err := seccompLibrary(ctx, t.folder)
		if err != nil {
			return err
		}
		defer remove()
		command.Env = append(command.Env, env...)
	}
	command.Stdout, command.Stderr = progress, progress
	stop := progress.tick()
	err = command.Run()
	stop()
	if ctx.Err() != nil {
		return fmt.Errorf("build %s: stopped; what was compiled stays in Go's build cache, so the next build goes on from here", t.name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(command.Args, " "), err, progress.messages())
	}
	if err := os.Rename(partial, t.binary()); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "built %s in %s\n", t.binary(), time.Since(started).Round(time.Second))
	return nil
}

// collect writes the files of YAML of a folder of an upstream module into one.
func (t target) collect(ctx context.Context) error {
	dir, err := goCommand(ctx, t.module, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", calicoModule)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, strings.TrimPrefix(t.source, calicoModule), "*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("collect %s: no files of YAML in %s: %w", t.name, t.source, cmp.Or(err, fs.ErrNotExist))
	}
	var all []byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		all = append(append(all, "---\n"...), text...)
	}
	return atomicfile.Write(t.binary(), all, 0o644)
}

// goBuild returns the go command in a process group of its own, which an interrupt ends as a whole: go, compilers and linker. Without
// -vet=off go test would look at every package that a test imports.
func (t target) goBuild(ctx context.Context, output string) *exec.Cmd {
	args := slices.Concat(t.args, []string{"-v", "-o", output, t.source})
	if t.test {
		args = slices.Concat([]string{"test", "-c", "-vet=off"}, args[1:])
	}
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir = t.module
	command.Env = append(os.Environ(), t.env...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGINT) }
	command.WaitDelay = 5 * time.Second
	return command
}

// packages lists what the program links, itself last: the most that one build can have to compile. What is not in the module cache is
// downloaded.
func (t target) packages(ctx context.Context) ([]string, error) {
	list := func(env ...string) (string, error) {
		args := []string{"list", "-mod=readonly", "-deps", fmt.Sprintf("-test=%t", t.test), t.source}
		command := exec.CommandContext(ctx, "go", args...)
		command.Dir, command.Env = t.module, slices.Concat(os.Environ(), t.env, env)
		return output(command)
	}
	all, err := list("GOPROXY=off")
	if err != nil {
		started := time.Now()
		fmt.Fprintf(os.Stderr, "downloading the sources of %s: ", t.what)
		all, err = list()
		fmt.Fprintf(os.Stderr, "%.0f s\n", time.Since(started).Seconds())
	}
	if err != nil {
		return nil, err
	}
	return strings.Split(all, "\n"), nil
}

// lock takes the file's lock, waiting for another build's end; ctx ends the wait.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = filelock.Take(ctx, file, func() {
		fmt.Fprintln(os.Stderr, "another build of the same program is under way; waiting for it")
	})
	if err != nil {
		file.Close()
		return nil, err
	}
	return func() { file.Close() }, nil
}

// relink makes link a symbolic link to path, replacing what was there in one step.
func relink(path, link string) error {
	if present, err := os.Readlink(link); err == nil && present == path {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return err
	}
	temporary := fmt.Sprintf("%s.%d", link, os.Getpid())
	if err := os.Symlink(path, temporary); err != nil {
		return err
	}
	if err := os.Rename(temporary, link); err != nil {
		os.Remove(temporary)
		return err
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// goCommand runs the go command in dir and returns what it prints, without the last line's end.
func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir = dir
	command.Env = append(os.Environ(), "GOWORK=off")
	return output(command)
}

func output(command *exec.Cmd) (string, error) {
	var stderr bytes.Buffer
	command.Stderr = &stderr
	text, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(command.Args, " "), err, stderr.String())
	}
	return strings.TrimSuffix(string(text), "\n"), nil
}
