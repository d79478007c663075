package container_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/testing/containertest"
)

// layers makes an image of two layers: the program, accounts, a file that the second replaces and one that it takes away.
func (m *machine) layers() []string {
	m.Helper()
	dir := m.TempDir()
	lower, upper := filepath.Join(dir, "1"), filepath.Join(dir, "2")
	m.build(filepath.Join(lower, "bin/inside"), "./testdata/inside")
	for name, text := range map[string]string{
		"1/etc/passwd":  "root:x:0:0:root:/root:/bin/sh\nweb:x:101:102:web:/srv/web:/bin/sh\n",
		"1/etc/group":   "root:x:0:\nweb:x:102:\nlogs:x:103:other,web\n",
		"1/data/both":   "lower",
		"1/data/gone":   "lower",
		"1/srv/web/own": "",
		"2/data/both":   "upper",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			m.Fatal(err)
		}
	}
	if err := errors.Join(unix.Mknod(filepath.Join(upper, "data/gone"), unix.S_IFCHR, 0), // overlayfs's whiteout
		os.Symlink("/nowhere/at/all", filepath.Join(upper, "etc-link")), os.MkdirAll(filepath.Join(upper, "etc"), 0o755),
		os.Symlink("/data/both", filepath.Join(upper, "etc/hostname"))); err != nil {
		m.Fatal(err)
	}
	return []string{lower, upper}
}

// build makes a program that needs no library.
func (m *machine) build(to, from string) {
	m.Helper()
	if err := containertest.GoBuild(to, from); err != nil {
		m.Fatal(err)
	}
}

func (m *machine) imageSpec(args ...string) container.Spec {
	return m.placed(container.Spec{ID: "id", Name: "test", Hostname: "box", Command: []string{"/bin/inside"}, Args: args, Layers: m.layers()})
}

// ended gives the log of a container that ends.
func (m *machine) ended(c *container.Container) string {
	m.Helper()
	m.wait(c)
	return m.log(c)
}

// TestImage: a container's root is the layers of its image and nothing of the machine's, and its user is the image's.
func TestImage(t *testing.T) {
	m := newMachine(t)
	number := func(n int64) *int64 { return &n }
	for name, tt := range map[string]struct {
		change func(*container.Spec)
		want   string
	}{
		"as it is":       {func(*container.Spec) {}, "account 0 0 [] /root / [/bin/inside x]"},
		"user by name":   {func(s *container.Spec) { s.User = "web" }, "account 101 102 [103] /srv/web / [/bin/inside x]"},
		"user and group": {func(s *container.Spec) { s.User = "web:logs" }, "account 101 103 [] /srv/web / [/bin/inside x]"},
		"numbers":        {func(s *container.Spec) { s.User = "7:8" }, "account 7 8 [] / / [/bin/inside x]"},
		"the pod's user": {func(s *container.Spec) { s.User, s.UID = "web", number(5) }, "account 5 0 [] / / [/bin/inside x]"},
		"the pod's groups": {func(s *container.Spec) { s.User, s.Groups = "web", []int64{9} },
			"account 101 102 [9 103] /srv/web / [/bin/inside x]"},
		"the pod's group":   {func(s *container.Spec) { s.User, s.GID = "web", number(4) }, "account 101 4 [] /srv/web / [/bin/inside x]"},
		"working directory": {func(s *container.Spec) { s.WorkingDir = "/data" }, "account 0 0 [] /root /data [/bin/inside x]"},
	} {
		s := m.imageSpec("x")
		tt.change(&s)
		got := m.ended(m.start(s))
		contains(t, got, tt.want+"\n", "files [/bin /data /dev /etc /etc-link /proc /srv /sys /data/both]\n", `/data/both "upper" <nil>`,
			`/etc/hostname "box\n" <nil>`)
		if t.Failed() {
			t.Fatalf("%s: %s", name, got)
		}
	}
}

