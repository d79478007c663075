package container_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/testing/containertest"
	"packetwalk.dev/internal/testing/kerneltest"
)

// netns makes a named network namespace with its loopback up.
func (m *machine) netns(name string) string {
	m.Helper()
	name = fmt.Sprintf("pwct%d-%s", os.Getpid(), name)
	m.ip("netns", "add", name)
	m.Cleanup(func() { m.ip("netns", "del", name) })
	m.ip("-n", name, "link", "set", "lo", "up")
	return name
}

func (m *machine) ip(args ...string) {
	m.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		m.Fatalf("ip %v: %v\n%s", args, err, out)
	}
}

// newHosts makes two network namespaces that a veth joins, 10.99.0.1 and .2.
func (m *machine) newHosts() (a, b string) {
	m.Helper()
	a, b = m.netns("a"), m.netns("b")
	m.ip("link", "add", "eth0", "netns", a, "type", "veth", "peer", "name", "eth0", "netns", b)
	for i, ns := range []string{a, b} {
		m.ip("-n", ns, "addr", "add", fmt.Sprintf("10.99.0.%d/24", i+1), "dev", "eth0")
		m.ip("-n", ns, "link", "set", "eth0", "up")
	}
	return "/run/netns/" + a, "/run/netns/" + b
}

func TestHosts(t *testing.T) {
	kerneltest.NeedRoot(t)
	// ip makes /run/netns a mount the first time; that is the machine's state, not a container's.
	exec.Command("ip", "netns", "add", "pwct-first").Run()
	exec.Command("ip", "netns", "del", "pwct-first").Run()
	m := newMachine(t)
	server, client := m.newHosts()
	s := m.spec("nginx")
	s.NetNS, s.Hostname = server, "server"
	c := m.start(s)

	var out, errOut bytes.Buffer
	run := func(r container.Run) (string, int) {
		t.Helper()
		out.Reset()
		errOut.Reset()
		r.NetNS = client
		code, err := m.runtime.RunIn(context.Background(), r, nil, &out, &errOut)
		if err != nil {
			t.Fatal(err)
		}
		return out.String(), code
	}
	if got, code := run(container.Run{Args: []string{"curl", "-s", "http://10.99.0.1/"}}); code != 0 ||
		!strings.Contains(got, "Welcome to nginx!") {
		t.Errorf("exit status %d: %s%s", code, got, errOut.String())
	}
	contains(t, m.log(c), `10.99.0.2 - - [`)

	// The pod's own second container, in the same network namespace.
	s = m.spec("kuard")
	s.NetNS = server
	m.start(s)
	if got, _ := run(container.Run{Args: []string{"curl", "-s", "http://10.99.0.1:8080/"}}); !strings.Contains(got, `"addrs":["10.99.0.1"]`) ||
		!strings.Contains(got, `"requestAddr":"10.99.0.2:`) {
		t.Error(got)
	}

	// A host's command: the machine's files, read-write; its own links and name.
	file := t.TempDir() + "/file"
	script := "hostname; cat /etc/resolv.conf; ls /sys/class/net; echo x > " + file + "; iptables-save; exit 9"
	got, code := run(container.Run{Hostname: "testvm", Args: []string{"sh", "-c", script}, ResolvConf: []byte("nameserver 192.0.2.53\n")})
	if want := "testvm\nnameserver 192.0.2.53\neth0\nlo\n"; !strings.HasPrefix(got, want) || code != 9 {
		t.Errorf("exit status %d, got %q, want %q; %s", code, got, want, errOut.String())
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "x\n" {
		t.Error(string(b), err)
	}
	if b, err := os.ReadFile("/etc/resolv.conf"); err != nil || strings.Contains(string(b), "192.0.2.53") {
		t.Errorf("the machine's resolv.conf: %s%v", b, err)
	}
	if name, _ := os.Hostname(); name == "testvm" {
		t.Error("the machine's name changed")
	}
	if _, code := run(container.Run{Args: []string{"nosuch"}}); code != 127 ||
		!strings.HasPrefix(errOut.String(), `exec: "nosuch": executable file not found`) {
		t.Errorf("exit status %d: %s", code, errOut.String())
	}
	if _, code := run(container.Run{Args: []string{"sh", "-c", "kill -9 $$"}}); code != 137 {
		t.Errorf("exit status %d", code)
	}
	// Without arguments it is a shell, which reads its commands here.
	out.Reset()
	code, err := m.runtime.RunIn(context.Background(), container.Run{NetNS: client}, strings.NewReader("ip -4 -br addr show eth0; exit 3\n"),
		&out, &out)
	if err != nil || code != 3 || !strings.Contains(out.String(), "10.99.0.2/24") {
		t.Errorf("shell: exit status %d, %v, %s", code, err, out.String())
	}
}

// A privileged container on the host's network does there what a node agent does.
func TestPrivileged(t *testing.T) {
	m := newMachine(t)
	s := m.spec("agnhost")
	s.Privileged, s.NetNS = true, "/run/netns/"+m.netns("node")
	c := m.start(s)
	out := m.run(c, "sh", "-c", `echo 1 > /proc/sys/net/ipv4/ip_forward && cat /proc/sys/net/ipv4/ip_forward
iptables -t nat -A POSTROUTING -j MASQUERADE && iptables-save | grep MASQUERADE
ip link add v0 type veth peer name v1 && ip addr add 192.0.2.1/32 dev v0 && ip route add 198.51.100.0/24 dev lo && ip -o addr show v0
echo 1 > /proc/sys/kernel/sysrq || echo guarded`)
	contains(t, out, "1\n", "-A POSTROUTING -j MASQUERADE", "192.0.2.1/32", "guarded")
}

// Nothing that a privileged container does gets at the machine: the ways out that there were, each a command that has to fail.
func TestPrivilegedStaysInside(t *testing.T) {
	m := newMachine(t)
	host := t.TempDir()
	if err := unix.Mknod(host+"/memory", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil { // /dev/zero, to hurt nobody
		t.Fatal(err)
	}
	s := m.spec("agnhost")
	s.Privileged = true
	s.Mounts = []container.Mount{{Source: host, Destination: "/host", ReadOnly: true}}
	application := m.start(s)
	s = m.spec("ubuntu", "sleep", "1000")
	s.Privileged = true
	s.Mounts = application.Spec().Mounts
	for _, c := range []*container.Container{application, m.start(s)} {
		for _, script := range []string{
			"mount -o remount,rw,bind /host",
			"mount -o remount,rw,bind /proc/sys",
			"mount -t proc proc /mnt",
			"mount -t cgroup2 none /mnt",
			"mount -t devtmpfs none /mnt",
			"mount -t tmpfs none /mnt",
			"umount /proc/sys",
			"unshare -m true",
			"unshare -Urmpf mount -t proc proc /mnt",
			"unshare -Urm mount -o remount,rw,bind /host",
			"unshare -UrmC mount -t cgroup2 none /mnt",
			"unshare -U true",
			"mknod /tmp/disk b 8 0",
			"head -c1 /host/memory",
			"touch /host/file",
			"echo x > /proc/sys/kernel/core_pattern",
			"ls /proc/1/cwd/$(basename " + c.Spec().Dir + ")",
			"ls -d /proc/1/root" + c.Spec().Dir,
			"for f in /proc/1/task/1/fd/*; do case $(readlink $f) in '' | pipe:* | /dev/null) ;; *) exit 0 ;; esac; done; exit 1",
		} {
			var out bytes.Buffer
			code, err := c.Exec(context.Background(), container.Exec{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
			if code == 0 || code == 127 || err != nil {
				t.Errorf("%s: exit status %d, %v\n%s", script, code, err, out.String())
			}
		}
		own, err := os.Readlink("/proc/self/ns/ipc")
		if theirs := m.run(c, "readlink", "/proc/self/ns/ipc"); err != nil || own+"\n" == theirs {
			t.Errorf("the machine's IPC namespace is the container's: %s %v", own, err)
		}
	}
}

// The kernel ends what is in containers before anything of the user's.
func TestEndsFirstWithoutMemory(t *testing.T) {
	m := newMachine(t)
	command := m.spec("ubuntu", "sleep", "1000")
	command.Privileged = true
	for _, s := range []container.Spec{m.spec("agnhost"), command} {
		c := m.start(s)
		score := func(pid string) string {
			t.Helper()
			b, err := os.ReadFile("/proc/" + pid + "/oom_score_adj")
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		if got := score(fmt.Sprint(c.Pid())); got != "1000\n" {
			t.Errorf("%s: the first process has %s", s.App, got)
		}
		out := m.run(c, "sh", "-c", "cat /proc/self/oom_score_adj /proc/[0-9]*/oom_score_adj")
		if got := strings.ReplaceAll(out, "1000\n", ""); strings.ContainsAny(got, "0123456789") || strings.Count(out, "1000\n") < 3 {
			t.Errorf("%s: %s", s.App, out)
		}
		if got := score("self"); got == "1000\n" {
			t.Error("the user's own process is to end first")
		}
	}
}

// What is mounted below a volume's source on the machine is no part of the volume: no /proc, no socket.
func TestVolumeIsOneFileSystem(t *testing.T) {
	m := newMachine(t)
	s := m.spec("agnhost")
	s.Mounts = []container.Mount{{Source: "/", Destination: "/host", ReadOnly: true}}
	c := m.start(s)
	for _, script := range []string{"ls /host/proc/1", "ls /host/sys/class", "head -c1 /host/dev/zero", "touch /host/etc/x",
		"mount -o remount,rw /host"} {
		var out bytes.Buffer
		code, err := c.Exec(context.Background(), container.Exec{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
		if code == 0 || code == 127 || err != nil {
			t.Errorf("%s: exit status %d, %v\n%s", script, code, err, out.String())
		}
	}
	s = m.spec("agnhost")
	s.Mounts = []container.Mount{{Source: "/proc", Destination: "/proc/", ReadOnly: true}}
	if _, err := m.runtime.Start(context.Background(), s); !errors.Is(err, container.ErrStart) {
		t.Error(err)
	}
}

func TestRefusedCapability(t *testing.T) {
	m := newMachine(t)
	s := m.spec("agnhost")
	s.AddCaps = []string{"NET_ADMIN", "SYS_ADMIN"}
	_, err := m.runtime.Start(context.Background(), s)
	if !errors.Is(err, container.ErrStart) {
		t.Fatal(err)
	}
	contains(t, err.Error(), "capability SYS_ADMIN would act on the whole machine, and the lab does not give it")
}

// The fault that a busy machine makes: many starts at once, some of them given up.
func TestManyAtOnce(t *testing.T) {
	m := newMachine(t)
	const n = 24
	type result struct {
		c   *container.Container
		err error
	}
	results := make(chan result)
	for i := range n {
		s := m.spec("whereami")
		go func() {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			if i%6 == 5 {
				time.AfterFunc(time.Duration(i)*time.Millisecond/4, cancel)
			}
			c, err := m.runtime.Start(ctx, s)
			if err != nil && ctx.Err() != nil {
				err = nil // given up
			}
			results <- result{c, err}
		}()
	}
	var running []*container.Container
	for range n {
		r := <-results
		if r.err != nil {
			t.Error(r.err)
		}
		if r.c != nil {
			running = append(running, r.c)
			t.Cleanup(func() { r.c.Remove() })
		}
	}
	for _, c := range running {
		contains(t, m.run(c, "curl", "-s", "127.0.0.1"), "hostname")
	}
}

// A name server, and a container that finds names through it, search domains included.
func TestNames(t *testing.T) {
	m := newMachine(t)
	program, err := containertest.BuildProgram(t.TempDir(), "packetwalk-dns")
	if err != nil {
		t.Fatal(err)
	}
	builtIn.Brought["dns"] = program
	s := m.spec("dns")
	s.Args = []string{"ifconfig.co=198.51.100.80", "whereami.default.svc.cluster.local=10.0.0.7"}
	c := m.start(s)
	ns := fmt.Sprintf("/proc/%d/ns/net", c.Pid())
	s = m.spec("ubuntu", "sleep", "1000")
	s.NetNS = ns
	s.ResolvConf = []byte("nameserver 127.0.0.1\nsearch default.svc.cluster.local svc.cluster.local\noptions ndots:5\n")
	c = m.start(s)
	for code := -1; code != 0; { // the name server runs, and listens a moment later; the test's own time is the bound
		if code, err = c.Exec(t.Context(), container.Exec{Args: []string{"getent", "hosts", "whereami"}}); err != nil {
			t.Fatal(err)
		}
	}
	contains(t, m.run(c, "getent", "hosts", "whereami"), "10.0.0.7")
	if _, err := os.Lstat("/usr/bin/nslookup"); err == nil {
		return // the machine's own, whose words are its own
	}
	contains(t, m.run(c, "nslookup", "whereami"), "Server:\t\t127.0.0.1\n", "Name:\twhereami.default.svc.cluster.local\nAddress: 10.0.0.7\n")
	contains(t, m.run(c, "nslookup", "198.51.100.80", "127.0.0.1"), "name = ifconfig.co.")
	var out bytes.Buffer
	if code, err := c.Exec(context.Background(), container.Exec{Args: []string{"nslookup", "nosuch"}, Stdout: &out}); code != 1 ||
		err != nil || !strings.Contains(out.String(), "NXDOMAIN") {
		t.Errorf("exit status %d, %v, %s", code, err, out.String())
	}
}
