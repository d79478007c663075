package container_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/container"
)

// A container sees nothing of the machine's: no file, account, key or folder that is not of a package.
func TestMachineIsNotSeen(t *testing.T) {
	m := newMachine(t)
	dirs := []string{"/", "/etc", "/etc/ssl/certs", "/etc/profile.d", "/var/lib", "/opt", "/srv", "/usr", "/usr/bin", "/usr/lib",
		"/usr/local/bin",
		"/usr/share/ca-certificates", "/root", "/home"}
	mark := fmt.Sprintf("packetwalk-test-%d", os.Getpid())
	for _, dir := range dirs {
		name := filepath.Join(dir, mark)
		if err := os.WriteFile(name, []byte("of the machine"), 0o644); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(name) })
	}
	c := m.start(m.spec("agnhost"))
	out := m.run(c, "find", "/", "-xdev", "-name", mark, "-o", "-xdev", "-type", "f", "(", "-path", "/boot/*", "-o", "-path", "/var/*",
		"-o", "-path", "/root/*", "-o", "-path", "/opt/*", "-o", "-path", "/usr/local/*", "-o", "-path", "/etc/ssh/*", "-o", "-path",
		"/etc/*shadow*",
		"-o", "-path", "/lib/modules/*", "-o", "-path", "/usr/share/doc/*", ")")
	if out != "" {
		t.Errorf("the container has\n%s", out)
	}
	for dir, want := range map[string]string{
		"/":     "bin dev etc home lib lib32 lib64 libx32 media mnt opt proc root run sbin srv sys tmp usr var .packetwalk agnhost",
		"/home": "", "/media": "", "/mnt": "", "/opt": "", "/root": "", "/srv": "", "/tmp": "", "/var/tmp": "", "/run": "lock",
		"/etc/ssl/private": "",
	} {
		for name := range strings.FieldsSeq(m.run(c, "sh", "-c", "ls -A "+dir+" 2>/dev/null || :")) {
			if !slices.Contains(strings.Fields(want), name) {
				t.Errorf("%s has %s", dir, name)
			}
		}
	}
	script := "cat /etc/passwd /etc/group; ls -l /etc/ssl/certs | head -3; id; getent hosts localhost; getent services http; " +
		"head -c3 /usr/bin/env >/dev/null && ls /etc/alternatives | head -1; stat -c %a /tmp /var/tmp /root; " +
		"echo x > /etc/ssl/certs/mine.pem && echo x > /etc/nsswitch.conf && echo x > /usr/lib/x && rm /etc/services && echo own"
	out = m.run(c, "sh", "-c", script)
	contains(t, out, "root:x:0:0:root:/root:", "nobody:x:65534:", "uid=0(root) gid=0(root)", "localhost", "80/tcp", "1777\n1777\n700\n",
		"own\n")
	// What a container writes is its own.
	contains(t, m.run(m.start(m.spec("agnhost")), "sh", "-c", "cat /etc/nsswitch.conf; ls /etc/services; ls /usr/lib/x 2>&1 || :"),
		"files dns",
		"/etc/services\n", "/usr/lib/x': No such file")
}

// What engines mask is empty, and what they make read-only is not written.
func TestProcIsGuarded(t *testing.T) {
	m := newMachine(t)
	c := m.start(m.spec("agnhost"))
	out := m.run(c, "sh", "-c", "for f in interrupts kcore keys timer_list latency_stats sched_debug acpi asound scsi; do "+
		"[ ! -e /proc/$f ] || [ -z \"$(ls -A /proc/$f | grep -v ^/proc/)$(head -c1 /proc/$f 2>/dev/null)\" ] || echo open $f; done; "+
		"for d in firmware devices/virtual/powercap; do [ -z \"$(ls -A /sys/$d 2>/dev/null)\" ] || echo open $d; done; "+
		"for f in sys/kernel/hostname sysrq-trigger irq/default_smp_affinity; do [ ! -e /proc/$f ] || { echo 0 >> /proc/$f; } 2>/dev/null && "+
		"[ -e /proc/$f ] && echo written $f; done; echo end")
	if strings.TrimSpace(out) != "end" {
		t.Errorf("%s", out)
	}
}

// manyFds is more than the descriptors that a first process has.
const manyFds = 40

// A working directory is one of the container's: the descriptors of a process of ours lead to the machine's.
func TestWorkingDirOfTheMachine(t *testing.T) {
	m := newMachine(t)
	for n := 3; n < manyFds; n++ {
		for _, s := range []container.Spec{m.spec("agnhost"), m.spec("ubuntu", "sh", "-c", "ls -a . ..")} {
			s.WorkingDir = fmt.Sprintf("/proc/thread-self/fd/%d", n)
			if c, err := m.runtime.Start(context.Background(), s); !errors.Is(err, container.ErrStart) {
				if err == nil {
					defer c.Remove()
				}
				t.Errorf("%s: a container of %s starts: %v", s.WorkingDir, s.App, err)
			}
		}
	}
	c := m.start(m.spec("agnhost"))
	for n := 3; n < 200; n++ {
		e := container.Exec{Args: []string{"true"}, Dir: fmt.Sprintf("/proc/thread-self/fd/%d", n)}
		if _, err := c.Exec(context.Background(), e); !errors.Is(err, container.ErrStart) {
			t.Errorf("%s: a command runs there: %v", e.Dir, err)
		}
	}
	volume := t.TempDir()
	if err := os.Symlink("/usr", volume+"/in"); err != nil {
		t.Fatal(err)
	}
	s := m.spec("ubuntu", "pwd")
	s.Mounts, s.WorkingDir = []container.Mount{{Source: volume, Destination: "/v"}}, "/v/in"
	c = m.start(s)
	m.wait(c)
	contains(t, m.log(c), "/usr\n")
}

