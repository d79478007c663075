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
