package lab

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/status"
)

// TestAwaitUsers: the lab waits until the API server applies the policy, and comes up with a warning where the trial is refused.
func TestAwaitUsers(t *testing.T) {
	mapped := &corev1.Pod{Spec: corev1.PodSpec{HostUsers: new(bool)}}
	refused := apierrors.NewForbidden(corev1.Resource("pods"), "trial", errors.New("exceeded quota: mine"))
	for name, c := range map[string]struct {
		answers []error // nil for a pod, the last of which has a user namespace
		warning string
	}{
		"at once":       {answers: []error{nil}},
		"later":         {answers: []error{apierrors.NewInternalError(errors.New("not yet")), nil}},
		"quota reached": {[]error{refused}, "whether new pods get user namespaces is unknown: pods \"trial\" is forbidden: exceeded quota: mine"},
	} {
		t.Run(name, func(t *testing.T) {
			client, asked := fake.NewClientset(), 0
			client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				err := c.answers[min(asked, len(c.answers)-1)]
				asked++
				return true, mapped, err
			})
			l := &podUsers{api: &apiserver.Server{Client: client}}
			if err := l.await(t.Context(), true); err != nil || asked != len(c.answers) {
				t.Fatalf("asked %d times: %v", asked, err)
			}
			var s status.Status
			if l.Report(&s); strings.Join(s.Warnings, "") != c.warning {
				t.Errorf("warnings %q, want %q", s.Warnings, c.warning)
			}
		})
	}
}
