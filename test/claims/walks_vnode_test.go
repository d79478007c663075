package claims

import (
	"fmt"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/test/world"
)

// TestContainerGroup: a container group as sender and as destination, of itself by its Service, too; by the subnet, and by the machine
// under it to the internet.
func TestContainerGroup(t *testing.T) {
	t.Parallel()
	w := world.Up(t, "virtual-node", "kuard-vnode.yaml")
	w.Kubectl(t, "rollout", "status", "deployment/kuard-vnode", "--timeout=120s")
	var group, pod corev1.Pod
	var service corev1.Service
	eventually.Succeeds(t, time.Minute, func() error {
		group, pod = corev1.Pod{}, corev1.Pod{}
		for _, p := range w.Pods(t, "-l", "app=kuard-vnode") {
			if p.Spec.NodeName == "virtual-node-aci-linux" {
				group = p
			} else {
				pod = p
			}
		}
		w.Get(t, &service, "service", "kuard-vnode")
		if group.Name == "" || pod.Name == "" {
			return fmt.Errorf("a pod is missing")
		}
		// The group's own service proxy has the Service's rules.
		_, err := w.Try(20*time.Second, "kubectl", "--name", w.Name, "exec", group.Name, "--", "curl", "-sS", "--max-time", "3", "-o",
			"/dev/null", "http://"+service.Spec.ClusterIP+":8080")
		return err
	})
	w.WaitFelix(t, pod)
	service = w.WaitService(t, "default", "kuard-vnode")
	w.WaitService(t, "kube-system", "kube-dns")
	vip, port, node := service.Status.LoadBalancer.Ingress[0].IP, service.Spec.Ports[0].NodePort, pod.Spec.NodeName
	self := "pod/" + group.Name
	for _, to := range []string{
		"pod/" + pod.Name + ":8080", "vm/testvm:80", "vm/testvm:22", "svc/kuard-vnode", vip + ":8080", "svc/kubernetes",
		"internet/ifconfig.co:80", "internet/client:80",
		fmt.Sprintf("node/%s:%d", node, port), "10.13.200.1:80",
	} {
		live(t, w, "--from", self, "--to", to)
	}
	for range 4 { // itself, and the other pod
		live(t, w, "--from", self, "--to", "svc/kuard-vnode")
	}
	for _, from := range []string{"pod/" + pod.Name, "node/" + node, "vm/testvm"} {
		live(t, w, "--from", from, "--to", self+":8080")
		live(t, w, "--proto", "icmp", "--from", from, "--to", self)
	}
	live(t, w, "--from", "internet/client", "--to", "svc/kuard-vnode")
	for _, to := range []string{"vm/testvm", "pod/" + pod.Name, "internet/ifconfig.co"} {
		live(t, w, "--proto", "icmp", "--from", self, "--to", to)
	}
	live(t, w, "--proto", "udp", "--from", self, "--to", "internet/ifconfig.co:5353")
	live(t, w, "--proto", "udp", "--from", self, "--to", "svc/kube-system/kube-dns")
}
