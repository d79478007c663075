package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/node/cni/ebrules"
	"packetwalk.dev/internal/node/ipmasq"
)

// KubernetesVersion is the control plane's, see controlplane/go.mod.
const KubernetesVersion = "1.35.8"

// AgentPort is where packetwalk-node tells its metrics and states, at 127.0.0.1, and KubeProxyPort where kube-proxy tells its metrics,
// which would be at the same one.
const (
	AgentPort     = 10249
	KubeProxyPort = 10251
)

// NodeObject returns the Node as AKS registers it.
func NodeObject(c *cluster.Cluster, n cluster.Node) *corev1.Node {
	azure, group := c.Spec.Azure, c.NodeResourceGroup()
	zone := "0" // Azure's for a machine in none
	if n.Zone != "" {
		zone = azure.Location + "-" + n.Zone
	}
	labels := map[string]string{
		"agentpool":                        n.Pool,
		"kubernetes.azure.com/agentpool":   n.Pool,
		"kubernetes.azure.com/cluster":     group,
		"kubernetes.azure.com/mode":        strings.ToLower(string(n.Mode)),
		"kubernetes.azure.com/role":        "agent",
		"kubernetes.io/role":               "agent",
		"node-role.kubernetes.io/agent":    "",
		"kubernetes.io/hostname":           n.Name,
		"kubernetes.io/os":                 "linux",
		"kubernetes.io/arch":               runtime.GOARCH,
		"node.kubernetes.io/instance-type": n.VMSize,
		"topology.kubernetes.io/region":    azure.Location,
		"topology.kubernetes.io/zone":      zone,
	}
	maps.Copy(labels, n.Labels)
	if n.Runtime == cluster.RuntimeSimulated {
		labels["type"] = "simulated" // AKS's own pods keep away from it, as from virtual-kubelet's
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: labels},
		Spec: corev1.NodeSpec{
			ProviderID: fmt.Sprintf("azure:///subscriptions/%s/resourceGroups/%s/providers/Microsoft.Compute/virtualMachines/%s", azure.Subscription,
				group, n.Name),
			Taints: Taints(n.Taints),
		},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: n.Address.String()},
				{Type: corev1.NodeHostName, Address: n.Name},
			},
			Capacity: corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(int64(n.MaxPods), resource.DecimalSI)},
			NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v" + KubernetesVersion},
		},
	}
}

