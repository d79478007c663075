package kubelet

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A node that waits for its pod range: it is Ready, its pods wait until the CNI configuration is written, which is tried again when it
// fails.
func TestPodsWaitForThePodRange(t *testing.T) {
	configured := make(chan netip.Prefix, 1)
	tries := 0
	controller := func(b *bench) { // upstream's node IPAM controller
		for b.countWatches()["nodes"] == 0 || b.countWatches()["pods"] == 0 { // the fake API server tells nobody of what came before
			time.Sleep(time.Millisecond)
		}
		time.Sleep(50 * time.Millisecond)
		if n := b.network.count(); n != 0 {
			t.Errorf("%d pods are on the network before there is one", n)
		}
		n, err := b.client.CoreV1().Nodes().Get(context.Background(), testNode, metav1.GetOptions{})
		if err == nil {
			n.Spec.PodCIDR, n.Spec.PodCIDRs = "192.168.3.0/24", []string{"192.168.3.0/24"}
			_, err = b.client.CoreV1().Nodes().Update(context.Background(), n, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Error(err)
		}
	}
	b := newBenchWith(t, func(b *bench, c *Config) {
		c.ConfigureCNI = func(pods []netip.Prefix) error {
			if tries++; tries == 1 {
				return errors.New("disk full")
			}
			configured <- pods[0]
			return nil
		}
		go controller(b)
	}, testPod("early"))
	if got := <-configured; got.String() != "192.168.3.0/24" || tries != 2 {
		t.Errorf("configured for %s at try %d", got, tries)
	}
	b.await("early", "ready", ready)
}
