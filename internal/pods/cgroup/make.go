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
func passControllers(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	var all []string
	for controller := range strings.FieldsSeq(string(text)) {
		all = append(all, "+"+controller)
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(strings.Join(all, " ")), 0o644)
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
