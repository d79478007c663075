package kubelet

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestHostPortTaken: of two pods with one host port the second is rejected, and when the first has gone a third gets the port.
func TestHostPortTaken(t *testing.T) {
	b := newBench(t)
	port := func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 21017, Protocol: corev1.ProtocolTCP}}
	}
	b.create(testPod("first", port))
	c := b.runtime.next(t)
	b.await("first", "ready", ready)
	b.create(testPod("second", port))
	p := b.await("second", "failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if p.Status.Reason != "NodePorts" || p.Status.Message !=
		"Pod was rejected: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports" {
		t.Errorf("status %+v", p.Status)
	}
	if b.network.count() != 1 {
		t.Errorf("%d attachments", b.network.count())
	}
	for _, name := range []string{"first", "second"} {
		if err := b.client.CoreV1().Pods("default").Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	<-c.stops
	b.awaitGone("first")
	b.awaitGone("second")
	b.create(testPod("third", port))
	b.runtime.next(t)
	b.await("third", "ready", ready)
}

// TestNoRoom: a pod that no scheduler looked at is rejected where the node has too little left, and not for one that has ended.
func TestNoRoom(t *testing.T) {
	b := newBenchWith(t, func(_ *bench, c *Config) {
		c.Node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: quantity("1"), corev1.ResourceMemory: quantity("1Gi")}
	})
	wants := func(cpu, memory string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources, p.Spec.RestartPolicy = sized(cpu, memory), corev1.RestartPolicyNever
		}
	}
	b.create(testPod("first", wants("600m", "100Mi")))
	c := b.runtime.next(t)
	b.await("first", "ready", ready)
	for name, tt := range map[string]struct{ cpu, memory, reason, message string }{
		"processors": {"500m", "1Mi", "OutOfcpu", "cpu, requested: 500, used: 600, capacity: 1000"},
		"memory":     {"1m", "2Gi", "OutOfmemory", "memory, requested: 2147483648, used: 104857600, capacity: 1073741824"},
	} {
		b.create(testPod(name, wants(tt.cpu, tt.memory)))
		p := b.await(name, "failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if p.Status.Reason != tt.reason || p.Status.Message != "Pod was rejected: Node didn't have enough resource: "+tt.message ||
			len(p.Status.ContainerStatuses) > 0 {
			t.Errorf("status %+v", p.Status)
		}
	}
	b.create(testPod("none"))
	b.runtime.next(t)
	b.await("none", "ready", ready)
	c.end(0)
	b.await("first", "succeeded", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	b.create(testPod("next", wants("900m", "1Mi")))
	b.runtime.next(t)
	b.await("next", "ready", ready)
}

func TestSamePort(t *testing.T) {
	tcp := func(host string, port int32) corev1.ContainerPort {
		return corev1.ContainerPort{HostIP: host, HostPort: port}
	}
	udp := tcp("", 80)
	udp.Protocol = corev1.ProtocolUDP
	for _, c := range []struct {
		a, b corev1.ContainerPort
		same bool
	}{
		{tcp("", 80), tcp("", 80), true},
		{tcp("", 80), tcp("", 81), false},
		{tcp("", 80), udp, false},
		{tcp("127.0.0.1", 80), tcp("0.0.0.0", 80), true},
		{tcp("127.0.0.1", 80), tcp("10.0.0.1", 80), false},
		{tcp("::", 80), tcp("::1", 80), true},
	} {
		if got := samePort(&c.a, &c.b); got != c.same {
			t.Errorf("%v, %v: %t", c.a, c.b, got)
		}
	}
}
