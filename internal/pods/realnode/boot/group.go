package boot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/pods/isolation"
)

// A group is a node's control group in one hierarchy.
type group struct {
	cgroup.Hierarchy
}

// inner is the group, below the node's, that the node takes for the root of the hierarchy: what the node's own is limited by cannot be
// changed from in there.
const inner = "machine"

// initGroup is where the node's own processes are in cgroup v2, which has none in groups that have others below (cgroups(7)).
const initGroup = "init.scope"

// makeGroups makes the node's control groups anew, limits what those in them can use of the machine: its memory and process numbers, its
// devices and settings.
func makeGroups(name string, bounds cgroup.Limits) ([]group, error) {
	if err := cgroup.Remove(name); err != nil {
		return nil, err // a node that runs already, or did a moment ago
	}
	all, err := cgroup.Hierarchies()
	if err != nil {
		return nil, err
	}
	var groups []group
	for _, h := range all {
		if err := cgroup.Make(h, filepath.Join(name, inner)); err != nil {
			return nil, fmt.Errorf("make control group %s: %w", name, err)
		}
		outer := cgroup.Member{Dir: filepath.Join(h.Point, name), In: h.Dir()}
		if err := outer.Limit(bounds); err != nil {
			return nil, fmt.Errorf("bound control group %s: %w", name, err)
		}
		if h.V2() {
			if err := limitGroup(outer.Dir); err != nil {
				return nil, err
			}
		}
		groups = append(groups, group{h})
	}
	return groups, nil
}

// TryGroup makes the control groups of a node and limits what it can use, to see whether this machine can. The caller removes them.
func TryGroup(name string) error {
	_, err := makeGroups(name, cgroup.Limits{})
	return err
}

// joinGroups takes this process and what it starts into the node's control groups, which it makes, as the root of all groups that they see.
func joinGroups(name string, bounds cgroup.Limits) ([]group, error) {
	groups, err := makeGroups(name, bounds)
	if err != nil {
		return nil, err
	}
	var own string // in cgroup v2
	for _, g := range groups {
		dir := filepath.Join(g.Point, name, inner)
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return nil, fmt.Errorf("join control group: %w", err)
		}
		if g.V2() {
			own = filepath.Join(dir, initGroup)
		}
	}
	// Of this thread, the main one, from which the rest of the node comes.
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return nil, fmt.Errorf("new cgroup namespace: %w", err)
	}
	err = os.Mkdir(own, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte("0"), 0)
	}
	if err != nil {
		return nil, fmt.Errorf("join control group: %w", err)
	}
	return groups, nil
}

// mountGroups mounts the hierarchies in the node's /sys/fs/cgroup, as the machine has them.
func mountGroups(groups []group) error {
	const dir = "/sys/fs/cgroup"
	if len(groups) == 1 && groups[0].V2() {
		return isolation.MountAt("cgroup2", dir, isolation.NoExec, "")
	}
	if err := isolation.MountAt("tmpfs", dir, isolation.NoExec, "mode=0755"); err != nil {
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
		if err := isolation.MountAt(kind, filepath.Join(dir, g.Dir()), isolation.NoExec, options); err != nil {
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
	return isolation.ReadOnly(dir)
}
