package kubelet

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestRealHostPort: a pod's host port leads to it from its node, by the node's address and by localhost, and to nobody when it has gone.
func TestRealHostPort(t *testing.T) {
	w := newWorld(t)
	w.create(testPod("web", nginxPod, func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080, Protocol: corev1.ProtocolTCP}}
	}))
	w.await("web", "ready", ready)
	answers := func(address string) bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		c, err := w.node.Dial(ctx, "tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	for _, address := range []string{"10.13.76.4:8080", "127.0.0.1:8080"} {
		if !answers(address) {
			t.Errorf("nobody answers at %s", address)
		}
	}
	w.end()
	if answers("10.13.76.4:8080") {
		t.Error("the port of a pod that has gone answers")
	}
	if rules, err := runIn(w.node, "iptables", "-t", "nat", "-S"); err != nil || strings.Contains(rules, "CNI-DN-") {
		t.Errorf("rules left: %v\n%s", err, rules)
	}
}
