package agent

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNodeEligibility(t *testing.T) {
	now := metav1.Now()
	deleting, tainted := &corev1.Node{}, &corev1.Node{}
	deleting.DeletionTimestamp = &now
	tainted.Spec.Taints = []corev1.Taint{{Key: toBeDeleted}}
	for name, c := range map[string]struct {
		node *corev1.Node
		want bool
	}{"there": {&corev1.Node{}, true}, "none": {nil, false}, "deleting": {deleting, false}, "tainted": {tainted, false}} {
		if got := eligible(c.node); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
