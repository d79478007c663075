package claims

import (
	"testing"

	"packetwalk.dev/test/world"
)

// TestKubenet: pods on a promiscuous bridge, to themselves and their neighbours through a service, to the other node, the VNet and the
// internet, and from each of those.
func TestKubenet(t *testing.T) {
	t.Parallel()
	w := world.UpFile(t, "outbound", "kubenet.yaml", "whereami.yaml")
	w.Kubectl(t, "rollout", "status", "deployment/whereami", "--timeout=120s")
	front := w.WaitService(t, "default", "whereami").Status.LoadBalancer.Ingress[0].IP
	w.WaitService(t, "kube-system", "kube-dns")
	pods := w.Pods(t, "-l", "app=whereami")
	if len(pods) != 2 {
		t.Fatalf("%d pods", len(pods))
	}
	pod, other := pods[0], pods[1]
	for range 5 { // to itself and to the other one, as it comes
		live(t, w, "--from", "pod/"+pod.Name, "--to", "svc/whereami")
		live(t, w, "--from", "pod/"+pod.Name, "--to", front+":80")
	}
	for _, p := range pods { // one of them is on the node of CoreDNS
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
