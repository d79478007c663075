package realnode

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/pods/preload"
)

// A Config is all that a node's machine needs. Directories are the machine's that this runs on.
type Config struct {
	Name string
	// State is the node's own directory, on a file system that overlayfs can write to. It must be there, and is kept when the node is started
	// again.
	State string
	// Images is where the file system of the images that the node has from its start is mounted; "" is none.
	Images string
	// Base is WriteBase's layer, and Distribution what is below it.
	Base, Distribution string
	// Kubernetes are the files of KubernetesDir, by their names.
	Kubernetes map[string][]byte
	Cgroup     string // below the root of each hierarchy
	Bounds     cgroup.Limits
	ResolvConf []byte
	// Registries is containerd's hosts.toml for all registries, which holds a secret.
	Registries string
	Kubelet    KubeletConfig
}

// Directories in State of what a node has in VolumesDir, in NetworksDir and, with a standalone kubelet, in PodsDir.
const (
	Volumes  = "volumes"
	Networks = "networks"
	Pods     = "pods"
)

// Args returns the arguments of packetwalk-app for the first process of the node with a State.
func Args(state string) []string { return []string{"node", specIn(state)} }

func specIn(state string) string { return filepath.Join(state, "node.json") }

// Prepare writes what the node's first process reads. The node must not run: its root would change beneath it.
func (c Config) Prepare() error {
	files, err := c.files()
	if err != nil {
		return err
	}
	layers, err := preload.Prepare(filepath.Join(c.State, "containerd"), c.Images)
	if err != nil {
		return err
	}
	own := filepath.Join(c.State, "layer")
	text, err := json.MarshalIndent(c.spec(own, layers), "", "  ")
	if err != nil {
		return err
	}
	if err := WriteLayer(own, files); err != nil {
		return err
	}
	for _, dir := range []string{"containerd", "kubelet", "log", Volumes, Networks, Pods} {
		if err := os.MkdirAll(filepath.Join(c.State, dir), 0o755); err != nil {
			return err
		}
	}
	return atomicfile.Write(specIn(c.State), text, 0o600)
}

// files returns the node's own: who it is, and what its programs are to do.
func (c Config) files() ([]File, error) {
	kubelet, err := c.Kubelet.file()
	if err != nil {
		return nil, err
	}
	files := []File{
		{Path: "/etc/hostname", Text: c.Name + "\n"},
		{Path: "/etc/hosts", Text: hostsFile("127.0.1.1\t" + c.Name)},
		{Path: "/etc/resolv.conf", Text: string(c.ResolvConf)},
		{Path: "/etc/machine-id", Text: c.machineID() + "\n"},
		{Path: "/etc/crictl.yaml", Text: "runtime-endpoint: unix://" + socket + "\n"},
		{Path: containerdFile, Text: containerdConfig},
		{Path: filepath.Join(registriesDir, "_default", "hosts.toml"), Text: c.Registries, Private: true},
		{Path: kubeletFile, Text: string(kubelet)},
	}
	for _, name := range slices.Sorted(maps.Keys(c.Kubernetes)) {
		files = append(files, File{Path: filepath.Join(KubernetesDir, name), Text: string(c.Kubernetes[name]), Private: true})
	}
	return files, nil
}

// machineID returns 128 bits, as hexadecimal digits, that no other node of this machine has (machine-id(5)).
func (c Config) machineID() string { return fmt.Sprintf("%x", sha256.Sum256([]byte(c.State)))[:32] }

// spec returns what the node's first process is to make.
func (c Config) spec(own string, layers []preload.Layer) Spec {
	state := func(name string) string { return filepath.Join(c.State, name) }
	s := Spec{
		Hostname: c.Name, State: c.State, Cgroup: c.Cgroup, Bounds: c.Bounds,
		Lower: []string{own, c.Base, c.Distribution},
		Binds: []Bind{
			{Source: state("containerd"), Target: containerdRoot},
			{Source: state("kubelet"), Target: "/var/lib/kubelet"},
			{Source: state("log"), Target: "/var/log"},
			{Source: state(Volumes), Target: VolumesDir},
			{Source: state(Networks), Target: NetworksDir},
		},
		Runtime: Program{Name: "containerd", Path: filepath.Join(ProgramsDir, "containerd"), Args: []string{"--config=" + containerdFile},
			Log: "/var/log/containerd.log", Socket: socket},
		Agent: Program{Name: "kubelet", Path: filepath.Join(ProgramsDir, "kubelet"), Args: c.Kubelet.args(), Log: "/var/log/kubelet.log"},
	}
	if len(layers) > 0 {
		s.Binds = append(s.Binds, Bind{Source: c.Images, Target: preload.NodeDir})
	}
	for _, l := range layers {
		s.Binds = append(s.Binds, Bind{Source: l.Source, Target: filepath.Join(containerdRoot, l.Path)})
	}
	if c.Kubelet.Standalone {
		s.Binds = append(s.Binds, Bind{Source: state(Pods), Target: PodsDir})
	}
	return s
}
