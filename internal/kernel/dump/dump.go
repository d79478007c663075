package dump

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/bpf"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/snapshot"
)

// Dumper takes the state of namespaces as raw texts, by the table capture.Dumps. It only reads. One Dumper serves many namespaces at the
// same time; its zero value is ready.
type Dumper struct {
	// Root is a directory whose programs are run, in a chroot there, before those of this process's own root: "/proc/1/root" in a
	// privileged pod, whose image has no tools, or others than those that wrote the node's rules. "" for none.
	Root string
	// Spare is a directory whose programs are run likewise where all others fail: those of a lab's nodes. "" for none.
	Spare string
	// Hosts are the namespaces that may be at the other end of a wire, by the names of their hosts: paths where namespaces are mounted or
	// /proc/PID/ns/net.
	Hosts map[string]string

	at        places        // where the machine tells of its modules; the zero value for this machine
	limit     time.Duration // of each program; 0 for program.Limit
	maxOutput int           // of each program, in bytes; 0 for program.MaxOutput

	once    sync.Once
	slots   chan struct{}
	release string
	builtIn builtInReader
	sockets map[uint32]process
	owners  sync.Once

	programs bpf.Finder
}

func (d *Dumper) init() {
	d.once.Do(func() {
		d.slots = make(chan struct{}, 2*runtime.NumCPU())
		var u unix.Utsname
		if unix.Uname(&u) == nil {
			d.release = unix.ByteSliceToString(u.Release[:])
		}
		if d.at.proc == "" {
			d.at = places{proc: "/proc", sys: "/sys", roots: []string{cmp.Or(d.Root, "/"), "/"}, release: d.release}
		}
		d.builtIn = d.at.builtInOnce()
	})
}

// All takes the state of the namespace of the host called name. What cannot be taken is told in its Output; only the end of ctx is an
// error.
func (d *Dumper) All(ctx context.Context, name string, ns *netns.Namespace) (*capture.Raw, error) {
	return d.Parts(ctx, name, ns)
}

