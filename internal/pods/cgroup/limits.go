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

	"golang.org/x/sys/unix"
)

// Limits bound what the processes of a group use together; a zero is no bound.
type Limits struct {
	Memory    int64 `json:"memory,omitempty"`    // bytes
	CPU       int64 `json:"cpu,omitempty"`       // thousandths of a processor
	Weight    int64 `json:"weight,omitempty"`    // where processors are short, beside the other groups; as cpu.shares counts, 2 to 262144
	Processes int64 `json:"processes,omitempty"` // and threads
}

// Or fills in what is not bound.
func (l Limits) Or(other Limits) Limits {
	or := func(a *int64, b int64) {
		if *a == 0 {
			*a = b
		}
	}
	or(&l.Memory, other.Memory)
	or(&l.CPU, other.CPU)
	or(&l.Weight, other.Weight)
	or(&l.Processes, other.Processes)
	return l
}

// The period of the processor's limit, and the least of it that the kernel takes; microseconds.
const (
	period     = 100_000
	leastQuota = 1000
)

// A setting is the content of a file of a group. Files about swap are not there where the kernel does not account for it.
type setting struct{ file, value string }

func (s setting) swap() bool { return strings.Contains(s.file, "sw") }

// settings are the limits of one controller (Documentation/admin-guide/cgroup-v1, cgroup-v2.rst).
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
		quota := number(max(l.CPU*period/1000, leastQuota))
		add(l.CPU, "cpu.cfs_quota_us", "cpu.max", quota, quota+" "+number(period)) // v1's period is that when nobody has set it
		weight := min(max(l.Weight, 2), 262144)
		add(l.Weight, "cpu.shares", "cpu.weight", number(weight), number(1+(weight-2)*9999/262142)) // as runc converts it
	}
	return all
}

// A controller bounds a part of Limits.
type controller struct{ name, bounds string }

// controllers are those that bound what Limits has, with what is not bound without them.
var controllers = []controller{{"memory", "memory is"}, {"pids", "numbers of processes are"}, {"cpu", "use of processors is"}}

// A Tree is where groups are made: one group in the hierarchy of each controller. The zero value has none, and its groups none.
type Tree struct{ places []place }

// A place is a controller's.
type place struct {
	controller, dir string
	in              Hierarchy
}

// Grow makes a group of the machine's with limits, and below it a place for others, inner. missing says what cannot be bounded, and why; it
// is empty in good times.
func Grow(name, inner string, l Limits) (t Tree, missing []string) {
	all, err := Hierarchies()
	if err != nil {
		return t, []string{fmt.Sprintf("nothing is bounded: %v", err)}
	}
	// Other processes join these groups, by their paths.
	all = slices.DeleteFunc(all, func(h Hierarchy) bool { return h.private() })
	return grow(all, name, inner, l)
}

func grow(all []Hierarchy, name, inner string, l Limits) (t Tree, missing []string) {
	for _, c := range controllers {
		h, ok := having(all, c.name)
		if !ok {
			missing = append(missing, fmt.Sprintf("%s not limited: no control group hierarchy that is mounted has the controller %s", c.bounds,
				c.name))
			continue
		}
		p := place{c.name, filepath.Join(h.Point, name, inner), h}
		if err := p.grow(h, name, inner, l); err != nil {
			missing = append(missing, fmt.Sprintf("%s not limited: %v", c.bounds, err))
			continue
		}
		t.places = append(t.places, p)
	}
	return t, missing
}

// having finds the hierarchy that a controller is in.
func having(all []Hierarchy, controller string) (Hierarchy, bool) {
	for _, h := range all {
		list := strings.Split(h.Controllers, ",")
		if h.V2() {
			text, _ := os.ReadFile(filepath.Join(h.Point, "cgroup.controllers")) // what cannot be read has none
			list = strings.Fields(string(text))
		}
		for _, c := range list {
			if c == controller {
				return h, true
			}
		}
	}
	return Hierarchy{}, false
}

func (p *place) grow(h Hierarchy, name, inner string, l Limits) error {
	if err := Make(h, filepath.Join(name, inner)); err != nil {
		return err
	}
	if h.V2() {
		if err := passControllers(p.dir); err != nil {
			return err
		}
	}
	if err := p.set(filepath.Join(h.Point, name), l); err != nil {
		return err
	}
	// Beside the machine's own processes, and real nodes, of which each has a weight of 1024.
	for part := filepath.Join(name, inner); part != "."; part = filepath.Dir(part) {
		if err := p.set(filepath.Join(h.Point, part), Limits{Weight: l.Weight}); err != nil {
			return err
		}
	}
	return nil
}

func (p *place) set(dir string, l Limits) error {
	for _, s := range l.settings(p.controller, p.in.V2()) {
		if err := os.WriteFile(filepath.Join(dir, s.file), []byte(s.value), 0o644); err != nil && !s.swap() {
			return fmt.Errorf("limit %s: %w", p.controller, err)
		}
	}
	return nil
}

