package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
)

// A node that waits for its pod range: it is Ready, its pods wait until the CNI configuration is written, which is tried again when it
// fails.
func TestPodsWaitForThePodRange(t *testing.T) {
	configured := make(chan netip.Prefix, 1)
	tries := 0
	controller := func(b *bench) {
		for b.countWatches()["nodes"] == 0 || b.countWatches()["pods"] == 0 { // the fake API server tells nobody of what came before
			time.Sleep(time.Millisecond)
		}
		time.Sleep(50 * time.Millisecond)
		b.giveRange()
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

// giveRange is upstream's node IPAM controller.
func (b *bench) giveRange() {
	if n := b.network.count(); n != 0 {
		b.t.Errorf("%d pods are on the network before there is one", n)
	}
	n, err := b.client.CoreV1().Nodes().Get(context.Background(), testNode, metav1.GetOptions{})
	if err == nil {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = "192.168.3.0/24", []string{"192.168.3.0/24"}
		_, err = b.client.CoreV1().Nodes().Update(context.Background(), n, metav1.UpdateOptions{})
	}
	if err != nil {
		b.t.Error(err)
	}
}

// TestPodsOfTheHostDoNotWaitForTheRange: those that bring the network are among them, and start however many pods wait for it.
func TestPodsOfTheHostDoNotWaitForTheRange(t *testing.T) {
	var pods []k8sruntime.Object
	for n := range 10 * runtime.GOMAXPROCS(0) {
		pods = append(pods, testPod(fmt.Sprint("early-", n)))
	}
	host := testPod("host", func(p *corev1.Pod) { p.Spec.HostNetwork, p.Spec.Containers[0].Name = true, "agent" })
	b := newBenchWith(t, func(b *bench, c *Config) {
		c.ConfigureCNI = func([]netip.Prefix) error { return nil }
		go func() {
			select {
			case c := <-b.runtime.started:
				if c.spec.Name != "agent" {
					t.Errorf("%s started", c.spec.Name)
				}
			case <-time.After(10 * time.Second):
				t.Error("the host's pod did not start")
			}
			b.giveRange()
		}()
	}, append(pods, host)...)
	for n := range pods {
		b.await(fmt.Sprint("early-", n), "ready", ready)
	}
}
