// Package layout is a lab's directory: where its files are, who holds its locks, its cluster.yaml, and the hosts that it has. What it says
// holds without a lab process, too.
package layout

import (
	"errors"
	"os"
	"path/filepath"

	"packetwalk.dev/internal/pods/realnode"
)

// Dir is a lab's directory; its base name is the lab's name.
type Dir string

// Name returns the lab's name.
func (d Dir) Name() string { return filepath.Base(string(d)) }

// Path returns a path below the directory.
func (d Dir) Path(elem ...string) string {
	return filepath.Join(append([]string{string(d)}, elem...)...)
}

// Socket returns the control socket: HTTP with JSON.
func (d Dir) Socket() string { return d.Path("lab.sock") }

// EgressSocket returns where the API server finds its way to nodes and pods: HTTP CONNECT.
func (d Dir) EgressSocket() string { return d.Path("egress.sock") }

// ClusterFile returns the configuration that the lab was made from.
func (d Dir) ClusterFile() string { return d.Path("cluster.yaml") }

// FabricState returns the file in which the fabric keeps the network as it is.
func (d Dir) FabricState() string { return d.Path("fabric.json") }

// Kubeconfig returns the administrator's, for use on the host.
func (d Dir) Kubeconfig() string { return d.Path("kubeconfig") }

// Tools returns the directory of the files that nodes start with, whose programs read states that the machine's cannot. It returns "" for a
// lab with only simulated nodes.
func (d Dir) Tools() string {
	root, err := filepath.EvalSymlinks(d.toolsLink())
	if err != nil {
		return ""
	}
	return root
}

func (d Dir) toolsLink() string { return d.Path("tools") }

// SetTools sets the directory of Tools.
func (d Dir) SetTools(root string) error {
	if is, err := os.Readlink(d.toolsLink()); err == nil && is == root {
		return nil
	}
	next, err := os.MkdirTemp(string(d), "tools-")
	if err != nil {
		return err
	}
	link := filepath.Join(next, "link")
	return errors.Join(os.Symlink(root, link), os.Rename(link, d.toolsLink()), os.Remove(next))
}

// NetNS returns the bind mount of a host's network namespace.
func (d Dir) NetNS(host string) string { return d.Path("netns", host) }

// PodNetNSDir holds the bind mounts of the pods' network namespaces.
func (d Dir) PodNetNSDir() string { return d.Path("netns", "pods") }

// GroupNetNSDir holds the bind mounts of container groups' network namespaces.
func (d Dir) GroupNetNSDir() string { return d.Path("netns", "groups") }

// GroupHostNetNSDir holds those of the machines that container groups run on.
func (d Dir) GroupHostNetNSDir() string { return d.Path("netns", "group-hosts") }

// Groups returns the directory of container groups.
func (d Dir) Groups() string { return d.Path("groups") }

// Node returns the directory of a node.
func (d Dir) Node(name string) string { return d.Path("nodes", name) }

// Host returns the directory of a VM or an internet host.
func (d Dir) Host(name string) string { return d.Path("hosts", name) }

// Log returns the log of a component, a node agent or the lab process ("lab").
func (d Dir) Log(component string) string { return filepath.Join(d.Logs(), component+".log") }

// Logs returns the directory of logs, on the lab's disk; no node has such a name.
func (d Dir) Logs() string { return filepath.Join(d.Disk(), ".logs") }

// EtcdData returns the directory of etcd's data, on the lab's disk; no node has such a name.
func (d Dir) EtcdData() string { return filepath.Join(d.Disk(), ".etcd") }

// GroupLog returns the log of the service proxy of a container group's machine.
func (d Dir) GroupLog(group string) string {
	return filepath.Join(d.Logs(), containerGroup, group+".log")
}

// Exists reports whether anything of the lab is there.
func (d Dir) Exists() bool {
	_, err := os.Stat(string(d))
	return err == nil
}

// StateRoot is where labs keep what their nodes have on disk: a directory for each lab, on a file system that overlayfs can write to and
// that is no memory, as /run is.
const StateRoot = "/var/lib/packetwalk"

// State returns the directory of what the lab's nodes have on disk.
func (d Dir) State() string { return filepath.Join(StateRoot, d.Name()) }

// NodeState returns the directory of what a node has on disk.
func (d Dir) NodeState(node string) string { return filepath.Join(d.State(), "nodes", node) }

// Cgroup returns the control group of a real node, or of all of the lab's without a name, below the root of each hierarchy.
func (d Dir) Cgroup(node string) string { return filepath.Join("packetwalk", d.Name(), node) }

// MachinePid returns the pid file of a real node's first process.
func (d Dir) MachinePid(node string) string { return filepath.Join(d.Node(node), machinePidFile) }

// MachineLog returns the log of a real node's start, before the node itself logs.
func (d Dir) MachineLog(node string) string { return d.Log(node + ".machine") }

// ProgramsLayer returns what nodes have of containerd, kubelet and what they start.
func (d Dir) ProgramsLayer() string { return filepath.Join(d.State(), "programs") }

// GroupState returns the directory of what a group's machine has on disk, among those of the nodes, whose names have no dot.
func (d Dir) GroupState(group string) string { return d.NodeState(group + ".group") }

// GroupCgroup returns the control group of a group's machine.
func (d Dir) GroupCgroup(group string) string { return d.Cgroup(group + ".group") }

// GroupPid returns the pid file of the first process of a group's machine.
func (d Dir) GroupPid(group string) string { return filepath.Join(d.Groups(), group, machinePidFile) }

// machinePidFile is the pid file's name of a machine's first process.
const machinePidFile = "machine.pid"

// AppPid returns the pid file of a host's application.
func (d Dir) AppPid(host string) string { return filepath.Join(d.Host(host), "app.pid") }

// AppCgroup returns the control group of a host's application.
func (d Dir) AppCgroup(host string) string { return d.Cgroup(host + ".app") }

// ProxyPid returns the pid file of a node's kube-proxy.
func (d Dir) ProxyPid(node string) string { return filepath.Join(d.Node(node), "kube-proxy.pid") }

// NoModules returns a directory with a modprobe that loads nothing: kube-proxy would load ip_vs into the machine's kernel, to see whether
// there is something of it to clean up.
func (d Dir) NoModules() string { return d.Path("no-modules") }

// LocalDNSPid returns the pid file of a node's DNS cache.
func (d Dir) LocalDNSPid(node string) string { return filepath.Join(d.Node(node), "localdns.pid") }

// FelixPid returns the pid file of a node's felix.
func (d Dir) FelixPid(node string) string { return filepath.Join(d.Node(node), "calico-felix.pid") }

// FelixKubeconfig returns the path of felix's kubeconfig of a node, outside of the node.
func (d Dir) FelixKubeconfig(node string) string {
	return filepath.Join(d.Node(node), filepath.Base(realnode.FelixKubeconfig))
}

// SimulatedDir returns the directory of a simulated node's configuration and certificates.
func (d Dir) SimulatedDir(node string) string { return filepath.Join(d.Node(node), "simulated") }
