package layout

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestDisk: what pods write has a file system of its own, which is bounded, is found by the next lab process, takes only what is written,
// and goes with the lab, also while something in it is mounted.
func TestDisk(t *testing.T) {
	kerneltest.NeedRoot(t)
	d := Dir(fmt.Sprintf("/run/packetwalk/disk-%d", os.Getpid()))
	t.Cleanup(func() {
		if err := d.RemoveState(); err != nil {
			t.Error(err)
		}
	})
	var machine, own unix.Statfs_t
	for range 2 {
		if err := d.MakeDisk(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Statfs(d.Disk(), &own); err != nil || own.Type != unix.EXT4_SUPER_MAGIC {
		t.Fatalf("%+v, %v", own, err)
	}
	if err := unix.Statfs(d.State(), &machine); err != nil || int64(own.Blocks)*own.Bsize > int64(machine.Bfree)*machine.Bsize {
		t.Errorf("it has %d blocks, and the machine's own disk %d free: %v", own.Blocks, machine.Bfree, err)
	}
	var file unix.Stat_t
	if err := unix.Stat(filepath.Join(d.State(), "disk.img"), &file); err != nil || file.Blocks*512 > 64<<20 {
		t.Errorf("it takes %d bytes: %v", file.Blocks*512, err)
	}
	// Nodes are on it, also for the next lab process.
	for range 2 {
		if err := d.MakeNodesDir(); err != nil {
			t.Fatal(err)
		}
	}
	if mounted, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Count(string(mounted), " "+d.NodeState("")+" ") != 1 {
		t.Errorf("nodes are mounted more than once, or not: %v\n%s", err, mounted)
	}
	if err := os.MkdirAll(d.NodeState("node"), 0o755); err != nil {
		t.Fatal(err)
	}
	if is, want := deviceOf(t, d.NodeState("node")), deviceOf(t, d.Disk()); is != want || want == deviceOf(t, d.State()) {
		t.Errorf("nodes are on device %d, the lab's disk on %d", is, want)
	}
	inner := filepath.Join(d.NodeState("node"), "inner")
	if err := os.MkdirAll(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", inner, "tmpfs", 0, "size=4k"); err != nil {
		t.Fatal(err)
	}
	if err := d.RemoveState(); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(text), d.State()) {
		t.Errorf("it is still mounted: %v", err)
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, l := range loops {
		if of, _ := os.ReadFile(l); strings.Contains(string(of), d.State()) {
			t.Errorf("%s is still there", l)
		}
	}
	if _, e := os.Lstat(d.State()); err != nil || !os.IsNotExist(e) {
		t.Errorf("%v, %v", err, e)
	}
}

func deviceOf(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Dev
}

// TestLogsWithoutDisk: where the lab has no file system on disk, its logs have one in memory, and one that could be made later hides
// nothing of the lab.
func TestLogsWithoutDisk(t *testing.T) {
	kerneltest.NeedRoot(t)
	d := Dir(fmt.Sprintf("/run/packetwalk/logs-%d", os.Getpid()))
	t.Cleanup(func() {
		if err := errors.Join(d.RemoveState(), os.RemoveAll(string(d))); err != nil {
			t.Error(err)
		}
	})
	path := os.Getenv("PATH")
	t.Setenv("PATH", "/nowhere") // of mkfs.ext4
	if err := d.MakeLogs(t.Context()); err != nil {
		t.Fatal(err)
	}
	var own unix.Statfs_t
	if err := unix.Statfs(d.Log("lab"), &own); err == nil {
		t.Fatal("there is a log already")
	}
	err := unix.Statfs(filepath.Dir(d.GroupLog("x")), &own)
	if err != nil || own.Type != unix.TMPFS_MAGIC || own.Blocks*uint64(own.Bsize) > 64<<20 {
		t.Errorf("%+v, %v", own, err)
	}
	if err := os.WriteFile(d.Log("lab"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", path)
	if err := d.MakeDisk(t.Context()); err == nil {
		t.Error("a file system was mounted over what the lab has")
	}
	if text, err := os.ReadFile(d.Log("lab")); string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
}