// What the first process reads for others is the container's too.
func TestServedLinks(t *testing.T) {
	m := newMachine(t)
	c := m.start(m.spec("nginx"))
	m.run(c, "sh", "-c", fmt.Sprintf(`cd /usr/share/nginx/html; echo mine > /tmp/mine; ln -s /tmp/mine own
for n in $(seq 0 %d); do ln -s /proc/thread-self/fd/$n/spec.json fd$n; ln -s /proc/thread-self/fd/$n/../../stderr up$n; done; ln -s /proc/self/cwd/etc/hosts cwd`, manyFds))
	out := m.run(c, "sh", "-c", fmt.Sprintf("cd /; curl -s 127.0.0.1/own; for n in $(seq 0 %d); do curl -s 127.0.0.1/fd$n 127.0.0.1/up$n; done; curl -s 127.0.0.1/cwd", manyFds))
	if !strings.HasPrefix(out, "mine\n") || strings.Contains(out, "ResolvConf") || strings.Contains(out, "127.0.0.1\tlocalhost") {
		t.Errorf("got %s", out)
	}
	s := m.spec("kuard")
	s.Mounts = []container.Mount{{Source: t.TempDir(), Destination: "/volume"}}
	c = m.start(s)
	m.run(c, "sh", "-c", "echo mine > /volume/file; mkfifo /volume/pipe; ln -s /usr/lib/os-release /volume/link")
	for path, want := range map[string]string{
		"volume/file": "200", "etc/hosts": "200", "etc/passwd": "200", "etc/shadow": "404", "usr/lib/os-release": "200", "bin/sh": "200",
		"volume/link": "200",
		"volume/pipe": "403", "lib64/../bin/sh": "200", "lib64/../../bin/sh": "200", "proc/self/root/etc/hosts": "403",
		"proc/thread-self/fd/2": "403",
	} {
		if got := m.run(c, "curl", "-s", "-m", "5", "--path-as-is", "-o", "/dev/null", "-w", "%{http_code}", "127.0.0.1:8080/fs/"+
			path); got != want {
			t.Errorf("/fs/%s: %s, want %s", path, got, want)
		}
	}
}

// Nothing is made where a link in a volume leads that stands in a destination's path.
func TestDestinationByLink(t *testing.T) {
	m := newMachine(t)
	volume, data := t.TempDir(), t.TempDir()
	for n := range manyFds {
		if err := os.Symlink(fmt.Sprintf("/proc/thread-self/fd/%d", n), fmt.Sprintf("%s/fd%d", volume, n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/tmp", volume+"/in"); err != nil {
		t.Fatal(err)
	}
	for n := range manyFds {
		s := m.spec("agnhost")
		s.Mounts = []container.Mount{{Source: volume, Destination: "/v"}, {Source: data, Destination: fmt.Sprintf("/v/fd%d/made/deep", n)}}
		c, err := m.runtime.Start(context.Background(), s)
		if err == nil {
			defer c.Remove()
			t.Errorf("a volume is mounted behind /v/fd%d", n)
		}
		if made, _ := filepath.Glob(filepath.Dir(s.Dir) + "/*/made"); len(made) > 0 {
			t.Errorf("made on the machine: %v", made)
		}
	}
	s := m.spec("agnhost")
	s.Mounts = []container.Mount{{Source: volume, Destination: "/v"}, {Source: data, Destination: "/v/in/made", ReadOnly: true}}
	contains(t, m.run(m.start(s), "sh", "-c", "echo x > /tmp/made/x || ls -d /tmp/made"), "/tmp/made\n")
}

// A container of the pod swaps a directory of its volume for a link to the machine's while others are started with it: what is checked is
// what is mounted.
func TestSwappedLink(t *testing.T) {
	m := newMachine(t)
	volume, secret := t.TempDir(), t.TempDir()
	if err := os.WriteFile(secret+"/name", []byte("of the machine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/sub", "/outer", "/outer/sub"} {
		if err := os.Mkdir(volume+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"/link": secret, "/up": "../" + filepath.Base(secret)} {
		if err := os.Symlink(target, volume+name); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"/sub", "/outer/sub"} {
		if err := os.WriteFile(volume+dir+"/name", []byte("of the volume\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			link := volume + []string{"/link", "/up"}[n%2]
			_ = unix.Renameat2(unix.AT_FDCWD, volume+"/sub", unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			_ = unix.Renameat2(unix.AT_FDCWD, volume+"/sub", unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
		}
	}()
	defer func() { close(stop); <-stopped }()
	seen := 0
	for range 60 {
		s := m.spec("ubuntu", "cat", "/v/name")
		s.Mounts = []container.Mount{{Source: volume, Beneath: []string{"sub"}, Destination: "/v"}}
		c, err := m.runtime.Start(context.Background(), s)
		if err != nil {
			contains(t, err.Error(), "leads out of its directory")
			continue
		}
		m.wait(c)
		if log := m.log(c); strings.Contains(log, "of the machine") {
			t.Fatal("the machine's directory was mounted")
		} else if strings.Contains(log, "of the volume") {
			seen++
		}
		if err := c.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	if seen == 0 {
		t.Error("the volume was never mounted")
	}
	// What is beneath one name stays beneath it, not only in the volume.
	s := m.spec("agnhost")
	if err := os.Symlink("../secret", volume+"/outer/away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(volume+"/secret", 0o755); err != nil {
		t.Fatal(err)
	}
	s.Mounts = []container.Mount{{Source: volume, Beneath: []string{"outer", "away"}, Destination: "/v"}}
	if _, err := m.runtime.Start(context.Background(), s); err == nil {
		t.Error("a name leads out of the one before")
	}
}
