package realnode

import (
	"encoding/json"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

// Taint is a taint of a node, as KubeletConfiguration has it.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// SandboxImage is the image of the container that holds a pod's namespaces. The name is packetwalk's own, so that pods do not start with an
// image, of whatever size, that a user has loaded as registry.k8s.io/pause.
const SandboxImage = "docker.io/packetwalk/pause:3.10.1"

// containerdConfig is containerd's configuration, version 3 (github.com/containerd/containerd, docs/cri/config.md). The machine, not the
// node, loads AppArmor's profiles. No process may lower oom_score_adj if the machine gives none the right to.
const containerdConfig = `version = 3
root = "` + containerdRoot + `"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.zfs", "io.containerd.nri.v1.nri",
]

[grpc]
  address = "` + socket + `"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"

[plugins."io.containerd.cri.v1.images".registry]
  config_path = "` + registriesDir + `"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "` + SandboxImage + `"

[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["` + PluginsDir + `"]
  conf_dir = "` + NetworksDir + `"
  use_internal_loopback = true

[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "` + ProgramsDir + `/runc"
  SystemdCgroup = false
`

// A KubeletConfig is what a node's kubelet is told; the files that it names are in KubernetesDir: KubeletKubeconfig, ClientCA, ServingCert
// and ServingKey.
type KubeletConfig struct {
	Name       string
	Address    netip.Addr
	ProviderID string
	Labels     map[string]string // without those that only an administrator may set (NodeRestriction)
	Taints     []Taint           // that the node registers with
	MaxPods    int
	// PodProcesses are the most that a pod's containers may have, and threads, together.
	PodProcesses int64
	ClusterDNS   netip.Addr
	// Standalone is a kubelet without an API server: it runs the pods of the files in PodsDir. Of the other fields it has Name and
	// PodProcesses, and of files ClientCA, ServingCert and ServingKey. It answers on loopback alone, whoever has a certificate of ClientCA.
	Standalone bool
}

// Names of files in KubernetesDir.
const (
	KubeletKubeconfig = "kubelet.conf"
	ClientCA          = "ca.crt"
	ServingCert       = "kubelet.crt"
	ServingKey        = "kubelet.key"
)

// file returns kubelet's configuration file (kubelet.config.k8s.io/v1beta1), as JSON, which is YAML too. Everything on the machine shares
// its memory and disk. So kubelet evicts nothing for them, and reserves none of them for the system. Containers that set no seccomp profile
// get the runtime's default.
func (k KubeletConfig) file() ([]byte, error) {
	type object = map[string]any
	in := func(name string) string { return filepath.Join(KubernetesDir, name) }
	file := object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": object{
			"anonymous": object{"enabled": false}, "webhook": object{"enabled": !k.Standalone}, "x509": object{"clientCAFile": in(ClientCA)},
		},
		"tlsCertFile": in(ServingCert), "tlsPrivateKeyFile": in(ServingKey),
		"containerRuntimeEndpoint": "unix://" + socket,
		"cgroupDriver":             "cgroupfs", "failCgroupV1": false, "enforceNodeAllocatable": []string{},
		"failSwapOn": false, "evictionHard": object{}, "resolvConf": "/etc/resolv.conf",
		"podPidsLimit": k.PodProcesses, "serializeImagePulls": false, "seccompDefault": true,
	}
	if k.Standalone {
		maps.Copy(file, object{
			"authorization": object{"mode": "AlwaysAllow"}, "address": "127.0.0.1", "staticPodPath": PodsDir,
		})
		return json.MarshalIndent(file, "", "  ")
	}
	maps.Copy(file, object{
		"authorization": object{"mode": "Webhook"},
		"clusterDNS":    []netip.Addr{k.ClusterDNS}, "clusterDomain": "cluster.local",
		"maxPods": k.MaxPods, "providerID": k.ProviderID, "kubeAPIQPS": 50, "kubeAPIBurst": 100, "registerWithTaints": k.Taints,
	})
	return json.MarshalIndent(file, "", "  ")
}

// args returns kubelet's flags for the settings that its configuration file does not take.
func (k KubeletConfig) args() []string {
	if k.Standalone {
		return []string{"--config=" + kubeletFile, "--hostname-override=" + k.Name}
	}
	var labels []string
	for _, name := range slices.Sorted(maps.Keys(k.Labels)) {
		labels = append(labels, name+"="+k.Labels[name])
	}
	return []string{
		"--config=" + kubeletFile, "--kubeconfig=" + filepath.Join(KubernetesDir, KubeletKubeconfig), "--hostname-override=" + k.Name,
		"--node-ip=" + k.Address.String(), "--node-labels=" + strings.Join(labels, ","),
	}
}
