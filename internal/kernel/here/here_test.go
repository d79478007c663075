package here

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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
	for _, ns := range []string{"own", "logged", "unlogged", "foreign"} {
		write(ns, "")
	}
	const systemd = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12345678_9abc_4def_8123_456789abcdef.slice/cri-containerd-ff.scope\n"
	const cgroupfs = "12:pids:/kubepods/besteffort/podaaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee/ff\n"
	process("self", "own", "0::/\n")
	process("1", "own", "0::/init.scope\n")
	process("20", "logged", systemd)
	process("21", "logged", systemd)
	process("30", "unlogged", cgroupfs)
	process("40", "foreign", "0::/system.slice/docker-ff.scope\n")
	write("proc/meminfo", "")
	write("proc/30/root/etc/hostname", "web-0\n")
	write("proc/30/root/etc/resolv.conf", "nameserver 10.0.0.10\nsearch shop.svc.cluster.local svc.cluster.local cluster.local\n")
	write("var/log/pods/kube-system_coredns-7d_12345678-9abc-4def-8123-456789abcdef/coredns/0.log", "")
	write("etc/hostname", "aks-nodepool1-1-0\n")

	m := machine{proc: filepath.Join(root, "proc"), root: root, logs: root + podLogs, inside: true}
	paths, err := m.namespaces()
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := netnsOf(filepath.Join(root, "proc/40"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"node/aks-nodepool1-1-0": "self", "pod/kube-system/coredns-7d": "20", "pod/shop/web-0": "30", "netns/" + mountedName(nil, foreign): "40",
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

// TestNamesThatContainersWrite: what a container has in place of the files that tell whose it is neither leads out of it, nor fills the
// memory, nor waits, nor gives a name that a capture cannot have.
func TestNamesThatContainersWrite(t *testing.T) {
	const search = "search shop.svc.cluster.local\n"
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("outside\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := func(text string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(text), 0o644) }
	}
	link := func(to string) func(string) error { return func(path string) error { return os.Symlink(to, path) } }
	tests := map[string]struct {
		hostname, resolv func(path string) error
		want             string
	}{
		"plain":                 {text("web-0\n"), text(search), "pod/shop/web-0"},
		"link in the container": {link("/run/name"), text(search), "pod/shop/inside"},
		"link that climbs":      {link("../../../run/name"), text(search), "pod/shop/inside"},
		"link out":              {link(secret), text(search), ""},
		"link to a device":      {link("/dev/zero"), text(search), ""},
		"FIFO":                  {func(path string) error { return unix.Mkfifo(path, 0o644) }, text(search), ""},
		"FIFO of name servers":  {text("web-0\n"), func(path string) error { return unix.Mkfifo(path, 0o644) }, ""},
		"directory":             {func(path string) error { return os.Mkdir(path, 0o755) }, text(search), ""},
		"long":                  {text(strings.Repeat("a", maxFile+1)), text(search), ""},
		"long name":             {text(strings.Repeat("a", 254)), text(search), ""},
		"blank":                 {text("a b\n"), text(search), ""},
		"control character":     {text("a\x1b[2J\n"), text(search), ""},
		"parent":                {text("..\n"), text(search), ""},
		"slash":                 {text("a/b\n"), text(search), ""},
		"empty":                 {text("\n"), text(search), ""},
		"namespace":             {text("web-0\n"), text("search a/b.svc.cluster.local\n"), ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			etc := filepath.Join(dir, "7/root/etc")
			run := filepath.Join(dir, "7/root/run")
			cgroup := "0::/kubepods/podaaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee/ff\n"
			err := errors.Join(os.MkdirAll(etc, 0o755), os.MkdirAll(run, 0o755), os.WriteFile(filepath.Join(run, "name"), []byte("inside\n"), 0o644),
				os.WriteFile(filepath.Join(dir, "7/cgroup"), []byte(cgroup), 0o644), test.hostname(etc+"/hostname"), test.resolv(etc+"/resolv.conf"))
			if err != nil {
				t.Fatal(err)
			}
			if got := (machine{proc: dir}).podName("7", nil); got != test.want {
				t.Errorf("the pod is %q, want %q", got, test.want)
			}
		})
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
