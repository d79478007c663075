package container_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/container"
)

// onDisk gives a container's writable layer a directory on the disk.
func (m *machine) onDisk(s container.Spec) container.Spec {
	m.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(m.TempDir(), &st); err != nil || st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		m.Skipf("the temporary directory's file system can be no upper layer: %v", err)
	}
	s.Upper = s.Dir + ".layer"
	return s
}

// TestLayerOnDisk: what a container writes is on the disk's file system, changes of the image's files, too, and goes with the container.
func TestLayerOnDisk(t *testing.T) {
	m := newMachine(t)
	s := m.onDisk(m.spec("ubuntu", "sleep", "1000"))
	if err := os.MkdirAll(s.Upper+"/upper/left", 0o755); err != nil { // by a start that a crash cut off
		t.Fatal(err)
	}
	c := m.start(s)
	got := m.run(c, "sh", "-c", `set -e
		head -c 300M /dev/zero >/large; sync /large; stat -c %s /large
		rm /etc/debian_version; mv /usr/share /usr/moved; ls -d /usr/share /etc/debian_version /left 2>/dev/null || ls -d /usr/moved
		touch /own; chown 1000:1000 /own; chmod 4755 /own; stat -c '%a %u' /own; ln /own /again; mkfifo /pipe; test -p /pipe`)
	if want := "314572800\n/usr/moved\n4755 1000\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if info, err := os.Stat(filepath.Join(s.Upper, "upper", "large")); err != nil || info.Size() != 300<<20 {
		t.Errorf("%v, %v", info, err)
	}
	if info, err := os.Stat(s.Upper); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	if err := c.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(s.Upper); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its layer is left: %v", err)
	}
	s = m.onDisk(m.spec("ubuntu", "nosuch-command"))
	if _, err := m.runtime.Start(context.Background(), s); !errors.Is(err, container.ErrStart) {
		t.Error(err)
	}
	if _, err := os.Lstat(s.Upper); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a layer is left of a start that failed: %v", err)
	}
}

// TestDeepLayerIsRemoved: a container has made more directories in each other than this process can have open.
func TestDeepLayerIsRemoved(t *testing.T) {
	m := newMachine(t)
	s := m.onDisk(m.spec("ubuntu", "sleep", "1000"))
	c := m.start(s)
	fd, err := unix.Open(filepath.Join(s.Upper, "upper"), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range 30_000 {
		if err == nil {
			err = unix.Mkdirat(fd, "d", 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		var next int
		next, err = unix.Openat(fd, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	if err := c.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(s.Upper); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its layer is left: %v", err)
	}
}
