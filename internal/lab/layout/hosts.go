package layout

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
	"packetwalk.dev/internal/azure/fabric"
	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel/hostns"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/pods/isolation"
	"packetwalk.dev/internal/pods/safepath"
)

// A CommandTarget is where a command can be run: a host's network namespace.
type CommandTarget struct {
	Name  string // the host's, without a prefix
	NetNS string
	// ResolvConf is the host's /etc/resolv.conf; nil where it has none of its own.
	ResolvConf []byte
	// Machine is the first process of a real node, in whose root and namespaces commands run; 0 elsewhere.
	Machine int
}

// FindHost finds a HOST of the command line: the name of a node, VM or internet host, with its kind before it if one likes (node/NAME,
// vm/NAME, internet/NAME), "fabric", "internet", "controlplane", pod/NAMESPACE/NAME, or container-group/NAME and container-host/NAME, the
// machine that a group runs on.
func (d Dir) FindHost(host string) (CommandTarget, error) {
	kind, rest, cut := strings.Cut(host, "/")
	switch {
	case cut && kind == "pod":
		return d.findPod(rest)
	case cut && groupKinds[kind] != nil:
		return d.findGroup(host, groupKinds[kind](d), rest)
	case cut && (kind == "node" || kind == "vm" || kind == "internet"):
		host = rest
	}
	path := d.NetNS(host)
	if info, err := os.Stat(path); strings.Contains(host, "/") || err != nil || info.IsDir() {
		return CommandTarget{}, fmt.Errorf("no host %q; there are: %s, pod/NAMESPACE/NAME, container-group/NAME, container-host/NAME", host,
			strings.Join(d.hosts(), ", "))
	}
	at := CommandTarget{Name: host, NetNS: path, ResolvConf: d.resolvConf(host), Machine: supervise.Recorded(d.MachinePid(host))}
	if _, err := os.Lstat(d.NodeState(host)); err == nil && at.Machine == 0 {
		at.Machine = isolation.NoMachine
	}
	return at, nil
}

// Machines returns the lab's nodes that have a root of their own and run.
func (d Dir) Machines() []CommandTarget {
	var running []CommandTarget
	for _, host := range d.hosts() {
		if at, err := d.FindHost(host); err == nil && at.Machine > 0 {
			running = append(running, at)
		}
	}
	return running
}

// resolvConf returns what a node, a VM or an internet host has as /etc/resolv.conf.
func (d Dir) resolvConf(host string) []byte {
	for _, dir := range []string{d.Node(host), d.Host(host)} {
		if text, err := os.ReadFile(filepath.Join(dir, resolvFile)); err == nil {
			return text
		}
	}
	return nil
}

func (d Dir) hosts() []string {
	entries, _ := os.ReadDir(d.Path("netns"))
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	sort.Strings(names)
	return names
}

// findPod finds a pod's namespace by NAMESPACE/NAME, or NAME in namespace default.
func (d Dir) findPod(pod string) (CommandTarget, error) {
	namespace, name, ok := strings.Cut(pod, "/")
	if !ok {
		namespace, name = "default", pod
	}
	var found string
	err := filepath.WalkDir(d.PodNetNSDir(), func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && e.Name() == namespace+"_"+name {
			found = path
		}
		return nil
	})
	if found == "" {
		real, err := d.realPods()
		if err != nil {
			return CommandTarget{}, err
		}
		if p, ok := real[namespace+"/"+name]; ok {
			return CommandTarget{Name: name, NetNS: p.NetNS, ResolvConf: d.sandboxResolvConf(p.Sandbox)}, nil
		}
		if at, err := d.findGroup(pod, d.GroupNetNSDir(), namespace+"-"+name); err == nil { // a pod of the virtual node
			return at, nil
		}
	}
	if err != nil || found == "" {
		return CommandTarget{}, fmt.Errorf("no pod %q in namespace %q runs in this lab; 'packetwalk kubectl get pods -A' lists them", name, namespace)
	}
	return CommandTarget{Name: name, NetNS: found}, nil
}

// groupKinds are the kinds of hosts of container groups, and where their namespaces are.
var groupKinds = map[string]func(Dir) string{containerGroup: Dir.GroupNetNSDir, containerHost: Dir.GroupHostNetNSDir}

// The kinds of hosts of a container group: the group itself, and the machine that it runs on.
const (
	containerGroup = "container-group"
	containerHost  = "container-host"
)