// TestImageExec: a command in a container is its user's, also of who adopted it.
func TestImageExec(t *testing.T) {
	m := newMachine(t)
	s := m.imageSpec("wait")
	s.User, s.StopSignal = "web", unix.SIGQUIT
	c := m.start(s)
	contains(t, m.run(c, "/bin/inside"), "account 101 102 [103] /srv/web / [/bin/inside]\n")
	adopted, err := m.runtime.Adopt(s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	contains(t, m.run(adopted, "/bin/inside"), "account 101 102 [103] /srv/web / [/bin/inside]\n")
	m.awaitText(c, "waits\n") // a first process ignores what it does not handle yet
	if err := c.Stop(t.Context(), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	contains(t, m.ended(c), "signal "+syscall.SIGQUIT.String()+"\n")
}

// TestBadImage: what is wrong with an image is told, and is no fault of the machine.
func TestBadImage(t *testing.T) {
	m := newMachine(t)
	for want, change := range map[string]func(s *container.Spec){
		`user "nobody": unable to find user nobody`: func(s *container.Spec) { s.User = "nobody" },
		"/proc of the image is no directory":        func(s *container.Spec) { m.link("/data", s.Layers[0], "proc") },
		"/etc/passwd of the image is no file": func(s *container.Spec) {
			if err := unix.Mkfifo(filepath.Join(s.Layers[1], "etc/passwd"), 0o644); err != nil {
				t.Fatal(err)
			}
		},
		"replace /etc/resolv.conf: ": func(s *container.Spec) {
			if err := os.MkdirAll(filepath.Join(s.Layers[1], "etc/resolv.conf/full"), 0o755); err != nil {
				t.Fatal(err)
			}
		},
		"open /etc: a link on the way is not followed": func(s *container.Spec) {
			if err := os.RemoveAll(filepath.Join(s.Layers[1], "etc")); err != nil {
				t.Fatal(err)
			}
			m.link("/proc/self/cwd", s.Layers[1], "etc")
		},
		"open /etc/passwd: a link on the way is not followed": func(s *container.Spec) {
			m.link("/proc/self/exe", s.Layers[1], "etc/passwd")
		},
		`exec: "/bin/none": open /bin/none: no such file or directory`: func(s *container.Spec) { s.Command = []string{"/bin/none"} },
	} {
		s := m.imageSpec()
		change(&s)
		_, err := m.runtime.Start(t.Context(), s)
		if !errors.Is(err, container.ErrStart) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func (m *machine) link(to, dir, name string) {
	m.Helper()
	if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
		m.Fatal(err)
	}
}

// TestManyLayers: an image may have as many layers as overlayfs takes.
func TestManyLayers(t *testing.T) {
	m := newMachine(t)
	s := m.imageSpec("x")
	dir := m.TempDir()
	lower := make([]string, 0, 127)
	for n := range cap(lower) {
		layer := filepath.Join(dir, fmt.Sprintf("a-layer-with-a-name-%06d", n))
		if err := os.Mkdir(layer, 0o755); err != nil {
			t.Fatal(err)
		}
		lower = append(lower, layer)
	}
	for n, layer := range s.Layers {
		to := filepath.Join(dir, fmt.Sprint("image-", n))
		if err := os.Rename(layer, to); err != nil {
			t.Fatal(err)
		}
		lower[n] = to
	}
	s.Layers = lower
	contains(t, m.ended(m.start(s)), `/data/both "upper" <nil>`)
}

// TestVolumesOfAnImage: in a root that is read-only they can be written to, and have what the image has in them.
func TestVolumesOfAnImage(t *testing.T) {
	m := newMachine(t)
	s := m.spec("ubuntu", "sh", "-c", "touch /etc/x || echo guarded; echo x >> /etc/alternatives/x && ls /etc/alternatives | wc -l; "+
		"echo x > /made/here/x && cat /made/here/x; ls /mnt")
	s.ReadOnlyRoot, s.Volumes = true, []string{"/etc/alternatives", "/made/here", "/mnt"}
	s.Mounts = []container.Mount{{Source: m.TempDir(), Destination: "/mnt/inner"}}
	log := m.ended(m.start(s))
	contains(t, log, "guarded\n", "\nx\ninner\n")
	if strings.Contains(log, "\n1\n") {
		t.Errorf("the image's own files are gone: %s", log)
	}
	bad := m.spec("ubuntu", "true")
	bad.Volumes = []string{"/etc/hostname/x"}
	if _, err := m.runtime.Start(t.Context(), bad); !errors.Is(err, container.ErrStart) {
		t.Error(err)
	}
}

// TestVolumesOverTheSystem: what an image declares to be a volume of its own does not open what is guarded in /proc and /sys, whatever its
// links lead to; a volume of the pod's is not mounted there either.
func TestVolumesOverTheSystem(t *testing.T) {
	m := newMachine(t)
	const look = "for f in /proc/sys/kernel/core_pattern /proc/sysrq-trigger; do (: >> $f) 2>/dev/null && echo $f is open; done; " +
		"cat /proc/interrupts | wc -c; ls /sys/firmware"
	plain := m.ended(m.start(m.spec("ubuntu", "sh", "-c", look)))
	s := m.spec("ubuntu", "sh", "-c", look)
	links := m.TempDir()
	m.link("/proc", links, "data")
	m.link("proc/../sys", links, "more")
	m.link("/proc/sys", links, "deep")
	s.Layers = append(s.Layers, links)
	s.Volumes = []string{"/proc", "/sys", "/data", "/more", "/deep", "/dev", "/"}
	if got := m.ended(m.start(s)); got != plain || strings.Contains(got, "is open") || !strings.HasPrefix(got, "0\n") {
		t.Errorf("%s\nwithout volumes: %s", got, plain)
	}
	for _, at := range []string{"/data", "/data/self", "/deep", "/deep/kernel"} {
		s := m.spec("ubuntu", "sh", "-c", look)
		s.Layers = append(s.Layers, links)
		s.Mounts = []container.Mount{{Source: m.TempDir(), Destination: at}}
		if _, err := m.runtime.Start(t.Context(), s); !errors.Is(err, container.ErrStart) || !strings.Contains(err.Error(), "leads into /proc") {
			t.Errorf("%s: %v", at, err)
		}
	}
}

func TestSysctls(t *testing.T) {
	m := newMachine(t)
	const setting = "kernel/shm_rmid_forced"
	machine, err := os.ReadFile("/proc/sys/" + setting)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []container.Spec{m.spec("agnhost"), m.spec("ubuntu", "sleep", "1000")} {
		s.Sysctls = map[string]string{setting: "1"}
		if got := m.run(m.start(s), "cat", "/proc/sys/"+setting); got != "1\n" {
			t.Errorf("%s: %q", s.App, got)
		}
	}
	if now, err := os.ReadFile("/proc/sys/" + setting); err != nil || string(now) != string(machine) {
		t.Errorf("the machine's was %q and is %q, %v", machine, now, err)
	}
}
