package nodes

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"packetwalk.dev/internal/azure/fabric"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/network"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestLeaveIsTakenBack: a node that cannot leave, wherever that fails, stays as it was: schedulable, and in the load balancer's pools.
func TestLeaveIsTakenBack(t *testing.T) {
	kerneltest.NeedRoot(t)
	refuse := func(*clienttesting.Fake) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewTooManyRequests("a budget keeps it", 1)
	}
	broken := func(*clienttesting.Fake) (bool, runtime.Object, error) { return true, nil, errors.New("etcd is full") }
	for _, c := range []struct {
		name, verb, resource string
		when                 int // the how-manieth call fails; 0: each
		react                func(*clienttesting.Fake) (bool, runtime.Object, error)
		want                 string
	}{
		{"a budget never allows", "create", "pods/eviction", 0, refuse, "not drained within 1m0s, it stays"},
		{"it cannot be cordoned", "patch", "nodes", 1, broken, "etcd is full"},
		{"it cannot be excluded", "patch", "nodes", 2, broken, "etcd is full"},
		{"its object cannot be deleted", "delete", "nodes", 0, broken, "etcd is full"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes, n, client := leaving(t, c.resource == "pods/eviction")
				calls := 0
				client.PrependReactor(c.verb, strings.Split(c.resource, "/")[0], func(a clienttesting.Action) (bool, runtime.Object, error) {
					_, sub, _ := strings.Cut(c.resource, "/")
					if a.GetSubresource() != sub {
						return false, nil, nil
					}
					if calls++; c.when != 0 && calls != c.when {
						return false, nil, nil
					}
					return c.react(&client.Fake)
				})
				before := nodes.Azure.Current()
				err := nodes.leave(t.Context(), n, lifecycle.Change{Progress: func(lifecycle.Step) {}})
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q", err, c.want)
				}
				o, err := client.CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if _, excluded := o.Labels[corev1.LabelNodeExcludeBalancers]; excluded || o.Spec.Unschedulable {
					t.Errorf("labels %v, unschedulable %v", o.Labels, o.Spec.Unschedulable)
				}
				is := nodes.Azure.Current()
				for i, p := range is.LoadBalancers[0].BackendPools {
					if !slices.Equal(members(p), members(before.LoadBalancers[0].BackendPools[i])) {
						t.Errorf("pool %s: %v", p.Name, p.Members)
					}
				}
				if all := nodes.List(); len(all) != 1 || all[0].Name != n.Name {
					t.Errorf("nodes %v", all)
				}
			})
		})
	}
}

func members(p vnet.BackendPool) []string {
	var all []string
	for _, m := range p.Members {
		all = append(all, m.NIC)
	}
	slices.Sort(all)
	return all
}

// leaving returns a cluster's nodes, the last of which is to leave, on a network that is not in a kernel.
func leaving(t *testing.T, withPod bool) (*Nodes, *Node, *fake.Clientset) {
	t.Helper()
	c := lifecycle.NewEnv("", layout.Binaries{}, slog.New(slog.DiscardHandler), func(lifecycle.Step) {})
	c.Dir = layout.Dir(t.TempDir())
	is, errs := cluster.Parse(nil, []byte("spec: {nodePools: [{name: one, count: 2}], loadBalancer: {sku: standard}}"))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	c.SetCluster(is)
	planned, err := plan.Network(c.Cluster())
	if err != nil {
		t.Fatal(err)
	}
	f, err := fabric.New(fabric.Config{Network: planned})
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{Node: c.Cluster().Nodes()[1], ns: &netns.Namespace{}}
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}})
	if withPod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kept"}, Spec: corev1.PodSpec{NodeName: n.Name}}
		if err := client.Tracker().Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	azure, api := &network.Network{Env: c, Fabric: f}, &apiserver.Server{Client: client}
	all := &Nodes{Env: c, Azure: azure, API: api, all: []*Node{n}}
	t.Cleanup(func() { // one that joins again gets a namespace
		if err := netns.Remove(c.Dir.NetNS(n.Name)); err != nil {
			t.Error(err)
		}
	})
	return all, n, client
}
