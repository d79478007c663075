// Package hostns finds the network namespaces of this machine, and whose they are, for a capture of it. It only reads, and must not import
// walk or what runs a lab.
package hostns

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/procstat"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/dump"
	"packetwalk.dev/internal/kernel/netns"
)

// hostRoot is the machine's own root directory as seen from a container that shares its process ids.
const hostRoot = "/proc/1/root"

// Look finds this machine's own network namespace, "node/NAME", where NAME is its host name unless another is given, and those of the
// processes on it: "pod/NAMESPACE/NAME" where kubelet's files tell whose they are, "netns/NAME" for those that ip-netns(8) keeps, else
// "netns/INODE". In a container it needs the machine's process ids and network (hostPID and hostNetwork), and root there. It gives an
// origin of their states, without Kubernetes objects, and the path of each namespace.
func Look(ctx context.Context, name string) (capture.Origin, map[string]string, error) {
	m := machine{proc: "/proc", name: name, inside: contained()}
	if m.inside {
		m.root = hostRoot
	}
	m.logs = m.root + podLogs
	paths, err := m.namespaces()
	if err != nil {
		return capture.Origin{}, nil, fmt.Errorf("look for network namespaces: %w", err)
	}
	return dump.Origin(ctx, paths, m.root), paths, nil
}

// Files returns files as processes in a network namespace see them, which is known by its inode number: those of the oldest process that
// has all of them, else of the oldest that has the first. A pod's sandbox lacks some that its containers have.
func Files(inode uint64, limit int64, names ...string) ([][]byte, error) {
	return machine{proc: "/proc"}.files(inode, limit, names)
}

func (m machine) files(inode uint64, limit int64, names []string) (first [][]byte, err error) {
	pids, err := m.pids()
	if err != nil {
		return nil, err
	}
	var denied error
	for _, pid := range pids {
		dir := filepath.Join(m.proc, pid)
		if found, err := netnsOf(dir); err != nil || found != inode {
			if denied == nil && !procstat.Ended(err) {
				denied = err
			}
			continue
		}
		texts, all := make([][]byte, len(names)), true
		for i, name := range names {
			if texts[i], err = dump.ReadIn(filepath.Join(dir, "root"), name, limit); err != nil {
				all = false
			}
		}
		found, err := netnsOf(dir) // the number may be another process's by now
		switch {
		case err != nil || found != inode || texts[0] == nil:
		case all:
			return texts, nil
		case first == nil:
			first = texts
		}
	}
	if first == nil && denied != nil {
		return nil, fmt.Errorf("look for a process in the network namespace: %w", denied)
	}
	if first == nil {
		return nil, fmt.Errorf("no process in the network namespace has a file %s", names[0])
	}
	return first, nil
}

// contained reports whether the first process has another root directory than this one.
func contained() bool {
	var own, first unix.Stat_t
	return unix.Stat("/", &own) == nil && unix.Stat(hostRoot+"/", &first) == nil && (own.Dev != first.Dev || own.Ino != first.Ino)
}

// machine is where the processes and files of a machine are.
type machine struct {
	name   string // of its own namespace, "" for the host name
	proc   string // "/proc"
	root   string // "" or hostRoot
	logs   string // where kubelet keeps the pods' logs
	inside bool
}

// namespaces gives a path to each network namespace by its host's name.
func (m machine) namespaces() (map[string]string, error) {
	const self = "thread-self" // the process shows its first thread's namespace, and libraries take any thread elsewhere for a moment
	own, err := netnsOf(filepath.Join(m.proc, self))
	if err != nil {
		return nil, err
	}
	name, err := m.hostname()
	if err != nil {
		return nil, err
	}
	paths := map[string]string{"node/" + name: filepath.Join(m.proc, self, "ns/net")}
	seen := map[uint64]bool{own: true}
	mounted, err := netns.Mounted(m.root + "/run/netns")
	if err != nil {
		return nil, err
	}
	pids, err := m.pids()
	if err != nil {
		return nil, err
	}
	pods := m.pods()
	for _, pid := range pids {
		inode, err := netnsOf(filepath.Join(m.proc, pid))
		if err != nil || seen[inode] {
			continue // a namespace that may not be read is left out: what gets there leaves what is known
		}
		seen[inode] = true
		host := m.podName(pid, pods)
		if _, taken := paths[host]; host == "" || taken {
			host = "netns/" + mountedName(mounted, inode)
		}
		paths[host] = filepath.Join(m.proc, pid, "ns/net")
	}
	for path, inode := range mounted {
		if !seen[inode] {
			seen[inode] = true
			paths["netns/"+mountedName(mounted, inode)] = path
		}
	}
	return paths, nil
}

// hostname returns the name of the machine.
func (m machine) hostname() (string, error) {
	if m.name != "" {
		return m.name, nil
	}
	if m.inside {
		if text, err := dump.ReadIn(m.root, "etc/hostname", maxFile); err == nil && len(bytes.TrimSpace(text)) > 0 {
			return string(bytes.TrimSpace(text)), nil
		}
	}
	return os.Hostname()
}

