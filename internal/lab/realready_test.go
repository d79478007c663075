package lab

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/lab/cluster"
)

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
	if isUp(&corev1.Node{}, time.Time{}, cluster.PluginNone) {
		t.Error("a node of which nothing was said is up")
	}
}
