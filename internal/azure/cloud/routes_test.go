package cloud_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"packetwalk.dev/internal/azure/cloud"
	"packetwalk.dev/internal/azure/vnet"
)

// TestRunRoutes drives upstream's route controller over a fake API: nodes get their routes, what leads to nodes that are gone goes, and
// what a person made stays.
func TestRunRoutes(t *testing.T) {
	node := func(name, address, pods string) *v1.Node {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{
			Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: address}, {Type: v1.NodeHostName, Address: name}}}}
		if pods != "" {
			n.Spec.PodCIDR, n.Spec.PodCIDRs = pods, []string{pods}
		}
		return n
	}
	route := func(name, prefix, kind, hop string) vnet.UserRoute {
		u := vnet.UserRoute{Name: name, Prefix: netip.MustParsePrefix(prefix), NextHopType: kind}
		if hop != "" {
			u.NextHop = netip.MustParseAddr(hop)
		}
		return u
	}
	n := newNetwork(t, vnet.SKUBasic)
	n.n.RouteTables = []vnet.RouteTable{{Name: "pods", Routes: []vnet.UserRoute{
		route("gone", "192.168.7.0/24", vnet.NextHopAppliance, "10.13.76.20"),
		route("quarantine", "10.99.0.0/16", vnet.NextHopNone, ""),
		route("node0", "192.168.9.0/24", vnet.NextHopAppliance, "10.13.76.4"), // of its last life
	}}}
	client := fake.NewClientset(node("node0", "10.13.76.4", "192.168.0.0/24"), node("node1", "10.13.76.7", "192.168.1.0/24"),
		node("late", "10.13.76.9", ""))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- cloud.RunRoutes(ctx, client, informers.NewSharedInformerFactory(client, 0), n, "pods", "kubernetes",
			netip.MustParsePrefix("192.168.0.0/16"), nil)
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	want := map[string]string{"quarantine": "10.99.0.0/16 None", "node0": "192.168.0.0/24 VirtualAppliance 10.13.76.4",
		"node1": "192.168.1.0/24 VirtualAppliance 10.13.76.7"}
	eventually.Succeeds(t, 20*time.Second, func() error {
		now, _ := n.Snapshot()
		got := map[string]string{}
		for _, u := range now.RouteTables[0].Routes {
			got[u.Name] = u.Prefix.String() + " " + u.NextHopType
			if u.NextHop.IsValid() {
				got[u.Name] += " " + u.NextHop.String()
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
	// Upstream says on the node that its route is there.
	eventually.Succeeds(t, 20*time.Second, func() error {
		node, err := client.CoreV1().Nodes().Get(ctx, "node1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if c := node.Status.Conditions; len(c) != 1 || c[0].Type != v1.NodeNetworkUnavailable || c[0].Status != v1.ConditionFalse {
			return fmt.Errorf("conditions %v", c)
		}
		return nil
	})
}
