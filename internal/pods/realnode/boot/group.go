package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/realnode"
)

// A group is a node's control group in one hierarchy.
type group struct {
	realnode.Hierarchy
}

// inner is the group, below the node's, that the node takes for the root of the hierarchy: what the node's own is limited by cannot be
// changed from in there.
const inner = "machine"

// initGroup is where the node's own processes are in cgroup v2, which has none in groups that have others below (cgroups(7)).
const initGroup = "init.scope"

// joinGroups makes the node's control groups anew, limits which devices and settings of the machine those in it can use, and takes this
// process and what it starts into them, as the root of all groups that they see.
func joinGroups(name string) ([]group, error) {
	if err := realnode.RemoveCgroup(name); err != nil {
		return nil, err // a node that runs already, or did a moment ago
	}
	all, err := realnode.Hierarchies()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, realnode.Hierarchy.V2)
	if i < 0 {
		return nil, errors.New("no cgroup2 is mounted, by which a node is kept from the machine's devices; " +
			"mount -t cgroup2 none /sys/fs/cgroup/unified")
	}
	var groups []group
	for _, h := range all {
		if err := makeGroups(h, filepath.Join(name, inner)); err != nil {
			return nil, fmt.Errorf("make control group %s: %w", name, err)
		}
		groups = append(groups, group{h})
	}
	if err := limitGroup(filepath.Join(all[i].Point, name)); err != nil {
		return nil, err
	}
	for _, h := range all {
		if err := os.WriteFile(filepath.Join(h.Point, name, inner, "cgroup.procs"), []byte("0"), 0); err != nil {
			return nil, fmt.Errorf("join control group: %w", err)
		}
	}
	// Of this thread, the main one, from which the rest of the node comes.
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return nil, fmt.Errorf("new cgroup namespace: %w", err)
	}
	own := filepath.Join(all[i].Point, name, inner, initGroup)
	err = os.Mkdir(own, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte("0"), 0)
	}
	if err != nil {
		return nil, fmt.Errorf("join control group: %w", err)
	}
	return groups, nil
}

// makeGroups makes a group and those above it, so that processes can be in it and groups below it.
func makeGroups(h realnode.Hierarchy, name string) error {
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

// mountGroups mounts the hierarchies in the node's /sys/fs/cgroup, as the machine has them.
func mountGroups(groups []group) error {
	const dir = "/sys/fs/cgroup"
	if len(groups) == 1 && groups[0].V2() {
		return mountAt("cgroup2", dir, noExec, "")
	}
	if err := mountAt("tmpfs", dir, noExec, "mode=0755"); err != nil {
		return err
	}
	for _, g := range groups {
		kind, options := "cgroup", g.Controllers
		switch {
		case g.V2():
			kind = "cgroup2"
		case strings.HasPrefix(options, "name="):
			options = "none," + options
		}
		if err := mountAt(kind, filepath.Join(dir, g.Dir()), noExec, options); err != nil {
			return err
		}
		if controllers := strings.Split(g.Dir(), ","); len(controllers) > 1 {
			for _, c := range controllers {
				if err := os.Symlink(g.Dir(), filepath.Join(dir, c)); err != nil {
					return err
				}
			}
		}
	}
	return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|noExec, "")
}