// Parts does what All does for some parts of a host's state only, for a caller that has dumped it before and knows what can have changed
// since. Without parts it dumps all.
func (d *Dumper) Parts(ctx context.Context, name string, ns *netns.Namespace, parts ...snapshot.Part) (*capture.Raw, error) {
	d.init()
	modules := d.modules()
	raw := &capture.Raw{Name: name, Taken: time.Now(), Kernel: d.release, NetNS: ns.Inode(), Outputs: map[string]capture.Output{}}
	rows := slices.DeleteFunc(slices.Clone(capture.Dumps), func(row capture.Dump) bool {
		return len(parts) > 0 && !slices.Contains(parts, row.Part)
	})
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, group := range batches(rows) {
		wg.Go(func() {
			outputs := d.runGroup(ctx, ns, group, modules)
			mu.Lock()
			defer mu.Unlock()
			for i, row := range group {
				raw.Outputs[row.File] = outputs[i]
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("dump %s: %w", name, err)
	}
	return raw, nil
}

// runGroup returns the outputs of rows that one process can print.
func (d *Dumper) runGroup(ctx context.Context, ns *netns.Namespace, rows []capture.Dump, m *modules) (outputs []capture.Output) {
	d.slots <- struct{}{}
	defer func() { <-d.slots }()
	if outputs, ok := d.batch(ctx, ns, rows); ok {
		return outputs
	}
	for _, row := range rows {
		outputs = append(outputs, d.run(ctx, ns, row, m))
	}
	return outputs
}

func (d *Dumper) run(ctx context.Context, ns *netns.Namespace, row capture.Dump, m *modules) capture.Output {
	var out capture.Output
	var err error
	switch {
	case row.Part == snapshot.Flows && ns.TracksNothing():
		return capture.Output{Command: strings.Join(row.Commands[0], " ")}
	case row.Part == snapshot.Flows:
		return d.flows(ctx, ns, row, m)
	case row.File == capture.RulesetFile:
		return d.ruleset(ctx, ns, row, m)
	case row.Part == snapshot.IPSets:
		return d.ipsets(ctx, ns, row, m)
	case len(row.Commands) > 0:
		return d.command(ctx, ns, row, m)
	case row.File == capture.SysctlsFile:
		out.Data, err = sysctls(ns, capture.SysctlFiles)
	case row.File == capture.ListenersFile:
		out.Data, err = encode(d.listeners(ns, m))
	case row.File == capture.AttachedFile:
		out.Data, err = encode(attached(ns))
	case row.File == capture.QdiscsFile:
		out.Data, err = encode(qdiscs(ns))
	case row.File == capture.ProgramsFile:
		out.Data, err = encode(d.programs.Programs(ns))
	case row.File == capture.IPVSFile:
		out.Data, err = encode(ipvs(ns))
	case row.File == capture.RecentFile:
		out.Data, err = encode(recentLists(ns))
	case row.File == capture.AgentsFile:
		out.Data, err = encode(Agents(ns))
	case row.File == capture.IPsecFile:
		var missing string
		if missing, err = m.firstMissing("xfrm_user"); err == nil && missing != "" {
			return capture.Output{Skipped: notLoaded(missing)}
		}
		if err == nil {
			out.Data, err = encode(ipsec(ns))
		}
	case row.File == capture.WiresFile:
		out.Data, err = encode(d.wires(ns))
	default:
		err = errors.New("nothing here reads it")
	}
	if err != nil {
		out.Error = err.Error()
	}
	return out
}

func encode[T any](list []T, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	if list == nil {
		list = []T{}
	}
	return json.MarshalIndent(list, "", " ")
}

// command runs the row's commands whose program is there and whose part of the kernel is there, until one succeeds. Without any, the
// output has the error of the first that started.
func (d *Dumper) command(ctx context.Context, ns *netns.Namespace, row capture.Dump, m *modules) capture.Output {
	words := strings.Join(row.Commands[0], " ")
	why, err := skip(ns, row, m)
	switch {
	case err != nil:
		return capture.Output{Command: words, Error: err.Error()}
	case why != "":
		return capture.Output{Skipped: why}
	}
	none := capture.Output{Command: words, Error: "program not found; run \"apt-get install " + program.Package(row.Commands[0][0]) + "\""}
	failed := false
	for _, args := range row.Commands {
		for _, tool := range d.tools(args) {
			needed := needs[variant(tool.Root, tool.Path, tool.Name)]
			missing, err := m.firstMissing(needed...)
			if err != nil {
				return capture.Output{Command: words, Error: err.Error()}
			}
			nft := slices.Contains(needed, "nf_tables")
			if missing != "" || nft && strings.Contains(row.Commands[0][0], "-legacy-") { // the plain name may be the other variant's
				continue
			}
			if nft && m.noTables(ctx, ns) {
				return capture.Output{Skipped: "nf_tables has no tables in the namespace"}
			}
			tool.In = ns.Do
			result, started := d.untilWhole(ctx, row, tool)
			if started && result.Error == "" {
				return result
			}
			if !failed {
				none, failed = result, started
			}
			if ctx.Err() != nil {
				return none
			}
		}
	}
	if failed {
		return none
	}
	if missing, err := m.firstMissing(needs[row.Commands[0][0]]...); err == nil && missing != "" {
		return capture.Output{Skipped: notLoaded(missing)}
	}
	return none
}

func notLoaded(module string) string {
	return "the kernel does not have " + module + ", or its module is not loaded"
}

// skip returns why there is nothing to dump, "" where there may be something. The error says that this cannot be found out.
func skip(ns *netns.Namespace, row capture.Dump, m *modules) (why string, err error) {
	if row.Only == "" {
		return "", nil
	}
	if strings.HasPrefix(row.Commands[0][0], "ebtables-legacy") {
		why, err = noBridgeRules(ns, "/sys/module")
		if has, unknown := m.has("ebtables"); why == "" && err == nil && unknown == nil && !has {
			why = notLoaded("ebtables")
		}
		return why, err
	}
	some := false
	err = ns.Do(func() (err error) { some, err = anything(row.Only); return err })
	if err == nil && !some {
		why = row.Only + " is missing or empty"
	}
	return why, err
}

// untilWhole runs a tool, again where what it prints breaks off; false says that it cannot be started.
func (d *Dumper) untilWhole(ctx context.Context, row capture.Dump, tool program.Command) (capture.Output, bool) {
	result, started := d.runTool(ctx, tool)
	for try := 0; try < dumpTries && cutOff(row, &result) && ctx.Err() == nil; try++ {
		time.Sleep(dumpPause)
		result, started = d.runTool(ctx, tool)
	}
	if cutOff(row, &result) {
		result.Error = "what it printed breaks off in the middle"
	}
	return result, started
}

// nft 1.0.6 breaks off the JSON of a rule set in which a table has an owner, as tables of a trace have (trace.go) for the fraction of
// a second that they are there. Such a dump is taken again.
const (
	dumpTries = 40
	dumpPause = 50 * time.Millisecond
)

func cutOff(row capture.Dump, o *capture.Output) bool {
	return strings.HasSuffix(row.File, ".json") && o.Error == "" && len(bytes.TrimSpace(o.Data)) > 0 && !json.Valid(o.Data)
}

// runTool runs a program, and reports whether it started: one of the machine's may be broken, or not be for this machine at all.
func (d *Dumper) runTool(ctx context.Context, tool program.Command) (result capture.Output, started bool) {
	if tool.Name == "nft" {
		tool.Fails = nftOmits
	}
	data, err := tool.Output(ctx)
	result = capture.Output{Command: strings.Join(append([]string{tool.Name}, tool.Args...), " "), Data: data}
	var failed *program.Error
	if errors.As(err, &failed) {
		result.Error = strings.TrimSpace(fmt.Sprintf("%s: %s", failure(tool.Name, d.placeOf(tool), failed.Err), failed.Stderr))
	}
	return result, !program.NotStarted(err)
}

// nftOmits matches what nft says of an expression that it does not know. It leaves the expression out of the rule and ends with status 0.
var nftOmits = regexp.MustCompile(`(?m)^netlink: Error: `)

// placeOf says where a program is installed, for a remedy.
func (d *Dumper) placeOf(tool program.Command) string {
	switch {
	case d.Root == "":
		return "on this machine"
	case tool.Root == d.Root:
		return "on the node"
	}
	return "in packetwalk's image"
}

// failure says what ended a program that is installed at a place. One that a signal killed has met something that it was not made for.
func failure(name, place string, err error) string {
	newer := "install a newer version " + place + ", such as the one that wrote the state"
	if errors.Is(err, program.ErrIncomplete) {
		return fmt.Sprintf("%s does not know all expressions; %s", name, newer)
	}
	ended, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return err.Error()
	}
	status, ok := ended.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return err.Error()
	}
	return fmt.Sprintf("%s was killed by %s; %s", name, unix.SignalName(status.Signal()), newer)
}

// versions are how the tools tell their versions, and what of the kernel they ask for that: programs of nf_tables open their socket first,
// and ipset asks for the kernel's protocol.
var versions = []struct {
	args  []string
	needs []string
}{
	{[]string{"ip", "-V"}, nil}, {[]string{"iptables", "--version"}, []string{"nfnetlink"}},
	{[]string{"ebtables", "--version"}, []string{"nfnetlink"}}, {[]string{"nft", "--version"}, []string{"nfnetlink"}},
	{[]string{"ipset", "--version"}, []string{"ip_set"}}, {[]string{"conntrack", "--version"}, []string{"nfnetlink"}},
}

// Versions gives what the tools say of their versions, by the names of the programs; those that are not there, or could not be asked
// without loading a module, are left out.
func (d *Dumper) Versions(ctx context.Context) map[string]string {
	d.init()
	m := d.modules()
	told := map[string]string{}
	for _, v := range versions {
		if missing, err := m.firstMissing(v.needs...); missing != "" || err != nil {
			continue
		}
		for _, tool := range d.tools(v.args) {
			if out, err := tool.Output(ctx); err == nil {
				told[v.args[0]], _, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
				break
			}
		}
	}
	return told
}

// tools returns the runs of a program in the order in which they are tried: by the machine's own, this process's, and the spare one.
func (d *Dumper) tools(args []string) (tools []program.Command) {
	for i, root := range []string{d.Root, "", d.Spare} {
		path := ""
		if root != "" || i == 1 {
			path = find(root, args[0])
		}
		if path == "" {
			continue
		}
		// Programs such as xtables-nft-multi go by the name that they are called by.
		tool := program.Command{Path: path, Name: args[0], Args: args[1:], Root: root, Limit: d.limit, MaxOutput: d.maxOutput}
		if root != "" {
			tool.Env = []string{"PATH=" + program.Path} // what is set here is for this root
		}
		tools = append(tools, tool)
	}
	return tools
}

// anything reports whether the file of a path has content, or is a directory. The error says that this is unknown.
func anything(path string) (bool, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case info.IsDir():
		return true, nil
	}
	text, err := limitio.ReadFile(path, maxNames)
	return len(bytes.TrimSpace(text)) > 0, err
}

