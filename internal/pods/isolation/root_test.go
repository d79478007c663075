package isolation

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
)

// isolated is set in the process that TestIsolateMounts starts in new namespaces.
const isolated = "PACKETWALK_TEST_ISOLATED"

func isolateAndPivot() error {
	if err := IsolateMounts(unix.MS_PRIVATE); err != nil {
		return err
	}
	if _, err := os.Stat("/proc/self/status"); err != nil {
		return fmt.Errorf("mounts of the root are gone: %w", err)
	}
	if err := MountAt("tmpfs", "/new", 0, ""); err != nil {
		return err
	}
	if err := os.WriteFile("/new/inside", nil, 0o600); err != nil {
		return err
	}
	if err := Pivot("/new"); err != nil {
		return err
	}
	_, err := os.Stat("/inside")
	return err
}

// TestIsolateMounts: mounts of a new namespace are not the machine's, whether its root is a mount point or a directory that was changed
// to, of a mount that is shared with the machine; and it can change its root.
func TestIsolateMounts(t *testing.T) {
	kerneltest.NeedRoot(t)
	base := t.TempDir()
	mountAt := func(source, target, kind string, flags uintptr) {
		t.Helper()
		if err := unix.Mount(source, target, kind, flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	mountAt("tmpfs", base, "tmpfs", 0)
	t.Cleanup(func() {
		if err := unix.Unmount(base, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	mountAt("", base, "", unix.MS_SHARED)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"directory", "mount"} {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(base, name)
			if err := os.MkdirAll(root, 0o755); err != nil {
				t.Fatal(err)
			}
			if name == "mount" {
				mountAt("tmpfs", root, "tmpfs", 0)
			}
			proc := filepath.Join(root, "proc")
			if err := os.Mkdir(proc, 0o755); err != nil {
				t.Fatal(err)
			}
			mountAt("proc", proc, "proc", 0)
			if err := os.WriteFile(filepath.Join(root, "test"), program, 0o755); err != nil {
				t.Fatal(err)
			}
			before := mountsBelow(t, base)
			cmd := exec.Command("/test")
			cmd.Env, cmd.Dir = []string{isolated + "=1"}, "/"
			cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Cloneflags: unix.CLONE_NEWNS}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			if after := mountsBelow(t, base); after != before {
				t.Errorf("mounts before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// TestTryUpper: overlayfs can write to a tmpfs, and not to itself, and nothing of the attempt is left.
func TestTryUpper(t *testing.T) {
	kerneltest.NeedRoot(t)
	base := t.TempDir()
	if err := unix.Mount("tmpfs", base, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(base, unix.MNT_DETACH) })
	o := Overlay{Lower: []string{base + "/lower"}, Upper: base + "/upper", Work: base + "/work"}
	merged := base + "/merged"
	for _, dir := range []string{o.Lower[0], o.Upper, o.Work, merged} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir("/")
	if err := o.Mount(merged, 0); err != nil {
		t.Fatal(err)
	}
	if err := TryUpper(base); err != nil {
		t.Errorf("tmpfs: %v", err)
	}
	if err := TryUpper(merged); err == nil {
		t.Error("overlayfs can write to itself")
	}
	if left, err := filepath.Glob(base + "/.overlay*"); len(left) > 0 || err != nil {
		t.Errorf("left: %q, %v", left, err)
	}
}

// mountsBelow returns the lines of mountinfo about a directory.
func mountsBelow(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, dir) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
