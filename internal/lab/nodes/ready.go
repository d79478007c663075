package nodes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/manifests"
	"packetwalk.dev/internal/lab/network"
	"packetwalk.dev/internal/lab/status"
)

// lookPause is between two looks at a node that is waited for.
const lookPause = 100 * time.Millisecond

// waitNode waits until the API has a real node Ready, by what its kubelet says since the machine runs; without a network plugin of ours it
// need not have a network.
func (k kubelets) waitNode(ctx context.Context, n *Node) error {
	since := n.machine.State()
	switch {
	case since.Adopted:
		since.Since = time.Time{} // what was said of it before still holds
	case n.Runtime == cluster.RuntimeSimulated: // which is up at once
		since.Since = since.Since.Add(-time.Second)
	}
	for {
		object, err := k.API.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err == nil && isUp(object, since.Since, k.Cluster().Spec.Network.Plugin) {
			return nil
		}
		if err != nil && manifests.Final(err) {
			return err
		}
		if !pause.For(ctx, lookPause) {
			return errors.New("not ready: " + k.withObstacles(n, object, whyNotReady(object)))
		}
	}
}

// whyNotReady says what the API has about a node that is not ready, in its kubelet's words.
func whyNotReady(n *corev1.Node) string {
	switch c := readyCondition(n); {
	case n.Name == "":
		return "it has not registered"
	case c == nil:
		return "its kubelet has not said how it is"
	default:
		return c.Message
	}
}

// noNetwork is in kubelet's words for a node that only lacks a CNI plugin (the reason in the container runtime's status).
const noNetwork = "reason:NetworkPluginNotReady"

// isUp reports whether a node has started. The API keeps the conditions of a kubelet that has ended, so only those since the start count.
// The API's times are whole seconds.
func isUp(n *corev1.Node, since time.Time, plugin cluster.Plugin) bool {
	c := readyCondition(n)
	if c == nil || n.CreationTimestamp.Unix() < since.Unix() && c.LastHeartbeatTime.Unix() <= since.Unix() {
		return false
	}
	return c.Status == corev1.ConditionTrue || plugin == cluster.PluginNone && waitsForNetwork(c)
}

// waitsForNetwork reports whether a node lacks only a CNI plugin. Kubelet joins its complaints by commas.
func waitsForNetwork(c *corev1.NodeCondition) bool {
	return strings.HasPrefix(c.Message, "container runtime network not ready: ") && strings.Contains(c.Message, noNetwork)
}

func readyCondition(n *corev1.Node) *corev1.NodeCondition {
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 {
		return nil
	}
	return &n.Status.Conditions[i]
}

// upWord returns what a node is that has been brought up.
func (l *Nodes) upWord() string {
	if l.Cluster().Spec.Network.Plugin == cluster.PluginNone {
		return "up; Ready as soon as it has a CNI plugin of yours"
	}
	return "Ready"
}

// askTime is how long the API may take to tell a status how a node is.
const askTime = time.Second

// realStatus returns how many pods run on a real node, those in its own network too, -1 when that is not known, and what is wrong with the
// node.
func (l *Nodes) realStatus(n *Node) (pods int, problem string) {
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	all, err := podsOn(ctx, l.API.Client, n.Name)
	if err != nil {
		return -1, status.OneLine(err)
	}
	all = slices.DeleteFunc(all, func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning })
	pods = len(all)
	object, err := l.API.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return pods, status.OneLine(err)
	}
	c := readyCondition(object)
	switch {
	case c == nil || c.Status == corev1.ConditionTrue:
		return pods, cmp.Or(network.APICut(l.Azure.Current(), n.NIC), l.unroutedPods(n, all))
	case l.Cluster().Spec.Network.Plugin == cluster.PluginNone && waitsForNetwork(c):
		return pods, "not Ready: it waits for a CNI plugin of yours, by its /opt/cni/bin and /etc/cni/net.d (spec.network.plugin: none)"
	}
	return pods, "not Ready: " + l.withObstacles(n, object, c.Message)
}

// unroutedPods returns in a sentence which pods of a node it sends no packets to, because the route to them is missing or leads out of the
// node; "" for none. A CNI plugin of the user's may route as it likes.
func (l *Nodes) unroutedPods(n *Node, pods []corev1.Pod) string {
	if l.Cluster().Spec.Network.Plugin == cluster.PluginNone {
		return ""
	}
	var unrouted []string
	for _, p := range pods {
		address, err := netip.ParseAddr(p.Status.PodIP)
		if err != nil || p.Spec.HostNetwork || p.DeletionTimestamp != nil {
			continue
		}
		link, err := n.ns.LinkTowards(address)
		if err != nil {
			return status.OneLine(err)
		}
		if link == "" || link == nodeLink {
			unrouted = append(unrouted, fmt.Sprintf("%s/%s (%s)", p.Namespace, p.Name, address))
		}
	}
	if len(unrouted) == 0 {
		return ""
	}
	return fmt.Sprintf("the route to %s is missing: the CNI plugin makes it when a pod starts; delete the pod so that its controller makes another",
		strings.Join(unrouted, ", "))
}

// nodeLink is the node's link to Azure's network.
const nodeLink = "eth0"

// withObstacles adds to why a node is not ready what in Azure's network may keep its kubelet from the API server. Where the kubelet itself
// said why, it reached the API server and there is nothing to add.
func (l *Nodes) withObstacles(n *Node, object *corev1.Node, why string) string {
	if c := readyCondition(object); c != nil && c.Status != corev1.ConditionUnknown {
		return why
	}
	for _, obstacle := range network.APIObstacles(l.Azure.Current(), n.NIC) {
		why = strings.TrimSuffix(why, ".") + "; " + obstacle
	}
	return why
}
