package lab

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/pods/hostexec"
)

// A Place is where a command can be run: a host's network namespace.
type Place struct {
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
func (d Dir) FindHost(host string) (Place, error) {
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
		return Place{}, fmt.Errorf("no host %q; there are: %s, pod/NAMESPACE/NAME, container-group/NAME, container-host/NAME", host,
			strings.Join(d.hosts(), ", "))
	}
	at := Place{Name: host, NetNS: path, ResolvConf: d.resolvConf(host), Machine: supervise.Recorded(d.machinePid(host))}
	if _, err := os.Lstat(d.nodeState(host)); err == nil && at.Machine == 0 {
		at.Machine = hostexec.NoMachine
	}
	return at, nil
}

// resolvConf is what a node, a VM or an internet host has as /etc/resolv.conf.
func (d Dir) resolvConf(host string) []byte {
	for _, dir := range []string{d.Node(host), d.Host(host)} {
		if text, err := os.ReadFile(filepath.Join(dir, resolvFile)); err == nil {
			return text
		}
	}
	return nil
}

func (d Dir) hosts() []string {
	entries, _ := os.ReadDir(d.path("netns"))
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
func (d Dir) findPod(pod string) (Place, error) {
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
			return Place{}, err
		}
		if p, ok := real[namespace+"/"+name]; ok {
			return Place{Name: name, NetNS: p.NetNS, ResolvConf: d.sandboxResolvConf(p.Sandbox)}, nil
		}
		if at, err := d.findGroup(pod, d.GroupNetNSDir(), namespace+"-"+name); err == nil { // a pod of the virtual node
			return at, nil
		}
	}
	if err != nil || found == "" {
		return Place{}, fmt.Errorf("no pod %q in namespace %q runs in this lab; 'packetwalk kubectl get pods -A' lists them", name, namespace)
	}
	return Place{Name: name, NetNS: found}, nil
}

// groupKinds are the kinds of hosts of container groups, and where their namespaces are.
var groupKinds = map[string]func(Dir) string{containerGroup: Dir.GroupNetNSDir, containerHost: Dir.GroupHostNetNSDir}

// The kinds of hosts of a container group: the group itself, and the machine that it runs on.
const (
	containerGroup = "container-group"
	containerHost  = "container-host"
)

// findGroup finds a container group's namespace in a directory.
func (d Dir) findGroup(host, dir, name string) (Place, error) {
	spaces, err := netns.Mounted(dir)
	if err != nil {
		return Place{}, err
	}
	path := filepath.Join(dir, name)
	if _, ok := spaces[path]; ok {
		return Place{Name: name, NetNS: path, ResolvConf: d.groupResolvConf(name)}, nil
	}
	var there []string
	for p := range spaces {
		there = append(there, filepath.Base(p))
	}
	sort.Strings(there)
	return Place{}, fmt.Errorf("no host %q; container groups are: %s", host, strings.Join(there, ", "))
}
