package nodes

import (
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"packetwalk.dev/internal/azure/fabric"
	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/network"
)

// TestRealStatus counts the pods that run, those in the node's own network too.
func TestRealStatus(t *testing.T) {
	pod := func(name string, phase corev1.PodPhase, hostNetwork bool) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name}, Status: corev1.PodStatus{Phase: phase},
			Spec: corev1.PodSpec{NodeName: "n", HostNetwork: hostNetwork}}
	}
	ready := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	client := fake.NewClientset(ready, pod("own", corev1.PodRunning, false), pod("host", corev1.PodRunning, true),
		pod("done", corev1.PodSucceeded, false), pod("waits", corev1.PodPending, false))
	empty, err := fabric.New(fabric.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := &Nodes{Env: lifecycle.NewEnv("", layout.Binaries{}, slog.New(slog.DiscardHandler), func(lifecycle.Step) {}), API: &apiserver.Server{Client: client},
		Azure: &network.Network{Fabric: empty}}
	l.SetCluster(&cluster.Cluster{})
	if pods, problem := l.realStatus(&Node{Node: cluster.Node{Name: "n"}}); pods != 2 || problem != "" {
		t.Errorf("%d pods, %q; want 2 and no problem", pods, problem)
	}
}

// TestIsUp: a node is up by what its kubelet said after the machine's start, and without a network only where the user brings one.
func TestIsUp(t *testing.T) {
	started := time.Date(2026, 1, 2, 3, 4, 5, 700_000_000, time.UTC)
	const lacksPlugin = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns " +
		"error: cni plugin not initialized"
	for _, test := range []struct {
		name, message string
		status        corev1.ConditionStatus
		said, since   time.Time
		plugin        cluster.Plugin
		want          bool
	}{
		{"ready", "", corev1.ConditionTrue, started.Add(time.Second), started, cluster.PluginAzure, true},
		{"taken over", "", corev1.ConditionTrue, started, time.Time{}, cluster.PluginAzure, true},
		{"ready in an earlier life", "", corev1.ConditionTrue, started.Add(-time.Minute), started, cluster.PluginAzure, false},
		{"ready in the second of the start", "", corev1.ConditionTrue, started, started, cluster.PluginAzure, false},
		{"without a plugin of ours", lacksPlugin, corev1.ConditionFalse, started.Add(time.Second), started, cluster.PluginAzure, false},
		{"without a plugin of the user's", lacksPlugin, corev1.ConditionFalse, started.Add(time.Second), started, cluster.PluginNone, true},
		{"without it in an earlier life", lacksPlugin, corev1.ConditionFalse, started.Add(-time.Minute), started, cluster.PluginNone, false},
		{"without more than it", "[container runtime is down, " + lacksPlugin + "]", corev1.ConditionFalse, started.Add(time.Second), started,
			cluster.PluginNone, false},
		{"lost", "Kubelet stopped posting node status.", corev1.ConditionUnknown, started.Add(time.Second), started, cluster.PluginNone, false},
	} {
		n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: test.status, Message: test.message,
				LastHeartbeatTime: metav1.Time{Time: test.said.Truncate(time.Second)}},
		}}}
		if got := isUp(n, test.since, test.plugin); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
	first := &corev1.Node{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Time{Time: started.Truncate(time.Second)}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Time{Time: started.Truncate(time.Second)}},
		}}}
	if !isUp(first, started, cluster.PluginAzure) {
		t.Error("a node that became ready in the second of its first start is not up")
	}
	if isUp(&corev1.Node{}, time.Time{}, cluster.PluginNone) {
		t.Error("a node of which nothing was said is up")
	}
}
