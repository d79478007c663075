package claims

import (
	"fmt"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/test/world"
)

// TestKubenet: pods on a promiscuous bridge, to themselves and their neighbours through a service, to the other node, the VNet and the
// internet, and from each of those.
func TestKubenet(t *testing.T) {
	t.Parallel()
	w := world.UpFile(t, "outbound", "kubenet.yaml", "whereami.yaml")
	w.Kubectl(t, "rollout", "status", "deployment/whereami", "--timeout=60s")
	var service corev1.Service
	eventually.Succeeds(t, 30*time.Second, func() error {
		w.Get(t, &service, "service", "whereami")
		if len(service.Status.LoadBalancer.Ingress) == 0 {
			return fmt.Errorf("no front end yet")
		}
		_, err := w.Try(10*time.Second, "ssh", "--name", w.Name, "client", "--", "curl", "-sS", "--max-time", "3",
			"http://"+service.Status.LoadBalancer.Ingress[0].IP)
		return err
	})
	var pods corev1.PodList
	w.Get(t, &pods, "pods", "-l", "app=whereami", "--field-selector", "status.phase=Running")
	pod, other, front := pods.Items[0], pods.Items[1], service.Status.LoadBalancer.Ingress[0].IP
	for range 5 { // to itself and to the other one, as it comes
		live(t, w, "--from", "pod/"+pod.Name, "--to", "svc/whereami")
		live(t, w, "--from", "pod/"+pod.Name, "--to", front+":80")
	}
	for _, p := range pods.Items { // one of them is on the node of CoreDNS
		live(t, w, "--from", "pod/"+p.Name, "--to", "svc/kube-system/kube-dns:53")
		live(t, w, "--from", "pod/"+p.Name, "--to", "svc/kube-system/kube-dns:53", "--proto", "udp")
	}
	for _, to := range []string{"pod/" + other.Name + ":80", "node/" + pod.Spec.NodeName + ":10256", "node/" + other.Spec.NodeName + ":10256",
		"vm/testvm:80", "internet/ifconfig.co:80"} {
		live(t, w, "--from", "pod/"+pod.Name, "--to", to)
		live(t, w, "--from", "node/"+pod.Spec.NodeName, "--to", to)
	}
	for _, from := range []string{"vm/testvm", "internet/client"} {
		live(t, w, "--from", from, "--to", front+":80")
	}
	live(t, w, "--from", "vm/testvm", "--to", "pod/"+pod.Name+":80")
	live(t, w, "--proto", "icmp", "--from", "pod/"+pod.Name, "--to", "pod/"+other.Name)
}
