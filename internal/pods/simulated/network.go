package simulated

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/pods/podspec"
)

// An attachment is a pod's, by which the node finds it again: the CNI library keeps what it has added.
type attachment struct {
	namespace, name string
	uid             types.UID
}

// network attaches pods as containerd does (pkg/cri/server/sandbox_run.go): the first configuration of a directory, interface eth0, the
// K8S_POD_* arguments. The sandbox's ID is the pod's UID, so that nothing but the library's cache has to be kept.
type network struct {
	Config
	cni *libcni.CNIConfig
}

func newNetwork(c Config) network {
	return network{c, libcni.NewCNIConfigWithCacheDir([]string{c.Plugins}, c.Cache, nil)}
}

// pluginLimit is how long the plugins of one pod may take.
const pluginLimit = 2 * time.Minute

// podInterface is what a pod's link is called.
const podInterface = "eth0"

func (n *network) config() (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(n.Networks, []string{".conflist"})
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("cni plugin not initialized: no configuration in %s", n.Networks)
	}
	slices.Sort(files)
	return libcni.ConfListFromFile(files[0])
}

// attach makes a pod's network namespace and has the plugin attach it, or takes over one that is attached.
func (n *network) attach(ctx context.Context, o *corev1.Pod) (*netns.Namespace, []string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, pluginLimit, fmt.Errorf("not done within %v", pluginLimit))
	defer cancel()
	a := attachment{o.Namespace, o.Name, o.UID}
	path := filepath.Join(n.Namespaces, a.file())
	list, err := n.config()
	if err != nil {
		return nil, nil, err
	}
	run := n.runtime(a, path, podspec.PortMappings(o))
	if space, ips, err := n.adopt(list, run, path); err == nil {
		return space, ips, nil
	}
	if err := n.detach(ctx, a); err != nil { // of an attempt that was cut off
		return nil, nil, err
	}
	space, err := netns.Create(path)
	if err != nil {
		return nil, nil, err
	}
	fail := func(err error) (*netns.Namespace, []string, error) {
		return nil, nil, errors.Join(err, n.detach(context.WithoutCancel(ctx), a), space.Close())
	}
	added, err := n.cni.AddNetworkList(ctx, list, run)
	if err != nil {
		return fail(err) // it says which plugin failed at what
	}
	ips, err := addresses(current.GetResult(added))
	if err != nil {
		return fail(err)
	}
	return space, ips, nil
}

// adopt finds a pod that an earlier run attached.
func (n *network) adopt(list *libcni.NetworkConfigList, run *libcni.RuntimeConf, path string) (*netns.Namespace, []string, error) {
	was, err := n.cni.GetNetworkListCachedResult(list, run)
	if err != nil || was == nil {
		return nil, nil, errors.Join(err, fs.ErrNotExist)
	}
	ips, err := addresses(current.GetResult(was))
	if err != nil {
		return nil, nil, err
	}
	space, err := netns.Open(path)
	return space, ips, err
}

func addresses(r *current.Result, err error) (ips []string, _ error) {
	if err != nil {
		return nil, fmt.Errorf("read the CNI plugin's answer: %w", err)
	}
	for _, ip := range r.IPs {
		ips = append(ips, ip.Address.IP.String())
	}
	if len(ips) == 0 {
		return nil, errors.New("the CNI plugin gave no address")
	}
	return ips, nil
}

// detach has the plugin detach a pod, and removes its namespace. What is not there is no error.
func (n *network) detach(ctx context.Context, a attachment) error {
	path := filepath.Join(n.Namespaces, a.file())
	known, err := n.cni.GetCachedAttachments(string(a.uid))
	if err != nil {
		return err
	}
	for range known {
		list, err := n.config()
		if err != nil {
			return err
		}
		run := n.runtime(a, path, nil)
		if bytes, was, err := n.cni.GetNetworkListCachedConfig(list, run); err == nil && bytes != nil {
			run = was // with its host ports
		}
		if err := n.cni.DelNetworkList(ctx, list, run); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return netns.Remove(path)
}

// attached returns the pods that are, by the library's cache.
func (n *network) attached() (all []attachment) {
	list, err := n.cni.GetCachedAttachments("")
	if err != nil {
		return nil
	}
	for _, at := range list {
		a := attachment{uid: types.UID(at.ContainerID)}
		for _, arg := range at.CniArgs {
			switch arg[0] {
			case "K8S_POD_NAMESPACE":
				a.namespace = arg[1]
			case "K8S_POD_NAME":
				a.name = arg[1]
			}
		}
		all = append(all, a)
	}
	return all
}

func (n *network) runtime(a attachment, path string, ports []podspec.PortMapping) *libcni.RuntimeConf {
	run := &libcni.RuntimeConf{ContainerID: string(a.uid), NetNS: path, IfName: podInterface, Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", a.namespace}, {"K8S_POD_NAME", a.name}, {"K8S_POD_INFRA_CONTAINER_ID", string(a.uid)},
		{"K8S_POD_UID", string(a.uid)},
	}}
	if len(ports) > 0 {
		run.CapabilityArgs = map[string]any{"portMappings": ports}
	}
	return run
}