// findGroup finds a container group's namespace in a directory.
func (d Dir) findGroup(host, dir, name string) (CommandTarget, error) {
	spaces, err := netns.Mounted(dir)
	if err != nil {
		return CommandTarget{}, err
	}
	path := filepath.Join(dir, name)
	if _, ok := spaces[path]; ok {
		return CommandTarget{Name: name, NetNS: path, ResolvConf: d.groupResolvConf(name)}, nil
	}
	var there []string
	for p := range spaces {
		there = append(there, filepath.Base(p))
	}
	sort.Strings(there)
	return CommandTarget{}, fmt.Errorf("no host %q; container groups are: %s", host, strings.Join(there, ", "))
}

// realPods returns the pods of the lab's real nodes that have a network namespace of their own, by NAMESPACE/NAME.
func (d Dir) realPods() (map[string]hostns.Pod, error) {
	all := map[string]hostns.Pod{}
	machines, _ := filepath.Glob(d.MachinePid("*")) // the pattern is well formed
	for _, file := range machines {
		pods, err := d.podsOf(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		maps.Copy(all, pods)
	}
	return all, nil
}

func (d Dir) podsOf(node string) (map[string]hostns.Pod, error) {
	ns, err := netns.Open(d.NetNS(node))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	logs, err := safepath.Open(d.NodeState(node), "log/pods")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it has had no pod
	}
	if err != nil {
		return nil, err
	}
	defer logs.Close()
	return hostns.Pods("/"+d.Cgroup(node), fmt.Sprintf("/proc/self/fd/%d", logs.Fd()), ns.Inode())
}

// sandboxName is what containerd calls a pod's sandbox.
var sandboxName = regexp.MustCompile(`^[0-9a-f]{64}$`)

// sandboxResolvConf returns what the containers of a real node's pod have as /etc/resolv.conf; nil where the node has none.
func (d Dir) sandboxResolvConf(sandbox string) []byte {
	if !sandboxName.MatchString(sandbox) {
		return nil
	}
	nodes, _ := filepath.Glob(d.NodeState("*")) // the pattern is well formed
	for _, state := range nodes {
		if text := resolvConfIn(state, sandbox); text != nil {
			return text
		}
	}
	return nil
}

// sandboxes is where a machine's containerd has what it knows of sandboxes, below the machine's state.
const sandboxes = "containerd/io.containerd.grpc.v1.cri/sandboxes"

// resolvConfIn returns what a sandbox's containers have as /etc/resolv.conf; nil where the machine has no such sandbox.
func resolvConfIn(state, sandbox string) []byte {
	f, err := openOf(state, filepath.Join(sandboxes, sandbox, resolvFile))
	if err != nil {
		return nil
	}
	defer f.Close()
	text, err := limitio.Read(f, maxResolvConf)
	if err != nil {
		return nil
	}
	return text
}

// groupResolvConf returns what a container group's containers have as /etc/resolv.conf; nil where none has been started. Its machine has
// one pod.
func (d Dir) groupResolvConf(group string) []byte {
	state, err := safepath.Open(d.GroupState(group))
	if err != nil {
		return nil
	}
	defer state.Close()
	dir, err := safepath.In(state, sandboxes, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxSandboxes) // what can be read of them
	for _, sandbox := range names {
		if sandboxName.MatchString(sandbox) {
			if text := resolvConfIn(d.GroupState(group), sandbox); text != nil {
				return text
			}
		}
	}
	return nil
}

// maxSandboxes is how many sandboxes of a group's machine are looked at: the one there is, and what is left of those before.
const maxSandboxes = 100

// maxResolvConf is the most that is read of a pod's resolv.conf, bytes.
const maxResolvConf = 64 << 10

