package realnode

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/pods/handover"
)

// Paths of a node.
const (
	ProgramsDir    = "/opt/packetwalk"           // containerd, kubelet and what they start
	PluginsDir     = "/opt/cni/bin"              // CNI plugins
	NetworksDir    = "/etc/cni/net.d"            // CNI configuration
	KubernetesDir  = "/etc/kubernetes"           // kubelet's identity
	PodsDir        = "/etc/kubernetes/manifests" // of pods that a standalone kubelet runs
	containerdRoot = "/var/lib/containerd"
	containerdFile = "/etc/containerd/config.toml"
	registriesDir  = "/etc/containerd/certs.d"
	kubeletFile    = "/etc/kubelet.yaml"
	PluginStateDir = "/var/lib/packetwalk-cni"     // packetwalk-cni's state
	VolumesDir     = "/var/lib/packetwalk-volumes" // of the provisioner's volumes
	SpecFile       = "/run/packetwalk/node.json"   // the spec, for the node's own processes
	socket         = "/run/containerd/containerd.sock"
)

// Programs are what runs on each node, and containerd's command.
var Programs = []string{"containerd", "containerd-shim-runc-v2", "ctr", "kubelet", "runc"}

// NodeAgent is packetwalk-node, and NodeAgentKubeconfig its kubeconfig.
const (
	NodeAgent           = ProgramsDir + "/packetwalk-node"
	NodeAgentKubeconfig = KubernetesDir + "/packetwalk-node.conf"
)

// Felix is Calico's agent, where the cluster has Calico, and FelixKubeconfig its kubeconfig.
const (
	Felix           = ProgramsDir + "/calico-felix"
	FelixKubeconfig = KubernetesDir + "/calico-felix.conf"
)

// Plugins are the CNI plugins of others that each node has beside portmap.
var Plugins = []string{"bandwidth"}

// A File is one that a node has from its start; Link is what it is a symbolic link to, else Text is what it holds.
type File struct {
	Path    string
	Text    string
	Link    string
	Private bool // only root of the node may read it
}

// WriteLayer makes a directory that holds the files, 0644 or 0600, for the lowest layers of nodes: what a node changes of them it changes
// in a layer of its own.
func WriteLayer(dir string, files []File) error {
	for _, f := range files {
		path := filepath.Join(dir, f.Path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if f.Link != "" {
			if err := os.Symlink(f.Link, path); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			continue
		}
		mode := fs.FileMode(0o644)
		if f.Private {
			mode = 0o600
		}
		if err := atomicfile.Write(path, []byte(f.Text), mode); err != nil {
			return err
		}
	}
	return nil
}

// WriteBase makes the layer that all nodes of a lab have above the distribution's files: copies of the CNI plugins and of Programs, by
// their names.
func WriteBase(dir string, plugins []string, programs map[string]string) error {
	files := append(alternatives(), File{Path: filepath.Join(PluginsDir, handover.Plugin), Link: "packetwalk-cni"})
	for _, name := range Programs {
		files = append(files, File{Path: filepath.Join("/usr/local/bin", name), Link: filepath.Join(ProgramsDir, name)})
	}
	if err := WriteLayer(dir, files); err != nil {
		return err
	}
	for name, path := range programs {
		if err := copyProgram(path, filepath.Join(dir, ProgramsDir, name)); err != nil {
			return err
		}
	}
	for _, plugin := range plugins {
		if err := copyProgram(plugin, filepath.Join(dir, PluginsDir, filepath.Base(plugin))); err != nil {
			return fmt.Errorf("copy CNI plugin: %w", err)
		}
	}
	return nil
}

// alternatives returns the links by which Debian's programs for rules are found (update-alternatives(1)): the machine's choice, because all
// of a node's rules must be of one kind.
func alternatives() (files []File) {
	for _, name := range []string{
		"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore", "ebtables", "ebtables-save",
		"ebtables-restore", "arptables", "arptables-save", "arptables-restore",
	} {
		if target, err := os.Readlink("/etc/alternatives/" + name); err == nil {
			files = append(files, File{Path: "/etc/alternatives/" + name, Link: target})
		}
	}
	return files
}

// copyProgram copies a program to a path, whose directories it makes, mode 0755.
func copyProgram(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
