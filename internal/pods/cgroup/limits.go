package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Limits bound what the processes of a group use together; a zero is no bound.
type Limits struct {
	Memory    int64 `json:"memory,omitempty"`    // bytes
	Weight    int64 `json:"weight,omitempty"`    // where processors are short, beside the other groups; as cpu.shares counts, 2 to 262144
	Processes int64 `json:"processes,omitempty"` // and threads
}

// A setting is the content of a file of a group. Files about swap are not there where the kernel does not account for it.
type setting struct{ file, value string }

func (s setting) swap() bool { return strings.Contains(s.file, "sw") }

// settings returns the limits of one controller (Documentation/admin-guide/cgroup-v1, cgroup-v2.rst).
func (l Limits) settings(controller string, v2 bool) (all []setting) {
	add := func(bound int64, v1, file2, value1, value2 string) {
		switch {
		case bound == 0:
		case v2:
			all = append(all, setting{file2, value2})
		default:
			all = append(all, setting{v1, value1})
		}
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	switch controller {
	case "memory":
		add(l.Memory, "memory.limit_in_bytes", "memory.max", number(l.Memory), number(l.Memory))
		add(l.Memory, "memory.memsw.limit_in_bytes", "memory.swap.max", number(l.Memory), "0") // no swap, as upstream's kubelet (NoSwap)
	case "pids":
		add(l.Processes, "pids.max", "pids.max", number(l.Processes), number(l.Processes))
	case "cpu":
		weight := min(max(l.Weight, 2), 262144)
		add(l.Weight, "cpu.shares", "cpu.weight", number(weight), number(1+(weight-2)*9999/262142)) // as runc converts it
	}
	return all
}

// A controller bounds a part of Limits.
type controller struct{ name, bounds string }

// controllers are those that bound what Limits has, with what is not bound without them.
var controllers = []controller{{"memory", "memory is"}, {"pids", "numbers of processes are"}, {"cpu", "use of processors is"}}

// Bound makes a group of the machine's with limits, of which those on memory and processes are the group's and that on processors is of the
// groups above it, too. missing says what cannot be bounded, and why; it is empty in good times.
func Bound(name string, l Limits) (missing []string) {
	all, err := Hierarchies()
	if err != nil {
		return []string{fmt.Sprintf("nothing is bounded: %v", err)}
	}
	// Other processes join these groups, by their paths.
	return bound(slices.DeleteFunc(all, func(h Hierarchy) bool { return h.private() }), name, l)
}

func bound(all []Hierarchy, name string, l Limits) (missing []string) {
	for _, c := range controllers {
		h, ok := hierarchyWith(all, c.name)
		if !ok {
			missing = append(missing, fmt.Sprintf("%s not limited: no control group hierarchy that is mounted has the controller %s", c.bounds,
				c.name))
			continue
		}
		if err := c.bound(h, name, l); err != nil {
			missing = append(missing, fmt.Sprintf("%s not limited: %v", c.bounds, err))
		}
	}
	return missing
}

// hierarchyWith returns the hierarchy of a controller.
func hierarchyWith(all []Hierarchy, controller string) (Hierarchy, bool) {
	for _, h := range all {
		list := strings.Split(h.Controllers, ",")
		if h.V2() {
			text, _ := os.ReadFile(filepath.Join(h.Point, "cgroup.controllers")) // what cannot be read has none
			list = strings.Fields(string(text))
		}
		if slices.Contains(list, controller) {
			return h, true
		}
	}
	return Hierarchy{}, false
}

func (c controller) bound(h Hierarchy, name string, l Limits) error {
	if err := Make(h, name); err != nil {
		return err
	}
	if err := c.set(h, name, l); err != nil {
		return err
	}
	// Beside the machine's own processes.
	for part := name; part != "."; part = filepath.Dir(part) {
		if err := c.set(h, part, Limits{Weight: l.Weight}); err != nil {
			return err
		}
	}
	return nil
}

func (c controller) set(h Hierarchy, name string, l Limits) error {
	for _, s := range l.settings(c.name, h.V2()) {
		if err := os.WriteFile(filepath.Join(h.Point, name, s.file), []byte(s.value), 0o644); err != nil && !s.swap() {
			return fmt.Errorf("limit %s: %w", c.name, err)
		}
	}
	return nil
}

// Add takes a process into a group that Bound has made.
func Add(name string, pid int) error {
	all, err := Hierarchies()
	if err != nil {
		return err
	}
	return add(all, name, pid)
}

func add(all []Hierarchy, name string, pid int) (err error) {
	for _, h := range all {
		dir := filepath.Join(h.Point, name)
		if _, missing := os.Lstat(dir); missing == nil { // it is only where a controller bounds something
			err = errors.Join(err, Group{{dir, h.Dir()}}.Add(pid))
		}
	}
	return err
}

// A Group is one group, in some of the machine's hierarchies. It may be in none.
type Group []Member

// A Member is a group in one hierarchy.
type Member struct {
	Dir string `json:"dir"` // of the machine
	In  string `json:"in"`  // Hierarchy.Dir
}

// Limit changes what the group may use; what l does not bound stays as it was.
func (m Member) Limit(l Limits) error {
	_ = m.limit(l) // of the limits of memory with swap and without the one has to be raised, or lowered, before the other
	return m.limit(l)
}

func (m Member) limit(l Limits) (err error) {
	v2 := m.In == Hierarchy{}.Dir()
	for _, c := range controllers {
		for _, s := range l.settings(c.name, v2) {
			f, failed := os.OpenFile(filepath.Join(m.Dir, s.file), os.O_WRONLY|os.O_TRUNC, 0)
			if errors.Is(failed, fs.ErrNotExist) {
				continue // of another controller
			}
			if failed == nil {
				_, failed = f.WriteString(s.value)
				f.Close()
			}
			if failed != nil {
				err = errors.Join(err, fmt.Errorf("limit %s: %w", c.name, failed))
			}
		}
	}
	return err
}

// Join takes the calling process into the group.
func (g Group) Join() error { return g.Add(0) }

// Add takes a process into the group.
func (g Group) Add(pid int) error {
	for _, m := range g {
		if err := os.WriteFile(filepath.Join(m.Dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("join control group: %w", err)
		}
	}
	return nil
}

// processes returns the numbers of those that are in the group now.
func (m Member) processes() (pids []int) {
	text, _ := os.ReadFile(filepath.Join(m.Dir, "cgroup.procs"))
	for field := range strings.FieldsSeq(string(text)) {
		if n, err := strconv.Atoi(field); err == nil && n > 0 {
			pids = append(pids, n)
		}
	}
	return pids
}