// openOf opens a regular file of a real node for reading. Nothing that the node's processes put in the path leads elsewhere or blocks the
// caller.
func openOf(state, name string) (*os.File, error) {
	dir, err := safepath.Open(state)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := safepath.In(dir, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s of a node is no regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// resolvFile is the name of that file in the directory of a node or host.
const resolvFile = "resolv.conf"

var resolverNamespaces = map[string]string{AzureDNS: fabric.FabricNamespace, InternetDNS: fabric.InternetNamespace}

// Namespaces returns the mounts of the lab's hosts by their full names.
func (d Dir) Namespaces() (map[string]string, error) {
	kinds, err := d.kinds()
	if err != nil {
		return nil, err
	}
	paths := map[string]string{}
	for _, name := range d.hosts() {
		full, ok := kinds[name]
		if !ok {
			full = name
		}
		paths[full] = d.NetNS(name)
	}
	pods, err := netns.Mounted(d.PodNetNSDir())
	if err != nil {
		return nil, err
	}
	for path := range pods {
		// kubelet.Config.PodNetNSDir: NAMESPACE_NAME, and neither can hold a "_".
		if namespace, name, ok := strings.Cut(filepath.Base(path), "_"); ok {
			paths["pod/"+namespace+"/"+name] = path
		}
	}
	real, err := d.realPods()
	if err != nil {
		return nil, err
	}
	for name, pod := range real {
		paths["pod/"+name] = pod.NetNS
	}
	for kind, dir := range groupKinds {
		groups, err := netns.Mounted(dir(d))
		if err != nil {
			return nil, err
		}
		for path := range groups {
			paths[kind+"/"+filepath.Base(path)] = path
		}
	}
	return paths, nil
}

// kinds gives the full names of the hosts that the cluster's description has.
func (d Dir) kinds() (map[string]string, error) {
	c, err := d.Cluster()
	if err != nil {
		return nil, err
	}
	network, err := fabric.ReadNetwork(d.FabricState())
	if err != nil {
		return nil, fmt.Errorf("lab %s: %w", d.Name(), err)
	}
	kinds := map[string]string{}
	for _, n := range plan.Nodes(c, network) {
		kinds[n.Name] = "node/" + n.Name
	}
	for _, vm := range c.Spec.Azure.VMs {
		kinds[vm.Name] = "vm/" + vm.Name
	}
	for _, h := range c.Spec.Internet.Hosts {
		kinds[h.Name] = "internet/" + h.Name
	}
	return kinds, nil
}

// RemountNamespaces mounts those namespaces again whose mounts were lost while no lab process ran, and that processes of their hosts live in.
func (d Dir) RemountNamespaces() error {
	mounted, err := netns.Mounted(d.Path("netns"))
	if err != nil {
		return err
	}
	for path, pids := range d.HostProcesses() {
		if _, there := mounted[path]; there {
			continue
		}
		for _, pid := range pids {
			if _, foreign := netns.Foreign(pid); !foreign {
				continue // it has ended
			}
			if err := netns.BindOf(pid, path); err != nil {
				return err
			}
			break
		}
	}
	return nil
}

// HostProcesses returns the recorded processes of the lab's hosts that run, by the path where their host's namespace is mounted.
func (d Dir) HostProcesses() map[string][]int {
	all := map[string][]int{}
	add := func(path string, pid int) {
		if pid != 0 {
			all[path] = append(all[path], pid)
		}
	}
	for _, file := range glob(d.Path("*.pid")) {
		if file != d.LockFile() {
			add(d.NetNS(plan.ControlPlaneHost), supervise.Recorded(file))
		}
	}
	for _, file := range glob(d.Node("*"), "*.pid") {
		add(d.NetNS(filepath.Base(filepath.Dir(file))), supervise.Recorded(file))
	}
	for _, file := range glob(d.Groups(), "*", "*.pid") {
		spaces := d.GroupNetNSDir()
		if filepath.Base(file) == machinePidFile {
			spaces = d.GroupHostNetNSDir()
		}
		add(filepath.Join(spaces, filepath.Base(filepath.Dir(file))), supervise.Recorded(file))
	}
	for _, file := range glob(d.Host("*"), "*.pid") {
		host := filepath.Base(filepath.Dir(file))
		add(d.NetNS(cmp.Or(resolverNamespaces[host], host)), supervise.Recorded(file))
	}
	return all
}

// glob does what filepath.Glob does with a pattern that is well formed.
func glob(elem ...string) []string {
	files, _ := filepath.Glob(filepath.Join(elem...))
	return files
}

// The name servers' names, which run in namespaces of the fabric.
const (
	AzureDNS    = "azure-dns"
	InternetDNS = "internet-dns"
)

// LastLinesOfNode returns the last lines of a real node's log, for an error.
func LastLinesOfNode(state, name string) string {
	f, err := openOf(state, name)
	if err != nil {
		return ""
	}
	defer f.Close()
	return supervise.LastLinesOf(f)
}

// ResolvConf returns the /etc/resolv.conf of a machine that asks a name server.
func ResolvConf(server netip.Addr) []byte { return []byte("nameserver " + server.String() + "\n") }

// HasResolvConf reports whether the directory of a node or host has that file.
func HasResolvConf(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, resolvFile))
	return err == nil
}

// WriteResolvConf writes that file into the directory of a node or host.
func WriteResolvConf(dir string, server netip.Addr) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, resolvFile), ResolvConf(server), 0o600)
}
