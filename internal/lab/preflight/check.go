package preflight

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/kernel/netns"
)

// Result says how a feature did when it was tried.
type Result string

// The results of a check.
const (
	Works     Result = "works"
	Missing   Result = "missing"
	NeedsRoot Result = "needs root to try"
	NotTried  Result = "not tried" // the program to try it with is missing
)

// Row is one feature as the user sees it.
type Row struct {
	Feature   string   `json:"feature"`   // "br_netfilter"
	NeededFor []Need   `json:"neededFor"` // in the order of the table of needs
	Result    Result   `json:"result"`
	Cause     string   `json:"cause,omitempty"`  // why it does not work, in the words of the kernel or the program
	Remedy    string   `json:"remedy,omitempty"` // what the user can do
	Loaded    []string `json:"loaded,omitempty"` // the kernel modules that were loaded for it
}

// String returns one line, for an error.
func (r Row) String() string {
	return fmt.Sprintf("%s: %s: %s; needed for %s; %s", r.Feature, r.Result, r.Cause, joinNeeds(r.NeededFor), r.Remedy)
}

// Needs lists, in words, what needs the feature.
func (r Row) Needs() string { return joinNeeds(r.NeededFor) }

func joinNeeds(needs []Need) string {
	words := make([]string, len(needs))
	for i, n := range needs {
		words[i] = string(n)
	}
	return strings.Join(words, ", ")
}

// machine is what the checks use outside the namespace that they make. Tests replace its members.
type machine struct {
	features []feature
	root     string // holds proc, lib/modules and etc/os-release
	release  string // of the kernel
	user     bool   // this process is root only in a user namespace
	find     func(program string) (path string, err error)
	modprobe func(ctx context.Context, module string) error
	// tryAll tries features in a new namespace and returns the errors of those that do not work.
	tryAll func(ctx context.Context, features []feature) map[string]error
}

func newMachine() (*machine, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, fmt.Errorf("read the kernel's version: %w", err)
	}
	return &machine{
		features: features, root: "/", release: unix.ByteSliceToString(u.Release[:]), find: exec.LookPath, modprobe: modprobe, tryAll: tryAll,
	}, nil
}

// Check tries the features that the needs have, in the order of the table, and returns a row for each. It loads the modules of a feature
// that does not work, and tries again. The caller must be root.
func Check(ctx context.Context, needs ...Need) ([]Row, error) {
	m, err := newMachine()
	if err != nil {
		return nil, err
	}
	rows := m.check(ctx, needs)
	return rows, ctx.Err() // what was cut off says nothing about the machine
}

func (m *machine) check(ctx context.Context, needs []Need) []Row {
	var chosen, usable []feature
	lacking := map[string]string{} // the program that a feature lacks
	for _, f := range m.features {
		if !slices.ContainsFunc(f.needs, func(n Need) bool { return slices.Contains(needs, n) }) {
			continue
		}
		chosen = append(chosen, f)
		if tool := f.tool(); tool != "" {
			if _, err := m.find(tool); err != nil {
				lacking[f.name] = tool
				continue
			}
		}
		if !m.user || !f.root {
			usable = append(usable, f)
		}
	}
	failed := m.tryAll(ctx, usable)
	var loads map[string]load
	if !m.user {
		if loads = m.loadModules(ctx, usable, failed); len(loads) > 0 {
			failed = m.tryAll(ctx, usable)
		}
	}
	rows := make([]Row, len(chosen))
	for i, f := range chosen {
		rows[i] = f.row(lacking[f.name], failed[f.name], loads[f.name])
		if m.user && lacking[f.name] == "" {
			rows[i] = m.userRow(&f, failed[f.name], rows[i])
		}
	}
	return rows
}

// row returns the feature's row: the program that it lacks, why it failed, and what came of loading its modules.
func (f *feature) row(lacking string, failed error, l load) Row {
	r := Row{Feature: f.name, NeededFor: f.needs, Result: Works}
	switch {
	case lacking != "" && lacking == f.program:
		r.Result, r.Cause, r.Remedy = Missing, "program not found", install(lacking)
	case lacking != "":
		r.Result, r.Cause, r.Remedy = NotTried, "program "+lacking+" not found", install(lacking)
	case errors.Is(failed, errNoNamespace) && f.name != namespaces:
		r.Result, r.Cause, r.Remedy = NotTried, errNoNamespace.Error(), "see "+namespaces
	case failed != nil:
		r.Result, r.Cause, r.Remedy = Missing, oneLine(failed), f.remedy
		if len(f.modules) > 0 {
			r.Remedy = l.remedy
		}
	default:
		r.Loaded = l.loaded
	}
	return r
}

func install(name string) string { return "apt-get install " + program.Package(name) }

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// namespaces is the feature that all others are tried in.
const namespaces = "network namespaces"

var errNoNamespace = errors.New("no network namespace")

// tryAll tries features in a new network namespace. Features of the same tool are tried in one run, and one by one where that fails.
func tryAll(ctx context.Context, features []feature) map[string]error {
	failed := map[string]error{}
	if len(features) == 0 {
		return failed
	}
	err := netns.InNewNamespace(func(ns *netns.Namespace) error {
		tried, together := map[string]bool{}, map[string]bool{} // by the names of features, and of tools
		for _, f := range features {
			if tried[f.name] {
				continue
			}
			same := sameTool(features, f)
			if len(same) > 1 && !together[f.tool()] {
				together[f.tool()] = true
				if tryTogether(ctx, ns, same) == nil {
					for _, s := range same {
						tried[s.name] = true
					}
					continue
				}
			}
			if err := f.try(ctx, ns); err != nil {
				failed[f.name] = err
			}
		}
		return nil
	})
	if err != nil {
		for _, f := range features {
			failed[f.name] = fmt.Errorf("%w: %w", errNoNamespace, err)
		}
	}
	return failed
}

// sameTool returns the features that one run of the feature's tool can try.
func sameTool(features []feature, f feature) (same []feature) {
	for _, other := range features {
		if f.input != "" && other.input != "" && other.tool() == f.tool() {
			same = append(same, other)
		}
	}
	return same
}

func tryTogether(ctx context.Context, ns *netns.Namespace, same []feature) error {
	var input strings.Builder
	for _, f := range same {
		input.WriteString(f.input)
	}
	all := same[0]
	all.input = input.String()
	return all.try(ctx, ns)
}

// try uses the feature. A program that was found needs no more.
func (f *feature) try(ctx context.Context, ns *netns.Namespace) error {
	switch {
	case f.call != nil:
		return f.call(ctx, ns)
	case f.input != "":
		return run(ctx, ns, f.input, f.with[0], f.with[1:]...)
	}
	return nil
}

// tool returns the program that the feature is, or is tried with; "" for none.
func (f *feature) tool() string {
	if len(f.with) > 0 {
		return f.with[0]
	}
	return f.program
}
