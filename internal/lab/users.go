package lab

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/manifests"
	"packetwalk.dev/internal/lab/preflight"
	"packetwalk.dev/internal/lab/status"
)

// podUsers gives pods user namespaces, where the kernel can and cluster.yaml does not refuse, and warns of pods that could reach the
// machine.
type podUsers struct {
	*lifecycle.Env
	api      *apiserver.Server
	features *optionalFeatures
	untried  atomic.Pointer[string] // why it is unknown whether new pods get user namespaces; nil where it is known
}

// Start returns when the API server applies the policy to new pods.
func (l *podUsers) Start(ctx context.Context) error {
	warnings, err := manifests.Warnings()
	if err == nil {
		err = manifests.Apply(ctx, l.api.REST(), warnings)
	}
	if err != nil {
		return err
	}
	return l.set(ctx, l.Cluster())
}

// Change adds or removes the policy. Pods that run stay as they are.
func (l *podUsers) Change(ctx context.Context, c lifecycle.Change) error {
	if c.From.Spec.HostUsers == c.To.Spec.HostUsers {
		return nil
	}
	ctx, cancel := c.Deadline.Bound(ctx)
	defer cancel()
	return l.set(ctx, c.To)
}

// Report warns where it is unknown whether new pods get user namespaces.
func (l *podUsers) Report(s *status.Status) {
	if why := l.untried.Load(); why != nil {
		s.Warnings = append(s.Warnings, *why)
	}
}

// set makes the policy be in force or not, as the cluster wants, and waits until it is so.
func (l *podUsers) set(ctx context.Context, c *cluster.Cluster) error {
	wanted := !c.Spec.HostUsers && len(preflight.Off(l.features.rows, preflight.PodUsers)) == 0
	docs, err := manifests.UserNamespaces()
	if err != nil {
		return err
	}
	bring := manifests.Delete
	if wanted {
		bring = manifests.Apply
	}
	// The API server takes a second to apply a policy, and longer to make the service account, without which it refuses all pods.
	if err := errors.Join(bring(ctx, l.api.REST(), docs), l.api.WaitDefaultAccount(ctx)); err != nil {
		return err
	}
	return l.await(ctx, wanted)
}

// await waits until new pods get user namespaces, or get none. Where the API server refuses the trial, by a quota of the user's for example,
// that cannot be seen, and is reported.
func (l *podUsers) await(ctx context.Context, wanted bool) error {
	l.untried.Store(nil)
	for {
		is, err := l.inForce(ctx)
		if err == nil && is == wanted {
			return nil
		}
		if err != nil && manifests.Final(err) {
			l.untried.Store(new("whether new pods get user namespaces is unknown: " + status.OneLine(err)))
			return nil
		}
		if !pause.For(ctx, policyPause) {
			return fmt.Errorf("wait for the policy of user namespaces: %w", context.Cause(ctx))
		}
	}
}

// policyPause is how long to wait before another look at the policy: the API server takes up to a second to apply it
// (k8s.io/apiserver, pkg/admission/plugin/policy/generic, policy_source.go).
const policyPause = 50 * time.Millisecond

// inForce asks the API server what it would make of a pod.
func (l *podUsers) inForce(ctx context.Context) (bool, error) {
	pod, err := l.api.Client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "packetwalk-trial-"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "trial", Image: "trial"}}},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return false, err
	}
	return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers, nil
}
