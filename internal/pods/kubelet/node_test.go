package kubelet

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

// TestImagesOfTheNode: the node's status has the images that there are, and those that come and go meanwhile.
func TestImagesOfTheNode(t *testing.T) {
	var now atomic.Pointer[[]corev1.ContainerImage]
	set := func(names ...string) {
		list := []corev1.ContainerImage{}
		for _, n := range names {
			list = append(list, corev1.ContainerImage{Names: []string{n}, SizeBytes: 1})
		}
		now.Store(&list)
	}
	set("one")
	b := newBenchWith(t, func(_ *bench, c *Config) { c.Images = func() []corev1.ContainerImage { return *now.Load() } })
	shown := func() []corev1.ContainerImage {
		n, err := b.client.CoreV1().Nodes().Get(t.Context(), testNode, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return n.Status.Images
	}
	await := func() {
		t.Helper()
		for limit := time.Now().Add(10 * time.Second); cmp.Diff(*now.Load(), shown()) != ""; time.Sleep(time.Millisecond) {
			if time.Now().After(limit) {
				t.Fatal(cmp.Diff(*now.Load(), shown()))
			}
		}
	}
	await()
	clock := clocktesting.NewFakeClock(time.Now())
	k := &Kubelet{cfg: Config{Clock: clock, Images: b.k.cfg.Images}, provider: b.k.provider}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- k.followImages(ctx) }()
	for _, names := range [][]string{{"one", "two"}, {"two"}} {
		set(names...)
		for !clock.HasWaiters() {
			time.Sleep(time.Millisecond)
		}
		clock.Step(imagesPeriod)
		await()
	}
	cancel()
	<-ended
}

// TestNodeStatusesInOrder: the status that is told last is the newest, whichever change's turn comes first.
func TestNodeStatusesInOrder(t *testing.T) {
	p := &nodeProvider{node: &corev1.Node{}}
	told := make(chan int64)
	p.NotifyNodeStatus(t.Context(), func(n *corev1.Node) { told <- n.Status.Images[0].SizeBytes })
	for size := range int64(100) {
		p.images([]corev1.ContainerImage{{SizeBytes: 2 * size}})
		p.images([]corev1.ContainerImage{{SizeBytes: 2*size + 1}})
		if <-told; <-told != 2*size+1 {
			t.Fatalf("after %d changes the last is not the newest", 2*(size+1))
		}
	}
}