// maxNames bounds a file of names of tables, in bytes.
const maxNames = 64 << 10

// programDirs are where the tools of a machine are when the PATH is another's.
var programDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// find finds a program by its name; with a root, the path that it has there, whose links are followed in that root as the kernel does at
// the start. "" says that there is none.
func find(root, name string) string {
	if root == "" {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	for _, dir := range programDirs {
		path := filepath.Join(dir, name)
		if openBeneath(cmp.Or(root, "/"), path, func(int) error { return nil }) == nil {
			return path
		}
	}
	return ""
}

// sysctls reads settings, by the paths of their files as in capture.SysctlFiles; those that the kernel does not have are left out.
func sysctls(ns *netns.Namespace, files []string) ([]byte, error) {
	var text bytes.Buffer
	// /proc/sys/net shows the settings of the namespace of the thread that looks.
	err := ns.Do(func() error {
		seen := map[string][]string{}
		for _, file := range files {
			all, err := expand(strings.Split(file, "/"), seen)
			if err != nil {
				return err
			}
			for _, elements := range all {
				value, err := os.ReadFile("/proc/sys/" + strings.Join(elements, "/"))
				if errors.Is(err, fs.ErrNotExist) {
					continue // of another kernel version, or of a link that has just gone
				}
				if err != nil {
					return err
				}
				fmt.Fprintf(&text, "%s = %s\n", snapshot.SysctlKey(elements...), bytes.TrimSpace(value))
			}
		}
		return nil
	})
	return text.Bytes(), err
}

// expand replaces the "*" of a path below /proc/sys by what there is; seen holds the directories read before.
func expand(elements []string, seen map[string][]string) ([][]string, error) {
	for i, e := range elements {
		if e != "*" {
			continue
		}
		dir := "/proc/sys/" + strings.Join(elements[:i], "/")
		names, ok := seen[dir]
		if !ok {
			entries, err := os.ReadDir(dir)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			for _, entry := range entries {
				names = append(names, entry.Name())
			}
			seen[dir] = names
		}
		var all [][]string
		for _, name := range names {
			one := append([]string{}, elements...)
			one[i] = name
			all = append(all, one)
		}
		return all, nil
	}
	return [][]string{elements}, nil
}
