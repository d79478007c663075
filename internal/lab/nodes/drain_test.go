package nodes

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestDrain evicts pods: those of a DaemonSet stay, one that a budget keeps is tried again, and one that it keeps for too long is the
// error.
func TestDrain(t *testing.T) {
	pod := func(name, controller string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: "node"}}
		if controller != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: controller, Name: "owner", Controller: new(true)}}
		}
		return p
	}
	for _, test := range []struct {
		name     string
		refusals int
		want     string // part of the error
	}{
		{"budget allows at once", 0, ""},
		{"budget allows later", 1, ""},
		{"budget never allows", 1 << 30, "pod default/kept: the disruption budget web needs 1 healthy pods and has 1 currently"},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := fake.NewClientset(pod("bare", ""), pod("kept", "ReplicaSet"), pod("agent", "DaemonSet"))
			asked := 0
			client.PrependReactor("create", "pods/eviction", func(a clienttesting.Action) (bool, runtime.Object, error) {
				name := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction).Name
				if asked++; name == "kept" && asked <= test.refusals+1 { // bare is asked for, too
					return true, nil, &apierrors.StatusError{ErrStatus: metav1.Status{
						Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: "Cannot evict pod",
						Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Message: "the disruption budget web needs 1 healthy pods and has 1 currently"}}},
					}}
				}
				return true, nil, client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "default", name)
			})
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			err := drain(ctx, client, "node", 3*drainPoll)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
			left, err := podsOn(ctx, client, "node")
			if err != nil {
				t.Fatal(err)
			}
			want := []string{"agent"}
			if test.want != "" {
				want = append(want, "kept")
			}
			var names []string
			for _, p := range left {
				names = append(names, p.Name)
			}
			if slices.Sort(names); !slices.Equal(names, want) {
				t.Errorf("left are %v, want %v", names, want)
			}
		})
	}
}
