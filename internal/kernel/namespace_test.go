package kernel_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/testing/kerneltest"
)

func inode(t testing.TB) string {
	t.Helper()
	s, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func namespace(t testing.TB, path string) *kernel.Namespace {
	t.Helper()
	ns, err := kernel.CreateNamespace(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Remove() })
	return ns
}

func TestNamespaceLife(t *testing.T) {
	kerneltest.NeedRoot(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "deep", "a")
	home := inode(t)
	ns := namespace(t, path)
	if _, err := kernel.CreateNamespace(path); !errors.Is(err, os.ErrExist) {
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
	again, err := kernel.OpenNamespace(path)
	if err != nil {
		t.Fatal(err)
	}
	if again.Inode() != ns.Inode() {
		t.Error("opened another namespace")
	}
	again.Close()
	mounted, err := kernel.MountedNamespaces(dir)
	if err != nil || len(mounted) != 1 || mounted[path] != ns.Inode() {
		t.Errorf("mounted %v, %v", mounted, err)
	}
	for range 2 {
		if err := ns.Remove(); err != nil {
			t.Error(err)
		}
	}
	if _, err := kernel.OpenNamespace(path); !errors.Is(err, os.ErrNotExist) {
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
	if _, err := kernel.OpenNamespace(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("opened a plain file: %v", err)
	}
	ns, made, err := kernel.EnsureNamespace(path)
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
	ns := namespace(t, t.TempDir()+"/p")
	cmd := exec.Command("sleep", "60")
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	pids, err := kernel.Processes(ns.Inode())
	if err != nil || !slices.Equal(pids, []int{cmd.Process.Pid}) {
		t.Errorf("pids %v, want %d: %v", pids, cmd.Process.Pid, err)
	}
	if err := kernel.KillIn(t.Context(), ns); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if pids, err = kernel.Processes(ns.Inode()); err != nil || len(pids) != 0 {
		t.Errorf("pids %v, %v", pids, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	const beyond = 1 << 30 // the kernel gives no such pid: that nobody has it is no error of its own
	never := func() ([]int, error) { return []int{beyond}, nil }
	if err := kernel.Kill(ended, never); !errors.Is(err, context.Canceled) {
		t.Errorf("processes that do not end: %v", err)
	}
}

// TestRemount takes away the mount of a namespace, in each way, and mounts the same namespace there again.
func TestRemount(t *testing.T) {
	kerneltest.NeedRoot(t)
	for name, lose := range map[string]func(path string) error{
		"unmounted": func(path string) error { return unix.Unmount(path, unix.MNT_DETACH) },
		"removed":   kernel.RemoveNamespace,
		"directory removed": func(path string) error {
			return errors.Join(kernel.RemoveNamespace(path), os.Remove(filepath.Dir(path)))
		},
		"another mounted": func(path string) error {
			other, err := kernel.CreateNamespace(path + ".other")
			if err != nil {
				return err
			}
			return errors.Join(kernel.RemoveNamespace(path), os.WriteFile(path, nil, 0o400),
				unix.Mount(other.Path(), path, "", unix.MS_BIND, ""), other.Remove())
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := namespace(t, filepath.Join(t.TempDir(), "dir", "ns"))
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
			again, err := kernel.OpenNamespace(ns.Path())
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
	ns := namespace(t, path)
	cmd := exec.Command("sleep", "60")
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if err := ns.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := kernel.BindNamespaceOf(cmd.Process.Pid, path); err != nil {
		t.Fatal(err)
	}
	again, err := kernel.OpenNamespace(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { again.Remove() })
	if again.Inode() != ns.Inode() {
		t.Errorf("inode %d is mounted, want %d", again.Inode(), ns.Inode())
	}
}

func BenchmarkCreateNamespace(b *testing.B) {
	kerneltest.NeedRoot(b)
	dir := b.TempDir()
	for i := 0; b.Loop(); i++ {
		ns := namespace(b, fmt.Sprintf("%s/%d", dir, i))
		ns.Remove()
	}
}

// TestFirstThread: a process shows its first thread's namespace as its own, to itself and to others, so that one is never borrowed.
func TestFirstThread(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := namespace(t, filepath.Join(t.TempDir(), "a"))
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
