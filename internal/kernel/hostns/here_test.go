package hostns

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestNamespacesOfAMachine: which network namespaces there are, and whose, from a machine's files. A namespace is told by its inode number,
// as in the real /proc.
func TestNamespacesOfAMachine(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	process := func(pid, netns, cgroup string) {
		t.Helper()
		write("proc/"+pid+"/cgroup", cgroup)
		if err := os.MkdirAll(filepath.Join(root, "proc", pid, "ns"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(filepath.Join(root, netns), filepath.Join(root, "proc", pid, "ns/net")); err != nil {
			t.Fatal(err)
		}
	}
	for _, ns := range []string{"own", "logged", "unlogged", "foreign", "forged"} {
		write(ns, "")
	}
	const systemd = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12345678_9abc_4def_8123_456789abcdef.slice/cri-containerd-ff.scope\n"
	const cgroupfs = "12:pids:/kubepods/besteffort/podaaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee/ff\n"
	process("thread-self", "own", "0::/\n")
	process("1", "own", "0::/init.scope\n")
	process("20", "logged", systemd)
	process("21", "logged", systemd)
	process("30", "unlogged", cgroupfs)
	// One that a container made of its own, by a process with a lower number: numbers are used again.
	process("19", "forged", systemd)
	write("proc/19/stat", "19 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 900 20\n")
	write("proc/21/stat", "21 (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 600 20\n")
	write("proc/20/stat", "20 (pause) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 500 20\n")
	process("40", "foreign", "0::/system.slice/docker-ff.scope\n")
	write("proc/meminfo", "")
	write("proc/30/root/etc/hostname", "web-0\n") // which its container may have written
	write("var/log/pods/kube-system_coredns-7d_12345678-9abc-4def-8123-456789abcdef/coredns/0.log", "")
	write("etc/hostname", "aks-nodepool1-1-0\n")

	m := machine{proc: filepath.Join(root, "proc"), root: root, logs: root + podLogs, inside: true}
	paths, err := m.namespaces()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"node/aks-nodepool1-1-0": "thread-self", "pod/kube-system/coredns-7d": "20"}
	for _, pid := range []string{"19", "30", "40"} {
		inode, err := netnsOf(filepath.Join(root, "proc", pid))
		if err != nil {
			t.Fatal(err)
		}
		want["netns/"+mountedName(nil, inode)] = pid
	}
	var got []string
	for name, path := range paths {
		got = append(got, name)
		if path != filepath.Join(root, "proc", want[name], "ns/net") {
			t.Errorf("%s is at %s, want that of process %s", name, path, want[name])
		}
	}
	if len(got) != len(want) {
		slices.Sort(got)
		t.Errorf("namespaces %v", got)
	}
}

// TestUnreadProcess: a process that may not be looked at may have the files. It has not ended.
func TestUnreadProcess(t *testing.T) {
	if !kerneltest.WithoutRights(t) {
		return
	}
	if _, err := (machine{proc: "/proc"}).files(1, maxFile, []string{"etc/hosts"}); !errors.Is(err, unix.EACCES) {
		t.Errorf("files of a namespace: error %v, want EACCES", err)
	}
}

// TestNamesOfOthers: kubelet's directories and ip-netns(8)'s names give no name that a capture cannot have either.
func TestNamesOfOthers(t *testing.T) {
	logs := t.TempDir()
	for _, name := range []string{"shop_web-0_u1", "shop_.._u2", "._web_u3", "Shop_web_u4", "a b_web_u5"} {
		if err := os.Mkdir(filepath.Join(logs, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := (machine{logs: logs}).pods(); len(got) != 1 || got["u1"] != "shop/web-0" {
		t.Errorf("pods %v", got)
	}
	if got := mountedName(map[string]uint64{"/run/netns/a b": 7, "/run/netns/red": 8}, 7); got != "7" {
		t.Errorf("namespace %q", got)
	}
}

// TestOwnNamespace: the node's own namespace is found while libraries take threads of this process, also its first one, into others.
func TestOwnNamespace(t *testing.T) {
	kerneltest.NeedRoot(t)
	own, err := netnsOf("/proc/thread-self")
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.Create(filepath.Join(t.TempDir(), "other"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Remove() })
	ctx, stop := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	defer busy.Wait()
	defer stop()
	for range 32 {
		busy.Go(func() {
			for ctx.Err() == nil {
				if c, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: ns.FD()}); err == nil {
					_ = c.Close()
				}
			}
		})
	}
	m := machine{proc: "/proc", name: "n"}
	for range 20 {
		paths, err := m.namespaces()
		if err != nil {
			t.Fatal(err)
		}
		found, err := netns.Open(paths["node/n"])
		if err != nil {
			t.Fatal(err)
		}
		if found.Inode() != own {
			t.Errorf("the node's namespace is %d at %s, want %d", found.Inode(), found.Path(), own)
		}
		_ = found.Close()
	}
}
