package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
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
	Point string // where the machine has it mounted
	// Controllers are those of cgroup v1 that it has, as mount(8) takes them: "cpu,cpuacct", "name=systemd". Empty for v2.
	Controllers string
}

// V2 tells whether it is cgroup v2's.
func (h Hierarchy) V2() bool { return h.Controllers == "" }

// Dir is the name of its directory in /sys/fs/cgroup where there is more than one.
func (h Hierarchy) Dir() string {
	if h.V2() {
		return "unified"
	}
	return strings.TrimPrefix(h.Controllers, "name=")
}

// Hierarchies are those that are mounted on this machine.
func Hierarchies() ([]Hierarchy, error) {
	mounted, err := mounts.Own()
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	return parseHierarchies(mounted, string(own)), nil
}

// parseHierarchies finds where hierarchies are mounted; proc_pid_cgroup(5), own, has which words of the mounts' options are controllers.
func parseHierarchies(mounted []mounts.Mount, own string) (all []Hierarchy) {
	known := map[string]string{} // each controller's hierarchy
	for line := range strings.Lines(own) {
		if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); len(fields) == 3 && fields[1] != "" {
			for controller := range strings.SplitSeq(fields[1], ",") {
				known[controller] = fields[1]
			}
		}
	}
	for _, m := range mounted {
		h := Hierarchy{Point: m.Point}
		switch m.Type {
		case "cgroup2":
		case "cgroup":
			options := strings.Split(m.Options, ",")
			i := slices.IndexFunc(options, func(o string) bool { return known[o] != "" })
			if i < 0 {
				continue
			}
			h.Controllers = known[options[i]]
		default:
			continue
		}
		if !slices.ContainsFunc(all, func(o Hierarchy) bool { return o.Controllers == h.Controllers }) {
			all = append(all, h)
		}
	}
	return all
}

// Of is the group of a process, in all hierarchies that are mounted.
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

// removeGroups removes a group's directory after those below it; the files in them go with them.
func removeGroups(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeGroups(filepath.Join(dir, e.Name())))
		}
	}
	if gone := os.Remove(dir); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}
