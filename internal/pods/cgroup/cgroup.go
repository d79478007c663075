package cgroup

import (
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"packetwalk.dev/internal/base/mounts"
)

// A Hierarchy is one of the machine's trees of control groups: of cgroup v1 one for each set of controllers (cgroups(7)), of v2 the only
// one.
type Hierarchy struct {
	Point string // where the machine has it mounted, or a path that is valid while this process runs
	// Controllers are those of cgroup v1 that it has, as mount(8) takes them: "cpu,cpuacct", "name=systemd". Empty for v2.
	Controllers string
}

// V2 reports whether it is cgroup v2's.
func (h Hierarchy) V2() bool { return h.Controllers == "" }

// Dir returns the name of its directory in /sys/fs/cgroup where there is more than one.
func (h Hierarchy) Dir() string {
	if h.V2() {
		return "unified"
	}
	return strings.TrimPrefix(h.Controllers, "name=")
}

// Hierarchies returns those of this machine. Containers and chroots often have none of them mounted, or not cgroup v2's.
func Hierarchies() ([]Hierarchy, error) {
	mounted, err := mounts.Own()
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	all := parseHierarchies(mounted, string(own))
	for _, h := range unmounted(all, string(own)) {
		if h.Point, err = openHierarchy(h.Controllers); err != nil {
			return nil, err
		}
		all = append(all, h)
	}
	return all, nil
}

// parseHierarchies finds where hierarchies are mounted; proc_pid_cgroup(5), own, has which words of the mounts' options are controllers.
func parseHierarchies(mounted []mounts.Mount, own string) (all []Hierarchy) {
	known := map[string]string{} // each controller's hierarchy
	for controllers := range ownHierarchies(own) {
		for controller := range strings.SplitSeq(controllers, ",") {
			known[controller] = controllers
		}
	}
	for _, m := range mounted {
		h := Hierarchy{Point: m.Point}
		switch m.Type {
		case "cgroup2":
		case "cgroup":
			options := strings.Split(m.Options, ",")
			i := slices.IndexFunc(options, func(o string) bool { return o != "" && known[o] != "" })
			if i < 0 {
				continue
			}
			h.Controllers = known[options[i]]
		default:
			continue
		}
		if !has(all, h) {
			all = append(all, h)
		}
	}
	return all
}

// ownHierarchies returns the controllers of each line of proc_pid_cgroup(5); cgroup v2 has none there.
func ownHierarchies(own string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.Lines(own) {
			if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); len(fields) == 3 && !yield(fields[1]) {
				return
			}
		}
	}
}

// unmounted returns the hierarchies that own names and mounted lacks. The kernel has cgroup v2's even where own does not name it, because
// it was never mounted.
func unmounted(mounted []Hierarchy, own string) (all []Hierarchy) {
	for controllers := range ownHierarchies(own + "\n0::/\n") {
		if h := (Hierarchy{Controllers: controllers}); !has(mounted, h) && !has(all, h) {
			all = append(all, h)
		}
	}
	return all
}

func has(all []Hierarchy, h Hierarchy) bool {
	return slices.ContainsFunc(all, func(o Hierarchy) bool { return o.Controllers == h.Controllers })
}

// Of returns the group of a process, in all hierarchies that are mounted.
func Of(pid int) (Group, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, err
	}
	all, err := Hierarchies()
	if err != nil {
		return nil, err
	}
	return groupOf(all, string(text)), nil
}

// groupOf reads proc_pid_cgroup(5).
func groupOf(all []Hierarchy, text string) (g Group) {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		i := slices.IndexFunc(all, func(h Hierarchy) bool { return h.Controllers == fields[1] })
		if i >= 0 {
			g = append(g, Member{filepath.Join(all[i].Point, fields[2]), all[i].Dir()})
		}
	}
	return g
}

// removeTime is how long Remove waits for a group whose processes have just ended.
const removeTime = 5 * time.Second

// Remove takes a control group, and all below it, out of all hierarchies: no process is in them any longer. Its parents go when they
// are empty. What is not there is no error.
func Remove(name string) error {
	all, err := Hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := removeSoon(filepath.Join(h.Point, name)); err != nil {
			return err
		}
		for parent := filepath.Dir(name); parent != "."; parent = filepath.Dir(parent) {
			if os.Remove(filepath.Join(h.Point, parent)) != nil {
				break // another's is in it
			}
		}
		if h.V2() {
			if err := restoreRoot(h.Point); err != nil {
				return fmt.Errorf("restore the root control group: %w", err)
			}
		}
	}
	return nil
}

// removeSoon removes a group's directory and those below it, as soon as no process is in them.
func removeSoon(dir string) (err error) {
	for deadline := time.Now().Add(removeTime); ; time.Sleep(10 * time.Millisecond) {
		if err = removeGroups(dir); err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("remove control group: %w", err)
		}
	}
}