// A Group is one group, in some of the machine's hierarchies. It may be in none.
type Group []Member

// A Member is a group in one hierarchy.
type Member struct {
	Dir string `json:"dir"` // of the machine
	In  string `json:"in"`  // Hierarchy.Dir
}

// Make makes a group with limits. Its name is a file's.
func (t Tree) Make(name string, l Limits) (Group, error) {
	var g Group
	for _, p := range t.places {
		dir := filepath.Join(p.dir, name)
		err := os.Mkdir(dir, 0o755)
		if err == nil || errors.Is(err, fs.ErrExist) { // of another controller, or of a start that was cut off
			err = p.set(dir, l)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("make control group: %w", err), g.Remove())
		}
		if !g.has(dir) {
			g = append(g, Member{dir, p.in.Dir()})
		}
	}
	return g, nil
}

// Limit changes what the group may use; what l does not bound stays as it was. Less memory than is in use is an error: the kernel would end
// processes for it.
func (g Group) Limit(l Limits) error {
	for _, m := range g {
		_ = m.limit(l) // of the limits of memory with swap and without the one has to be raised, or lowered, before the other
		if err := m.limit(l); err != nil {
			return err
		}
	}
	return nil
}

func (m Member) limit(l Limits) (err error) {
	v2 := m.In == Hierarchy{}.Dir()
	used, _ := os.ReadFile(filepath.Join(m.Dir, "memory.current")) // of v2; v1's kernel refuses by itself
	if n, _ := strconv.ParseInt(strings.TrimSpace(string(used)), 10, 64); l.Memory != 0 && n > l.Memory {
		return fmt.Errorf("limit memory to %d bytes: %d are in use", l.Memory, n)
	}
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

func (g Group) has(dir string) bool {
	return slices.ContainsFunc(g, func(m Member) bool { return m.Dir == dir })
}

// Remove removes the group. Its processes have ended, or are about to.
func (g Group) Remove() error {
	for _, m := range g {
		if err := removeSoon(m.Dir); err != nil {
			return err
		}
	}
	return nil
}

// Join takes the calling process into the group.
func (g Group) Join() error { return g.Add(0) }

// Add takes a process into the group.
func (g Group) Add(pid int) error { return g.write("cgroup.procs", pid) }

func (g Group) write(file string, id int) error {
	for _, m := range g {
		if err := os.WriteFile(filepath.Join(m.Dir, file), []byte(strconv.Itoa(id)), 0); err != nil {
			return fmt.Errorf("join control group: %w", err)
		}
	}
	return nil
}

// JoinThread takes the calling thread into the group, where what it starts is then; in the hierarchy of cgroup v2, in which threads are
// with their process, the whole process.
func (g Group) JoinThread() error {
	for _, m := range g {
		file := "tasks"
		if _, err := os.Stat(filepath.Join(m.Dir, file)); errors.Is(err, fs.ErrNotExist) { // v2 has no such file
			file = "cgroup.procs"
		}
		if err := (Group{m}).write(file, 0); err != nil {
			return err
		}
	}
	return nil
}

// OutOfMemory tells whether the kernel has ended a process of the group because the group, or one above, had no memory left.
func (g Group) OutOfMemory() bool {
	for _, m := range g {
		for _, file := range []string{"memory.oom_control", "memory.events"} {
			text, err := os.ReadFile(filepath.Join(m.Dir, file))
			if err != nil {
				continue // of another controller
			}
			for line := range strings.Lines(string(text)) {
				if name, n, _ := strings.Cut(strings.TrimSpace(line), " "); name == "oom_kill" && n != "0" {
					return true
				}
			}
		}
	}
	return false
}

// killRounds bounds Kill: each ends all processes that there are, which after the first can start no others.
const killRounds = 100

// Kill ends all processes of the group.
func (g Group) Kill() {
	if len(g) == 0 {
		return
	}
	for _, m := range g {
		_ = os.WriteFile(filepath.Join(m.Dir, "pids.max"), []byte("0"), 0) // no more of them; in pids' own directory
	}
	for range killRounds {
		pids := g[0].processes()
		if len(pids) == 0 {
			return
		}
		g[0].kill(pids)
	}
}

// processes are the numbers of those that are in the group now.
func (m Member) processes() (pids []int) {
	text, _ := os.ReadFile(filepath.Join(m.Dir, "cgroup.procs"))
	for field := range strings.FieldsSeq(string(text)) {
		if n, err := strconv.Atoi(field); err == nil && n > 0 {
			pids = append(pids, n)
		}
	}
	return pids
}

// kill ends those of the processes that are still in the group when their numbers cannot become others' any more.
func (m Member) kill(pids []int) {
	held := map[int]int{}
	for _, pid := range pids {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			defer unix.Close(fd)
			held[pid] = fd
		}
	}
	for _, pid := range m.processes() {
		if fd, ok := held[pid]; ok {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // it may have ended
		}
	}
}