// mountedName returns the name under which a namespace is kept, or its number where it has none that a capture can have.
func mountedName(mounted map[string]uint64, inode uint64) string {
	var names []string
	for path, n := range mounted {
		if n == inode && capture.HostName(filepath.Base(path)) {
			names = append(names, filepath.Base(path))
		}
	}
	if len(names) == 0 {
		return strconv.FormatUint(inode, 10)
	}
	return slices.Min(names)
}

func netnsOf(process string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(process+"/ns/net", &st); err != nil {
		return 0, fmt.Errorf("%s/ns/net: %w", process, err)
	}
	return st.Ino, nil
}

// pids lists the processes, the oldest first: a pod's sandbox comes before its containers, and before what these make themselves.
func (m machine) pids() ([]string, error) {
	entries, err := os.ReadDir(m.proc)
	if err != nil {
		return nil, err
	}
	type process struct {
		pid     int
		started uint64
	}
	var all []process
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			stat, _ := procstat.Read(filepath.Join(m.proc, e.Name())) // of one that is gone: zero
			all = append(all, process{n, stat.Start})
		}
	}
	slices.SortFunc(all, func(a, b process) int { return cmp.Or(cmp.Compare(a.started, b.started), cmp.Compare(a.pid, b.pid)) })
	texts := make([]string, len(all))
	for i, p := range all {
		texts[i] = strconv.Itoa(p.pid)
	}
	return texts, nil
}

// podCgroup is a pod's uid in the name of its cgroup: with dashes under cgroupfs, with underscores under systemd (kubernetes:
// pkg/kubelet/cm, GetPodContainerName).
var podCgroup = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})`)

// podLogs is where kubelet keeps the pods' logs, each in a directory NAMESPACE_NAME_UID.
const podLogs = "/var/log/pods"

// objectName is the form of the names of pods and namespaces (RFC 1123, as Kubernetes checks it).
var objectName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)

// pods gives NAMESPACE/NAME by uid.
func (m machine) pods() map[string]string {
	byUID := map[string]string{}
	for _, e := range m.logDirs() {
		parts := strings.Split(e.Name(), "_")
		if len(parts) == 3 && objectName.MatchString(parts[0]) && objectName.MatchString(parts[1]) {
			byUID[parts[2]] = parts[0] + "/" + parts[1]
		}
	}
	return byUID
}

// logDirs lists the directories of the pods' logs. Links in another root lead nowhere else.
func (m machine) logDirs() []os.DirEntry {
	if m.root == "" {
		entries, _ := os.ReadDir(m.logs) // there need be none
		return entries
	}
	root, err := unix.Open(m.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(root)
	within := unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := unix.Openat2(root, strings.TrimPrefix(podLogs, "/"), &within)
	if err != nil {
		return nil
	}
	dir := os.NewFile(uintptr(fd), podLogs)
	defer dir.Close()
	entries, _ := dir.ReadDir(-1)
	return entries
}

// A Pod is one that runs on a machine within this one.
type Pod struct {
	NetNS   string // a path to its network namespace, good for as long as its sandbox runs
	Sandbox string // the container runtime's name of its sandbox
}

// Pods gives, by NAMESPACE/NAME, the pods whose processes are in control groups below group ("/packetwalk/LAB/NODE", of any hierarchy) and
// that have a network namespace of their own: another one than the node's, whose inode number is own. logs is where their kubelet keeps
// their logs, by which they have names.
func Pods(group, logs string, own uint64) (map[string]Pod, error) {
	m := machine{proc: "/proc", logs: logs}
	pids, err := m.pids()
	if err != nil {
		return nil, err
	}
	found, names := map[string]Pod{}, m.pods()
	for _, pid := range pids {
		groups, err := os.ReadFile(filepath.Join(m.proc, pid, "cgroup"))
		if procstat.Ended(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		path, ok := below(string(groups), group)
		uid := podCgroup.FindStringSubmatch(path)
		if !ok || uid == nil {
			continue
		}
		name, ok := names[strings.ReplaceAll(uid[1], "_", "-")]
		_, taken := found[name]
		inode, err := netnsOf(filepath.Join(m.proc, pid))
		if ok && !taken && err == nil && inode != own {
			found[name] = Pod{NetNS: filepath.Join(m.proc, pid, "ns/net"), Sandbox: filepath.Base(path)}
		}
	}
	return found, nil
}

// below finds the line of proc_pid_cgroup(5) whose group is below another.
func below(groups, group string) (path string, ok bool) {
	for line := range strings.Lines(groups) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 && strings.HasPrefix(fields[2], group+"/") {
			return fields[2], true
		}
	}
	return "", false
}

// podName finds the pod that a process belongs to; "" for none. Only kubelet's files tell: the container's own it may have written itself.
func (m machine) podName(pid string, pods map[string]string) string {
	cgroup, err := os.ReadFile(filepath.Join(m.proc, pid, "cgroup"))
	found := podCgroup.FindSubmatch(cgroup)
	if err != nil || found == nil {
		return ""
	}
	if pod, ok := pods[strings.ReplaceAll(string(found[1]), "_", "-")]; ok {
		return "pod/" + pod
	}
	return ""
}

// maxFile is far more than a host name has, in bytes.
const maxFile = 64 << 10
