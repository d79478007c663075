package claims

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/test/world"
)

// kuardHost is the host of examples/virtual-node/kuard-vnode-ingress.yaml.
const kuardHost = "kuard-ingress.c18f41e21f17e33d504f.westeurope.aksapp.io"

// requestAddr is where kuard's page says that a request came from.
var requestAddr = regexp.MustCompile(`"requestAddr":"([0-9.]+):\d+"`)

// TestE9: from the ingress controller's pod, in the article's way: to a pod on the same machine and on the virtual node, and when a second
// machine has joined, to one there.
func TestE9(t *testing.T) {
	t.Parallel()
	const second = "aks-nodepool1-26711606-1"
	w := vnodeWorld(t).World
	enableAddon(t, w, w.Example("virtual-node", "cluster.yaml"))
	w.Kubectl(t, "apply", "-f", w.Example("virtual-node", "kuard-vnode-ingress.yaml"))
	t.Cleanup(func() {
		w.Kubectl(t, "delete", "-f", w.Example("virtual-node", "kuard-vnode-ingress.yaml"), "--ignore-not-found")
	})
	controller := ingressPod(t, w)
	if controller.Spec.NodeName != vnodeNode {
		t.Fatalf("the controller runs on %s", controller.Spec.NodeName)
	}
	w.WaitFelix(t, controller)
	whose := map[string]string{vnodeNode: controller.Status.PodIP, virtualNode: controller.Status.HostIP}
	checkSources(t, w, &controller, kuardPods(t, w, vnodeNode, virtualNode), whose)
	// By the Ingress it is the same, and kuard sees the host that the client asked for.
	seen := map[string]bool{}
	eventually.Succeeds(t, time.Minute, func() error {
		out, err := asks(w, "client", "http://"+kuardHost)
		m := requestAddr.FindStringSubmatch(out)
		if m == nil || !strings.Contains(out, kuardHost) {
			return fmt.Errorf("%w: %.500s", err, out)
		}
		if seen[m[1]] = true; len(seen) < 2 {
			return fmt.Errorf("requests came from %v only", seen)
		}
		return nil
	})
	if !seen[controller.Status.PodIP] || !seen[controller.Status.HostIP] {
		t.Errorf("requests came from %v", seen)
	}
	expect(t, w.SSH(t, vnodeNode, "conntrack", "-L", "-s", controller.Status.PodIP),
		`^tcp .* src=`+regexp.QuoteMeta(controller.Status.PodIP)+
			` dst=10\.13\.100\.\d+ sport=\d+ dport=8080 src=10\.13\.100\.\d+ dst=10\.13\.76\.4 sport=8080 `)

	w.Az(t, "aks", "scale", "-c", "2")
	t.Cleanup(func() { w.Az(t, "aks", "scale", "-c", "1") })
	whose[second] = controller.Status.PodIP
	w.Kubectl(t, "cordon", vnodeNode) // the pod that is deleted goes to the machine that is new
	w.Kubectl(t, "delete", "pod", "-n", "ingress", "--field-selector", "spec.nodeName="+vnodeNode)
	pods := kuardPods(t, w, second, virtualNode)
	w.Kubectl(t, "uncordon", vnodeNode)
	checkSources(t, w, &controller, pods, whose)
}

// kuardPods waits for a ready pod on each of these nodes.
func kuardPods(t *testing.T, w *world.World, nodes ...string) (pods []corev1.Pod) {
	t.Helper()
	eventually.Succeeds(t, 2*time.Minute, func() error {
		pods = w.Pods(t, "-n", "ingress")
		on := map[string]bool{}
		for _, p := range pods {
			on[p.Spec.NodeName] = true
		}
		for _, n := range nodes {
			if !on[n] || len(on) != len(nodes) {
				return fmt.Errorf("pods are ready on %v, want %v", on, nodes)
			}
		}
		return nil
	})
	for _, p := range pods {
		if p.Spec.NodeName != virtualNode {
			w.WaitFelix(t, p)
		}
	}
	return pods
}

// checkSources asks each pod from the controller's pod and compares the address that the pod sees with what is to be seen on its node, and
// the walk with the kernel.
func checkSources(t *testing.T, w *world.World, controller *corev1.Pod, pods []corev1.Pod, whose map[string]string) {
	t.Helper()
	for _, p := range pods {
		out := w.Kubectl(t, "exec", "-n", "kube-system", controller.Name, "--", "curl", "-s4", "--max-time", "5", p.Status.PodIP+":8080")
		if m := requestAddr.FindStringSubmatch(out); m == nil || m[1] != whose[p.Spec.NodeName] {
			t.Errorf("the pod on %s is asked by %q, want %s", p.Spec.NodeName, m, whose[p.Spec.NodeName])
		}
		because := `^the destination sees the sender's own address, ` + regexp.QuoteMeta(controller.Status.PodIP) + `:`
		if whose[p.Spec.NodeName] != controller.Status.PodIP {
			because = `^the destination sees ` + regexp.QuoteMeta(controller.Status.HostIP) + `:.* because nat cali-nat-outgoing 1: MASQUERADE `
		}
		expect(t, agrees(t, w, "pod/kube-system/"+controller.Name, "pod/ingress/"+p.Name+":8080"), because)
	}
}
