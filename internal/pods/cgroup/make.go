package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Make makes a group and those above it, so that processes can be in it and groups below it. Those above may be removed meanwhile, by who
// was the last to need them ([Remove]).
func Make(h Hierarchy, name string) (err error) {
	for range 10 {
		if err = makeAll(h, name); !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	return err
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
