package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
)

// inContainer is set in the process that TestContainer starts.
const inContainer = "PACKETWALK_TEST_CONTAINER"

func TestMain(m *testing.M) {
	if os.Getenv(inContainer) == "" {
		os.Exit(m.Run())
	}
	if err := makeInContainer(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// TestContainer: in a container with a cgroup namespace, without mounted control groups and with processes in its root group, groups are
// made and removed, and the processes are where they were afterwards.
func TestContainer(t *testing.T) {
	kerneltest.NeedRoot(t)
	all, err := Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	h := all[slices.IndexFunc(all, Hierarchy.V2)]
	name := fmt.Sprintf("packetwalk-test-%d-container", os.Getpid())
	t.Cleanup(func() {
		if err := Remove(name); err != nil {
			t.Error(err)
		}
	})
	if err := Make(h, name); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(filepath.Join(h.Point, name))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), inContainer+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// makeInContainer does the process's work there.
func makeInContainer() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	mounted, err := Hierarchies()
	if err != nil {
		return err
	}
	for _, h := range mounted {
		if h.private() {
			continue // already unmounted
		}
		if err := unix.Unmount(h.Point, unix.MNT_DETACH); err != nil {
			return err
		}
	}
	all, err := Hierarchies()
	if err != nil {
		return err
	}
	if len(all) != len(mounted) || slices.ContainsFunc(all, func(h Hierarchy) bool { return !h.private() }) {
		return fmt.Errorf("%v without mounts, %v with", all, mounted)
	}
	root := all[slices.IndexFunc(all, Hierarchy.V2)].Point
	before := Member{Dir: root}.processes()
	for _, h := range all {
		if err := Make(h, "packetwalk/lab/unlimited"); err != nil {
			return fmt.Errorf("%q: %w", h.Controllers, err)
		}
	}
	text, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return err
	}
	own := strings.Fields(string(text))
	has := func(c controller) bool { return slices.Contains(own, c.name) }
	if left := (Member{Dir: root}).processes(); !slices.ContainsFunc(controllers, has) && !slices.Equal(left, before) {
		return fmt.Errorf("in the root group were %d, are %d, though limits need none of its controllers %q", before, left, own)
	}
	if len(own) > 0 { // as on a machine with cgroup v2 alone
		controllers = append(controllers, controller{name: own[0]})
	}
	if err := MakeAll("packetwalk/lab/node"); err != nil {
		return err
	}
	if left := (Member{Dir: root}).processes(); len(before) == 0 || len(own) > 0 && len(left) != 0 {
		return fmt.Errorf("in the root group were %d, are %d", before, left)
	}
	if err := Remove("packetwalk/lab"); err != nil {
		return err
	}
	after := Member{Dir: root}.processes()
	groups, err := filepath.Glob(filepath.Join(root, "*/cgroup.procs"))
	if diff := cmp.Diff(before, after); diff != "" || len(groups) > 0 || err != nil {
		return fmt.Errorf("afterwards: %q, %w, processes: %s", groups, err, diff)
	}
	return nil
}
