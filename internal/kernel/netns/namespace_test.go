package netns_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/testing/netnstest"
)

func inode(t testing.TB) string {
	t.Helper()
	s, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestNamespaceLife(t *testing.T) {
	kerneltest.NeedRoot(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "deep", "a")
	home := inode(t)
	ns := netnstest.Create(t, path)
	if _, err := netns.Create(path); !errors.Is(err, os.ErrExist) {
		t.Errorf("created twice: %v", err)
	}
	err := ns.Do(func() error {
		if in := inode(t); in == home || in != fmt.Sprintf("net:[%d]", ns.Inode()) {
			return fmt.Errorf("in %s, want %d", in, ns.Inode())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	again, err := netns.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if again.Inode() != ns.Inode() {
		t.Error("opened another namespace")
	}
	again.Close()
	mounted, err := netns.Mounted(dir)
	if err != nil || len(mounted) != 1 || mounted[path] != ns.Inode() {
		t.Errorf("mounted %v, %v", mounted, err)
	}
	for range 2 {
		if err := ns.Remove(); err != nil {
			t.Error(err)
		}
	}
	if _, err := netns.Open(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
	noThreadOutside(t, home)
}

// A process that died leaves a file with nothing mounted.
func TestNamespaceOverAPlainFile(t *testing.T) {
	kerneltest.NeedRoot(t)
	home := inode(t)
	path := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(path, nil, 0o400); err != nil {
		t.Fatal(err)
	}
	if _, err := netns.Open(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("opened a plain file: %v", err)
	}
	ns, made, err := netns.Ensure(path)
	if err != nil || !made {
		t.Fatal(made, err)
	}
	if err := ns.Remove(); err != nil {
		t.Error(err)
	}
	noThreadOutside(t, home)
}

// noThreadOutside checks that no thread was left in another namespace, whichever runs the goroutines.
func noThreadOutside(t *testing.T, home string) {
	t.Helper()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if in := inode(t); in != home {
				t.Errorf("a thread is in %s, not in %s", in, home)
			}
		})
	}
	wg.Wait()
}

func TestProcesses(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := netnstest.Create(t, t.TempDir()+"/p")
	cmd := exec.Command("sleep", "60")
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	pids, err := netns.Processes(ns.Inode())
	if err != nil || !slices.Equal(pids, []int{cmd.Process.Pid}) {
		t.Errorf("pids %v, want %d: %v", pids, cmd.Process.Pid, err)
	}
	if err := netns.KillIn(t.Context(), ns); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if pids, err = netns.Processes(ns.Inode()); err != nil || len(pids) != 0 {
		t.Errorf("pids %v, %v", pids, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	const beyond = 1 << 30 // the kernel assigns no such pid; Kill ignores that no process has it
	never := func() ([]int, error) { return []int{beyond}, nil }
	if err := netns.Kill(ended, never); !errors.Is(err, context.Canceled) {
		t.Errorf("processes that do not end: %v", err)
	}
}

// TestRemount takes away the mount of a namespace, in each way, and mounts the same namespace there again.
func TestRemount(t *testing.T) {
	kerneltest.NeedRoot(t)
	for name, lose := range map[string]func(path string) error{
		"unmounted": func(path string) error { return unix.Unmount(path, unix.MNT_DETACH) },
		"removed":   netns.Remove,
		"directory removed": func(path string) error {
			return errors.Join(netns.Remove(path), os.Remove(filepath.Dir(path)))
		},
		"another mounted": func(path string) error {
			other, err := netns.Create(path + ".other")
			if err != nil {
				return err
			}
			return errors.Join(netns.Remove(path), os.WriteFile(path, nil, 0o400),
				unix.Mount(other.Path(), path, "", unix.MS_BIND, ""), other.Remove())
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.Create(t, filepath.Join(t.TempDir(), "dir", "ns"))
			if !ns.IsMounted() {
				t.Fatal("a new namespace is not mounted")
			}
			if err := lose(ns.Path()); err != nil {
				t.Fatal(err)
			}
			if ns.IsMounted() {
				t.Fatal("the mount is lost and said to be there")
			}
			if err := ns.Remount(); err != nil {
				t.Fatal(err)
			}
			again, err := netns.Open(ns.Path())
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			if again.Inode() != ns.Inode() || !ns.IsMounted() {
				t.Errorf("inode %d is mounted, want %d", again.Inode(), ns.Inode())
			}
		})
	}
}

// TestBindNamespaceOf mounts the namespace that a process lives in when nothing else leads there any more.
func TestBindNamespaceOf(t *testing.T) {
	kerneltest.NeedRoot(t)
	path := filepath.Join(t.TempDir(), "ns")
	ns := netnstest.Create(t, path)
	cmd := exec.Command("sleep", "60")
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if err := ns.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := netns.BindOf(cmd.Process.Pid, path); err != nil {
		t.Fatal(err)
	}
	again, err := netns.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { again.Remove() })
	if again.Inode() != ns.Inode() {
		t.Errorf("inode %d is mounted, want %d", again.Inode(), ns.Inode())
	}
}

// TestFirstThread: a process shows its first thread's namespace as its own, to itself and to others, so that one is never borrowed.
func TestFirstThread(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := netnstest.Create(t, filepath.Join(t.TempDir(), "a"))
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for range 100 {
				err := ns.Do(func() error {
					seen, err := os.Readlink("/proc/self/ns/net")
					if err == nil && seen != own {
						err = fmt.Errorf("the process is in %s; it began in %s", seen, own)
					}
					return err
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// TestKeepEnded: with all ports of a translation in use by connections that have ended, the kernel gives a new one the port of one of them,
// unless that is kept.
func TestKeepEnded(t *testing.T) {
	a, b := netnstest.Pair(t)
	if err := ruleset.ApplyNFT(t.Context(), a,
		"table ip t { chain c { type nat hook postrouting priority 100; ip protocol tcp snat to 10.9.0.1:7000-7001\n }\n }\n"); err != nil {
		t.Fatal(err)
	}
	l, err := b.Listen(t.Context(), "tcp", "10.9.0.2:80")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, c); c.Close() }()
		}
	}()
	// connect makes a connection and ends it from this side. It tries several times, because the kernel takes the port of a connection
	// only for one whose sequence numbers, which are random, are greater (nf_seq_has_advanced).
	connect := func(tries int) (err error) {
		for range tries {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			c, failed := a.Dial(ctx, "tcp", "10.9.0.2:80")
			cancel()
			if err = failed; err == nil {
				return c.Close()
			}
		}
		return err
	}
	ended := func() int {
		return strings.Count(netnstest.Run(t, a, "conntrack", "-L", "-p", "tcp"), "TIME_WAIT")
	}
	// fill has both ports in use by connections that have ended. It may take more than two: the kernel takes an ended one's port also where
	// the other is free.
	fill := func() {
		t.Helper()
		for range 100 {
			if ended() == 2 {
				return
			}
			if err := connect(40); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Fatalf("want 2 ended connections: %s", netnstest.Run(t, a, "conntrack", "-L"))
	}
	fill()
	if err := connect(40); err != nil {
		t.Errorf("with none kept: %v", err)
	}
	fill()
	if err := a.KeepEnded(netns.FlowFilter{Protocol: 6, Destination: netip.MustParsePrefix("10.9.0.3/32")}); err != nil {
		t.Fatal(err)
	}
	if err := connect(40); err != nil {
		t.Errorf("with entries to other endpoints kept: %v", err)
	}
	fill()
	if err := a.KeepEnded(netns.FlowFilter{Protocol: 6, Destination: netip.MustParsePrefix("10.9.0.2/32")}); err != nil {
		t.Fatal(err)
	}
	if err := connect(8); err == nil {
		t.Error("with both kept, a third connection got a port")
	}
	if n := ended(); n != 2 {
		t.Errorf("%d ended connections, want 2", n)
	}
}

func TestSockets(t *testing.T) {
	a, b := netnstest.Pair(t)
	l, err := b.Listen(t.Context(), "tcp", "10.9.0.2:80")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, c.RemoteAddr())
			c.Close()
		}
	}()
	netnstest.Apply(t, a, netns.State{Addresses: []netns.Address{{Link: "lo", Prefix: netip.MustParsePrefix("10.9.0.77/32")}}})
	for _, local := range []netip.Addr{{}, netip.MustParseAddr("10.9.0.77")} {
		c, err := a.DialFrom(t.Context(), "tcp", local, "10.9.0.2:80")
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(c)
		c.Close()
		want := "10.9.0.1:"
		if local.IsValid() {
			want = local.String() + ":"
		}
		if !strings.HasPrefix(string(got), want) {
			t.Errorf("came from %s, want %s", got, want)
		}
	}
	if _, err := a.Dial(t.Context(), "tcp", "name:80"); err == nil {
		t.Error("dialled a name")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.Dial(ctx, "tcp", "10.9.0.99:80"); !errors.Is(err, context.DeadlineExceeded) && !os.IsTimeout(err) &&
		!errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("dial to nobody: %v", err)
	}
	p, err := b.ListenPacket(t.Context(), "udp", "10.9.0.2:53")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	u, err := a.Dial(t.Context(), "udp", "10.9.0.2:53")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	fmt.Fprint(u, "hello")
	buf := make([]byte, 16)
	p.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, from, err := p.ReadFrom(buf); err != nil || string(buf[:n]) != "hello" || from.(*net.UDPAddr).IP.String() != "10.9.0.1" {
		t.Errorf("got %q from %v, %v", buf[:n], from, err)
	}
}
