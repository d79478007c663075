package places

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/bpflock"
	"packetwalk.dev/internal/testing/eventually"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/runc"
	"packetwalk.dev/test/world"
)

// A place runs commands in another root.
type place struct {
	root    string // as this machine sees it
	command func(ctx context.Context, args ...string) *exec.Cmd
}

// try runs a command there.
func (p *place) try(limit time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := p.command(ctx, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w\n%s%s", strings.Join(args, " "), errors.Join(err, ctx.Err()), out.String(), errs.String())
	}
	return out.String(), nil
}

// limit bounds each command and each wait. A machine may be emulated.
const limit = 15 * time.Minute

func (p *place) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := p.try(limit, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// newRoot makes a root directory with this machine's programs and the project's: a plain directory of a shared mount, as a build daemon's
// below a machine's shared root.
func newRoot(t *testing.T) string {
	t.Helper()
	base := t.TempDir()
	mount(t, "tmpfs", base, "tmpfs", 0, "")
	if err := unix.Mount("", base, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(base, "root")
	for _, dir := range []string{"dev", "proc", "root", "run", "sys", "tmp", "var/lib", "var/tmp"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		target, err := os.Readlink("/" + name)
		if errors.Is(err, os.ErrNotExist) {
			continue // an architecture without it
		}
		if err == nil {
			err = os.Symlink(target, filepath.Join(root, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// shared returns the directories of this machine that a root has, read-only.
func shared(t *testing.T, w *world.World) []string {
	t.Helper()
	all := []string{"/usr", "/etc", "/var/lib/dpkg", w.Root}
	for _, program := range []string{"packetwalk-controlplane", "realnode/containerd", "realnode/kubelet", "realnode/runc",
		"base/whole.tar"} {
		// They may be links to a cache.
		file, err := filepath.EvalSymlinks(filepath.Join(w.Root, "bin", program))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if dir := filepath.Dir(file); !strings.HasPrefix(dir, w.Root+"/") && !slices.Contains(all, dir) {
			all = append(all, dir)
		}
	}
	return all
}

func mount(t *testing.T, source, target, kind string, flags uintptr, options string) {
	t.Helper()
	err := os.MkdirAll(target, 0o755)
	if err == nil {
		err = unix.Mount(source, target, kind, flags, options)
	}
	if err != nil {
		t.Fatalf("mount %s: %v", target, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", target, err)
		}
	})
}

// path is a user's, without the directories where many of the programs are that labs run.
const path = "PATH=/usr/bin:/bin"

// newNetwork makes a network namespace whose loopback link is down, and returns a file that holds it. Other tests compare /run/netns, where
// "ip netns" would put it.
func newNetwork(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "network")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("unshare", "--net="+file, "true").CombinedOutput(); err != nil {
		t.Fatalf("unshare: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(file, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return file
}

// chroot makes a root directory that is no mount point, without control groups, and a network whose loopback link is down.
func chroot(t *testing.T, w *world.World) *place {
	root := newRoot(t)
	for _, dir := range shared(t, w) {
		mount(t, dir, filepath.Join(root, dir), "", unix.MS_BIND, "")
	}
	mount(t, "proc", filepath.Join(root, "proc"), "proc", 0, "")
	mount(t, "sysfs", filepath.Join(root, "sys"), "sysfs", 0, "")
	mount(t, "/dev", filepath.Join(root, "dev"), "", unix.MS_BIND, "")
	network := newNetwork(t)
	return &place{root: root, command: func(ctx context.Context, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + network, "/usr/sbin/chroot", root}, args...)...)
		cmd.Env, cmd.Dir = []string{path, "HOME=/root"}, "/"
		return cmd
	}}
}

// modules are where a kernel's modules are.
const modules = "/usr/lib/modules"

// runcOf returns the path of upstream's runc.
func runcOf(w *world.World) string { return filepath.Join(w.Root, "bin", "realnode", "runc") }

// container starts a privileged container whose root, with /var/lib, is on overlayfs.
func container(t *testing.T, w *world.World, spec runc.Spec) *place {
	lower := newRoot(t)
	base := filepath.Dir(lower)
	spec.Program, spec.Root, spec.Env = runcOf(w), filepath.Join(base, "merged"), []string{path}
	for _, dir := range []string{"upper", "work"} {
		if err := os.Mkdir(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mount(t, "overlay", spec.Root, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", lower, base, base))
	for _, dir := range shared(t, w) {
		spec.Mounts = append(spec.Mounts, runc.Bind(dir, "ro"))
	}
	if _, err := os.Stat(modules); err == nil { // the machine's are not the container's
		spec.Mounts = append(spec.Mounts, runc.Mount{Destination: modules, Type: "tmpfs", Source: "tmpfs"})
	}
	name := fmt.Sprintf("places-%d-%s", os.Getpid(), strings.ToLower(filepath.Base(t.Name())))
	c, err := runc.Start(t.Context(), name, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Remove(); err != nil {
			t.Error(err)
		}
	})
	return &place{root: spec.Root, command: c.Command}
}

// TestPlaces brings a lab up in each place, asks it from the internet, compares the walk with the kernel, and finds nothing of it
// afterwards.
func TestPlaces(t *testing.T) {
	w := world.New(t, fmt.Sprintf("places-%d", os.Getpid()))
	for name, enter := range map[string]func(*testing.T) *place{
		"chroot":    func(t *testing.T) *place { return chroot(t, w) },
		"container": func(t *testing.T) *place { return container(t, w, runc.Spec{Mounts: []runc.Mount{runc.Cgroups}}) },
	} {
		t.Run(name, func(t *testing.T) {
			lab(t, w, enter(t))
		})
	}
}

// agreement is the last line of a walk whose steps are the kernel's.
var agreement = regexp.MustCompile(`(?m)^kernel: ([0-9]+) of ([0-9]+) steps agree`)

func lab(t *testing.T, w *world.World, p *place) {
	packetwalk := filepath.Join(w.Root, "bin", "packetwalk")
	const config = "apiVersion: packetwalk.dev/v1alpha1\nkind: Cluster\n"
	if err := os.WriteFile(filepath.Join(p.root, "tmp", "cluster.yaml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	before := p.state(t)
	t.Cleanup(func() { _, _ = p.try(limit, packetwalk, "down", "--name", w.Name) }) // it is down, or the test has failed
	t.Log(p.run(t, packetwalk, "up", "--name", w.Name, "-f", "/tmp/cluster.yaml"))
	p.run(t, packetwalk, "kubectl", "--name", w.Name, "apply", "-f", w.Example("azure-cni", "whereami.yaml"))
	p.run(t, packetwalk, "kubectl", "--name", w.Name, "rollout", "status", "deployment/whereami", "--timeout=10m")
	eventually.Succeeds(t, time.Minute, func() error {
		address, err := p.try(time.Minute, packetwalk, "kubectl", "--name", w.Name, "get", "service", "whereami", "-o",
			"jsonpath={.status.loadBalancer.ingress[0].ip}")
		if err != nil || address == "" {
			return errors.Join(err, errors.New("the service has no address"))
		}
		_, err = p.try(time.Minute, packetwalk, "ssh", "--name", w.Name, "client", "--", "curl", "-sSf", "-m", "5", "http://"+address)
		return err
	})
	unlock, err := bpflock.Walk()
	if err != nil {
		t.Fatal(err)
	}
	walk := p.run(t, packetwalk, "walk", "--name", w.Name, "--live", "--from", "internet", "--to", "svc/whereami")
	unlock()
	if steps := agreement.FindStringSubmatch(walk); steps == nil || steps[1] != steps[2] {
		t.Errorf("walk and kernel differ:\n%s", walk)
	}
	const node = "aks-nodepool1-31351229-0"
	if out := p.run(t, packetwalk, "ssh", "--name", w.Name, node, "--", "cat", "/etc/hostname", "/proc/1/comm"); out != node+"\npacketwalk-init\n" {
		t.Errorf("the node's name and first process are %q", out)
	}
	p.run(t, packetwalk, "down", "--name", w.Name)
	if after := p.state(t); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// state has everything that a lab must leave as it was: files, mounts, control groups, links and processes.
func (p *place) state(t *testing.T) string {
	t.Helper()
	return p.run(t, "sh", "-c", `
		find /run /var /tmp -xdev -not -path '/var/lib/packetwalk-images*' | sort
		cut -d' ' -f5- /proc/self/mountinfo
		find /sys/fs/cgroup -type d
		ls /sys/class/net /sys/block`)
}
