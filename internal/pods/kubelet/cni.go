package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/base/program"
)

// A network puts a pod's sandbox on the node's network and takes it off. netns is the path of the pod's network namespace.
type network interface {
	add(ctx context.Context, pod *corev1.Pod, id, netns string) (ips []string, err error)
	// del is no error for what is not there, also when the namespace is gone.
	del(ctx context.Context, pod *corev1.Pod, id, netns string) error
	// mapsPorts tells whether host ports of a pod have an effect.
	mapsPorts() bool
}

// cniNetwork calls CNI plugins as containerd does: the first configuration of confDir, interface eth0, the K8S_POD_* arguments.
type cniNetwork struct {
	confDir string
	binDirs []string
	cni     *libcni.CNIConfig
}

func newCNI(confDir string, binDirs []string, cacheDir string, node Namespace) *cniNetwork {
	run := &nodeExec{node: node}
	return &cniNetwork{confDir, binDirs, libcni.NewCNIConfigWithCacheDir(binDirs, cacheDir, run)}
}

const podInterface = "eth0"

func (n *cniNetwork) config() (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(n.confDir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return nil, fmt.Errorf("read CNI configuration: %w", err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("cni plugin not initialized: no configuration in %s", n.confDir)
	}
	slices.Sort(files)
	if strings.HasSuffix(files[0], ".conflist") {
		return libcni.ConfListFromFile(files[0])
	}
	return onePluginNetwork(files[0])
}

// onePluginNetwork is the network of a file that holds one plugin's configuration and no list, which containerd takes too.
func onePluginNetwork(file string) (*libcni.NetworkConfigList, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read CNI configuration: %w", err)
	}
	plugin, err := libcni.NetworkPluginConfFromBytes(b)
	if err != nil {
		return nil, fmt.Errorf("read CNI configuration %s: %w", file, err)
	}
	list, err := json.Marshal(map[string]any{
		"name": plugin.Network.Name, "cniVersion": plugin.Network.CNIVersion, "plugins": []json.RawMessage{b},
	})
	if err != nil {
		return nil, fmt.Errorf("read CNI configuration %s: %w", file, err)
	}
	return libcni.NetworkConfFromBytes(list)
}

// configOf is the configuration for a pod. Upstream's portmap hands through what it gets where a pod has no host ports (CNI plugins,
// plugins/meta/portmap, cmdAdd and cmdDel), which most pods have not: it is left out for them.
func (n *cniNetwork) configOf(pod *corev1.Pod) (*libcni.NetworkConfigList, error) {
	conf, err := n.config()
	if err == nil && len(portMappings(pod)) == 0 && len(conf.Plugins) > 1 {
		conf.Plugins = slices.DeleteFunc(conf.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Type == "portmap" })
	}
	return conf, err
}

func (n *cniNetwork) args(pod *corev1.Pod, id, netns string) *libcni.RuntimeConf {
	rt := &libcni.RuntimeConf{
		ContainerID: id, NetNS: netns, IfName: podInterface,
		Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", pod.Namespace},
			{"K8S_POD_NAME", pod.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", id},
			{"K8S_POD_UID", string(pod.UID)},
		},
	}
	if maps := portMappings(pod); len(maps) > 0 {
		rt.CapabilityArgs = map[string]any{"portMappings": maps}
	}
	return rt
}

// A portMapping is one entry of CNI's portMappings capability (CNI CONVENTIONS.md).
type portMapping struct {
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

func portMappings(pod *corev1.Pod) (list []portMapping) {
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.HostPort != 0 {
				list = append(list, portMapping{p.HostPort, p.ContainerPort, strings.ToLower(string(p.Protocol)), p.HostIP})
			}
		}
	}
	return list
}

func (n *cniNetwork) add(ctx context.Context, pod *corev1.Pod, id, netns string) ([]string, error) {
	conf, err := n.configOf(pod)
	if err != nil {
		return nil, err
	}
	res, err := n.cni.AddNetworkList(ctx, conf, n.args(pod, id, netns))
	if err != nil {
		return nil, err // libcni says which plugin failed at what
	}
	r, err := current.GetResult(res)
	if err != nil {
		return nil, fmt.Errorf("read the CNI plugin's answer: %w", err)
	}
	var ips []string
	for _, ip := range r.IPs {
		ips = append(ips, ip.Address.IP.String())
	}
	if len(ips) == 0 {
		return nil, errors.New("the CNI plugin gave no address")
	}
	return ips, nil
}

func (n *cniNetwork) del(ctx context.Context, pod *corev1.Pod, id, netns string) error {
	conf, err := n.configOf(pod)
	if err != nil {
		return err
	}
	return n.cni.DelNetworkList(ctx, conf, n.args(pod, id, netns))
}

// mapsPorts tells whether a plugin of the configuration takes the capability portMappings (CNI CONVENTIONS.md): libcni hands it to no
// other.
func (n *cniNetwork) mapsPorts() bool {
	conf, err := n.config()
	return err == nil && slices.ContainsFunc(conf.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Capabilities["portMappings"] })
}

// nodeExec runs CNI plugins in the node's network namespace: to them that is the host.
type nodeExec struct {
	version.PluginDecoder
	node Namespace
}

func (e *nodeExec) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// pluginLimit is how long a plugin may take: what CRI-O and containerd's clients give the whole of a pod's network at least.
const pluginLimit = 2 * time.Minute

func (e *nodeExec) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	for try := 0; ; try++ {
		stdout, err := program.Command{Path: path, Env: environ, Stdin: stdin, Limit: pluginLimit, In: e.node.Do}.Output(ctx)
		var failed *program.Error
		switch {
		case !errors.As(err, &failed):
			return stdout, err
		case errors.Is(err, syscall.ETXTBSY) && try < 5: // the plugin is just being installed
			time.Sleep(100 * time.Millisecond)
		default:
			return nil, pluginError(failed.Err, stdout, failed.Stderr)
		}
	}
}

// pluginError is what a plugin that failed said of itself: CNI's error object on standard output, else its standard error.
func pluginError(err error, stdout []byte, stderr string) error {
	e := types.Error{}
	switch jsonErr := json.Unmarshal(stdout, &e); {
	case len(stdout) == 0 && len(stderr) == 0:
		e.Msg = fmt.Sprintf("netplugin failed with no error message: %v", err)
	case len(stdout) == 0:
		e.Msg = fmt.Sprintf("netplugin failed: %q", stderr)
	case jsonErr != nil:
		e.Msg = fmt.Sprintf("netplugin failed but error parsing its diagnostic message %q: %v", stdout, jsonErr)
	}
	return &e
}
