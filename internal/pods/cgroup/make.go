package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// makeTries bounds Make, with a pause between two tries.
const (
	makeTries = 1000
	makePause = time.Millisecond
)

// passing are the kernel's errors where a group above is removed, by who was the last to need it ([Remove]), and made anew: it is not there
// (ENOENT or, of an open file, ENODEV), it is on its way out (EBUSY), or has nothing yet to pass on (EINVAL, EACCES of a cpuset).
var passing = []error{unix.ENOENT, unix.ENODEV, unix.EBUSY, unix.EINVAL, unix.EACCES}

// Make makes a group and those above it, so that processes can be in it and groups below it. Others may make and remove those above at the
// same time: it tries again for a second at least where that is the cause.
func Make(h Hierarchy, name string) (err error) {
	for range makeTries {
		if err = makeAll(h, name); err == nil || !slices.ContainsFunc(passing, func(p error) bool { return errors.Is(err, p) }) {
			return err
		}
		time.Sleep(makePause)
	}
	return fmt.Errorf("%w (tried %d times)", err, makeTries)
}

// MakeAll makes a group in all hierarchies. A process in a new PID namespace cannot make the first group of a container, because it does
// not see the processes that have to make way.
func MakeAll(name string) error {
	all, err := Hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := Make(h, name); err != nil {
			return fmt.Errorf("make control group %s: %w", name, err)
		}
	}
	return nil
}

func makeAll(h Hierarchy, name string) error {
	dir := h.Point
	for part := range strings.SplitSeq(name, "/") {
		above := dir
		dir = filepath.Join(dir, part)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		var err error
		switch {
		case h.V2() && above == h.Point:
			err = passRootControllers(above)
		case h.V2():
			err = passControllers(above)
		case slices.Contains(strings.Split(h.Controllers, ","), "cpuset"):
			err = errors.Join(inherit(above, dir, "cpuset.cpus"), inherit(above, dir, "cpuset.mems"))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// passControllers has the groups below one of cgroup v2 have all its controllers.
func passControllers(dir string) error { return setControllers(dir, "cgroup.controllers", "+") }

// setControllers enables ("+") or disables ("-") the controllers that a file of a group lists for the groups below it.
func setControllers(dir, list, sign string) error {
	text, err := os.ReadFile(filepath.Join(dir, list))
	if err != nil {
		return err
	}
	var all []string
	for controller := range strings.FieldsSeq(string(text)) {
		all = append(all, sign+controller)
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(strings.Join(all, " ")), 0o644)
}

// rootProcesses is the group of the processes that were in the root group of a container's cgroup namespace. Unlike the machine's root
// group, that one cannot have processes and pass controllers on (cgroups(7), "no internal processes").
const rootProcesses = "packetwalk.init"

// passRootControllers does what passControllers does for the root group. It moves processes out of the way where it must. Where cgroup v1
// has the controllers that limits need, it leaves them, since some container engines cannot start others in a group that passes controllers
// on.
func passRootControllers(root string) error {
	err := passControllers(root)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	all := []Hierarchy{{Point: root}}
	if !slices.ContainsFunc(controllers, func(c controller) bool { _, has := hierarchyWith(all, c.name); return has }) {
		return nil
	}
	if err := os.Mkdir(filepath.Join(root, rootProcesses), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	moveProcesses(root, filepath.Join(root, rootProcesses))
	return passControllers(root)
}

// restoreRoot undoes what passRootControllers did, as soon as no other group needs the root's controllers. It is no error that another
// process makes such a group at the same time: its end restores the root.
func restoreRoot(root string) error {
	groups, err := filepath.Glob(filepath.Join(root, "*", "cgroup.procs"))
	own := filepath.Join(root, rootProcesses)
	if err != nil || len(groups) != 1 || filepath.Dir(groups[0]) != own {
		return err
	}
	if err = setControllers(root, "cgroup.subtree_control", "-"); err == nil {
		moveProcesses(own, root)
		err = os.Remove(own)
	}
	if errors.Is(err, unix.EBUSY) {
		return nil
	}
	return err
}

// moveProcesses moves the processes of a group to another. Processes that end meanwhile, or that another PID namespace has, stay.
func moveProcesses(from, to string) {
	for _, pid := range (Member{Dir: from}).processes() {
		_ = Group{{Dir: to}}.Add(pid)
	}
}

// inherit sets a file of a new group to what the group above it has; without cpuset.cpus and .mems no process can be in one.
func inherit(above, dir, name string) error {
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || strings.TrimSpace(string(text)) != "" {
		return err
	}
	if text, err = os.ReadFile(filepath.Join(above, name)); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), text, 0o644)
}
