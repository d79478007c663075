// Command fresh runs the README's two commands, make demo and make test, in new root directories of Debian with nothing but git, make, sudo
// and CA certificates: each in a clean clone of the repository and in a privileged container with the machine's network.
//
//	fresh [-cache] [-run COMMANDS] SUITE...
//
// With -cache, which is for work on what fails there, it has the machine's Go and copies of its caches.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"packetwalk.dev/internal/testing/runc"
)

func main() {
	log := func(format string, a ...any) { fmt.Printf("fresh: "+format+"\n", a...) }
	cache := flag.Bool("cache", false, "use the machine's Go and its caches")
	commands := flag.String("run", "make demo && make test", "shell `commands` to run in the clone")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: fresh [-cache] [-run COMMANDS] SUITE...")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed := false
	for _, suite := range flag.Args() {
		begin := time.Now()
		log("Debian %s: %s", suite, *commands)
		err := try(ctx, suite, *commands, *cache)
		took := time.Since(begin).Round(time.Second)
		if failed = failed || err != nil; err != nil {
			log("Debian %s failed after %v: %v", suite, took, err)
			continue
		}
		log("Debian %s passed in %v", suite, took)
	}
	if failed {
		os.Exit(1)
	}
}

// limit bounds the commands in one root. Without caches they build upstream's control plane and run all tests.
const limit = 3 * time.Hour

// clone is where a root has the repository.
const clone = "/root/packetwalk"

// oldGo are suites whose package of Go cannot download a newer version. The README asks for one beside it there.
var oldGo = map[string]bool{"bookworm": true}

func try(ctx context.Context, suite, commands string, cache bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	dir, err := os.MkdirTemp("/var/tmp", "packetwalk-fresh-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	root := filepath.Join(dir, "root")
	if err := makeRoot(ctx, suite, root); err != nil {
		return err
	}
	// The shell collects orphans while it waits, as a machine's first process does.
	spec := runc.Spec{Program: "bin/realnode/runc", Args: []string{"sh", "-c", "while sleep 1; do :; done"}, Root: root, HostNetwork: true,
		Mounts: []runc.Mount{runc.Cgroups}}
	if oldGo[suite] || cache {
		if err := addGo(&spec); err != nil {
			return err
		}
	}
	if cache {
		if err := addCaches(&spec, dir); err != nil {
			return err
		}
	}
	for _, name := range []string{"http_proxy", "https_proxy", "no_proxy", "GOPROXY", "GOSUMDB", "GONOSUMDB"} {
		if value, ok := os.LookupEnv(name); ok {
			spec.Env = append(spec.Env, name+"="+value)
		}
	}
	c, err := runc.Start(ctx, fmt.Sprintf("packetwalk-fresh-%d-%s", os.Getpid(), suite), spec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Remove()) }()
	return show(c.Command(ctx, "sh", "-ec", "cd "+clone+"; "+commands))
}

func show(cmd *exec.Cmd) error {
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return nil
}

// makeRoot makes a root directory of Debian, with a clone of the repository that is the current directory.
func makeRoot(ctx context.Context, suite, root string) error {
	err := show(exec.CommandContext(ctx, "mmdebstrap", "--quiet", "--variant=minbase", "--include=git,make,sudo,ca-certificates",
		suite, root))
	if err != nil {
		return err
	}
	// The root uses this machine's name servers and trusts its certificate authorities.
	for _, file := range []string{"/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt"} {
		if err := copyFile(file, filepath.Join(root, file)); err != nil {
			return err
		}
	}
	return show(exec.CommandContext(ctx, "git", "clone", "--quiet", "--no-hardlinks", ".", filepath.Join(root, clone)))
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// addGo gives a container this machine's Go, first in PATH.
func addGo(spec *runc.Spec) error {
	root, err := goEnv("GOROOT")
	if err != nil {
		return err
	}
	spec.Mounts = append(spec.Mounts, runc.Bind(root, "ro"))
	spec.Env = append(spec.Env, "PATH="+root+"/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	return nil
}

// addCaches gives a container this machine's caches. What it changes of them is below dir.
func addCaches(spec *runc.Spec, dir string) error {
	own, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	caches := map[string]string{filepath.Join(own, "packetwalk", "controlplane"): "/root/.cache/packetwalk/controlplane"}
	for name, target := range map[string]string{"GOMODCACHE": "/root/go/pkg/mod", "GOCACHE": "/root/.cache/go-build"} {
		if own, err = goEnv(name); err != nil {
			return err
		}
		caches[own] = target
	}
	for source, target := range caches {
		upper, work := filepath.Join(dir, "upper", target), filepath.Join(dir, "work", target)
		if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
			return err
		}
		spec.Mounts = append(spec.Mounts, runc.Mount{Destination: target, Type: "overlay", Source: "overlay",
			Options: []string{"lowerdir=" + source, "upperdir=" + upper, "workdir=" + work}})
	}
	return nil
}

func goEnv(name string) (string, error) {
	out, err := exec.Command("go", "env", name).Output()
	return strings.TrimSpace(string(out)), err
}