// Taints returns those of a pool as a node's object has them.
func Taints(taints []string) []corev1.Taint {
	var all []corev1.Taint
	for _, t := range taints {
		key, value, effect := cluster.SplitTaint(t)
		all = append(all, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return all
}

// adminLabels are those that a kubelet may not give its own node (NodeRestriction; upstream's kubelet refuses them as flags).
var adminLabels = []string{"kubernetes.io/role", "node-role.kubernetes.io/agent"}

// KubeletLabels returns the labels of a node that its kubelet gives it, and AdminLabels those that it may not.
func KubeletLabels(n *corev1.Node) map[string]string {
	labels := maps.Clone(n.Labels)
	for _, name := range adminLabels {
		delete(labels, name)
	}
	return labels
}

// AdminLabels returns the labels of a node that its kubelet may not give it.
func AdminLabels(n *corev1.Node) map[string]string {
	labels := map[string]string{}
	for _, name := range adminLabels {
		labels[name] = n.Labels[name]
	}
	return labels
}

// Conflist returns the node's CNI configuration (CNI specification 1.1.0, section 1) and its file's name; pods is the node's part of podCIDR
// with kubenet and mode overlay. Host ports are upstream's portmap's, as AKS configures it (azure-container-networking, 10-azure.conflist; AgentBaker, kubenet's template): with kubenet they are
// masqueraded by the mark of the service proxy, where it has a chain that makes it.
func Conflist(c *cluster.Cluster, n cluster.Node, pods netip.Prefix, state string) (name string, list []byte, err error) {
	type object = map[string]any
	network, name := "azure", "10-azure.conflist"
	plugin := object{"type": "packetwalk-cni", "mode": c.Spec.Network.Mode, "master": "eth0", "stateDir": state, "resetSettings": true}
	ports := object{"type": "portmap", "capabilities": object{"portMappings": true}, "backend": "iptables"}
	switch {
	case c.Spec.Network.IsOverlay(): // every address of the node's part is a pod's, and has the whole range's length (azure-container-networking, cns)
		name, plugin["mode"], plugin["executionMode"], ports["snat"] = "15-azure-swift-overlay.conflist", cluster.ModeTransparent, "v4swift", true
		plugin["ipam"] = object{"type": "azure-cns", "mode": "v4overlay", "addresses": []string{pods.String()}, "subnet": c.Spec.Network.PodCIDR}
	case c.Spec.Network.Plugin == cluster.PluginKubenet:
		network, name = "kubenet", "10-kubenet.conflist"
		if c.Spec.Network.Policy == cluster.PolicyCalico { // without kubenet's bridge, which would hide pods' interfaces from felix
			plugin["mode"] = cluster.ModeTransparent
		} else {
			plugin["mode"], plugin["bridge"] = "kubenet", "cbr0"
			if c.Spec.ServiceProxy.Rules == cluster.RulesCurrent {
				plugin["dedupChain"] = ebrules.DedupAKS
			}
		}
		if c.Spec.ServiceProxy.Rules == cluster.RulesCurrent {
			name = "10-containerd-net.conflist"
		}
		plugin["ipam"] = object{"type": "host-local", "subnet": pods}
		if proxy := c.Spec.ServiceProxy; proxy.Implementation != cluster.ProxyNone && proxy.Backend == cluster.BackendIPTables {
			ports["externalSetMarkChain"] = "KUBE-MARK-MASQ"
		}
	default:
		ports["snat"] = true
		if c.Spec.Network.Mode == cluster.ModeBridge {
			plugin["bridge"] = "azure0"
		}
		addresses := []string{}
		if len(n.PodAddresses) > 0 {
			addresses = append(addresses, n.PodAddresses[0].String()+"-"+n.PodAddresses[len(n.PodAddresses)-1].String())
		}
		plugin["ipam"] = object{"type": "azure-vnet-ipam", "addresses": addresses, "subnet": n.Subnet, "gateway": n.Subnet.Masked().Addr().Next()}
	}
	conf := object{"cniVersion": "1.0.0", "cniVersions": []string{"1.0.0", "1.1.0"}, "name": network, "plugins": []object{plugin, ports}}
	if n.Runtime == cluster.RuntimeContainerd {
		conf["plugins"] = []object{plugin, ports, {"type": "bandwidth", "capabilities": object{"bandwidth": true}}}
	}
	list, err = json.MarshalIndent(conf, "", "  ")
	return name, list, err
}

// AgentFlags returns packetwalk-node's flags on a node, as on one of a real cluster.
func AgentFlags(c *cluster.Cluster, n cluster.Node, kubeconfig string) []string {
	flags := append([]string{
		"--kubeconfig=" + kubeconfig,
		"--node-name=" + n.Name,
	}, append(proxyFlags(c), masqueradeFlags(c)...)...)
	return append(flags, nodeImageFlags(c, n)...)
}

// nodeImageFlags returns packetwalk-node's flags for the rules that AKS's node image sets up. Today's image has containerd and keeps pods
// from the wire server. The older rule sets are those of nodes with Docker, which did not.
func nodeImageFlags(c *cluster.Cluster, n cluster.Node) []string {
	if c.Spec.ServiceProxy.Rules != cluster.RulesCurrent {
		return nil
	}
	restriction := "off"
	if c.Spec.NodeOptions.IMDSRestriction {
		restriction = n.Address.String()
	}
	flags := []string{"--docker-bridge-cidr=none", "--block-wire-server", "--imds-restriction=" + restriction}
	if HasLocalDNS(c, n) {
		flags = append(flags, fmt.Sprintf("--local-dns=%s,%s", NodeListener, ClusterListener))
	}
	return flags
}

// crowded tells of a cluster with so many nodes that its agents, which all follow each change on one machine, would take half of its
// processors while many pods start (52 percent, with 100 nodes and 2,000 pods). Theirs wait between any two syncs then, twice as long as
// agents do on average by default.
func crowded(c *cluster.Cluster) bool { return len(c.Nodes()) >= 50 }

// proxyFlags returns packetwalk-node's flags for the service proxy, which it need not be.
func proxyFlags(c *cluster.Cluster) []string {
	if c.Spec.ServiceProxy.Implementation != cluster.ProxyPacketwalk {
		return []string{"--service-proxy=false"}
	}
	flags := []string{"--proxy-backend=" + string(c.Spec.ServiceProxy.Backend), "--proxy-rules=" + string(c.Spec.ServiceProxy.Rules),
		"--ip-families=IPv4"}
	if crowded(c) {
		flags = append(flags, "--iptables-min-sync-period=2s")
	}
	if !c.Spec.ServiceProxy.Repairs() {
		flags = append(flags, "--repair-rules=false")
	}
	if pods := c.PodRange(); pods.IsValid() {
		flags = append(flags, "--cluster-cidr="+pods.String())
	}
	return flags
}

// KubeProxyConfig returns the configuration of a node's kube-proxy (kubeproxy.config.k8s.io/v1alpha1), as JSON, which is YAML too. Limits
// of connection tracking are the machine's, and its out-of-memory score cannot be lowered everywhere.
func KubeProxyConfig(c *cluster.Cluster, node, kubeconfig string) ([]byte, error) {
	type object = map[string]any
	config := object{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"clientConnection": object{"kubeconfig": kubeconfig}, "hostnameOverride": node, "mode": c.Spec.ServiceProxy.Backend,
		"conntrack": object{"maxPerCore": 0, "min": 0}, "oomScoreAdj": 0,
		"metricsBindAddress": fmt.Sprintf("127.0.0.1:%d", KubeProxyPort),
	}
	if pods := c.PodRange(); pods.IsValid() {
		config["clusterCIDR"] = pods
	}
	return json.MarshalIndent(config, "", "  ")
}

// masqueradeFlags returns packetwalk-node's flags for who gives pods the node's address: the ip-masq-agent, or the node's own rule, or
// kubenet's.
func masqueradeFlags(c *cluster.Cluster) []string {
	n := c.Spec.Network
	if n.IPMasqAgent == cluster.IPMasqNone {
		var exclude []string
		for _, p := range n.NonMasqueradeCIDRs {
			exclude = append(exclude, p.String())
		}
		flag := "--node-masquerade-exclude="
		if n.Plugin == cluster.PluginKubenet {
			flag = "--non-masquerade-cidr="
		}
		return []string{flag + strings.Join(exclude, ",")}
	}
	return []string{
		"--ip-masq-agent", "--ip-masq-format=" + string(n.IPMasqAgent),
		"--ip-masq-configmaps=" + strings.Join(MasqConfigMaps(n.IPMasqAgent), ","),
	}
}

// MasqConfigMaps returns the names of those that the ip-masq-agent of a form reads.
func MasqConfigMaps(a cluster.IPMasqAgent) []string {
	if a == cluster.IPMasqV1 {
		return []string{ipmasq.UserConfigMap}
	}
	return []string{ipmasq.UserConfigMap, ipmasq.ReconciledConfigMap}
}
