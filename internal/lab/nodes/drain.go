package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"packetwalk.dev/internal/base/pause"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Bounds of a drain. AKS waits half an hour for an eviction; a lab's user sits before it.
const (
	// evictPatience is how long PodDisruptionBudgets may refuse evictions.
	evictPatience = time.Minute
	// endPatience is how long pods that were evicted may take to end, if their grace period is not shorter; they end with the node then.
	endPatience = time.Minute
	drainPoll   = 200 * time.Millisecond
)

// patched changes a Node object by a merge patch, nil to leave it as it is, and gives what it is now. One that is not there is an empty
// one.
func (l *Nodes) patched(ctx context.Context, name string, patch any) (*corev1.Node, error) {
	data, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	api := l.API.Client.CoreV1().Nodes()
	var n *corev1.Node
	if patch == nil {
		n, err = api.Get(ctx, name, metav1.GetOptions{})
	} else {
		n, err = api.Patch(ctx, name, types.StrategicMergePatchType, data, metav1.PatchOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return &corev1.Node{}, nil
	case err != nil:
		return nil, fmt.Errorf("change node %s: %w", name, err)
	}
	return n, nil
}

// podsOn returns the pods that are bound to a node.
func podsOn(ctx context.Context, client kubernetes.Interface, name string) ([]corev1.Pod, error) {
	list, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", name).String()})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", name, err)
	}
	return list.Items, nil
}

// drain evicts the pods of a node, all but those of DaemonSets, as "kubectl drain" does, and returns when they are gone. Budgets that
// refuse for longer than patience are an error that names the pods.
func drain(ctx context.Context, client kubernetes.Interface, name string, patience time.Duration) error {
	begin := time.Now()
	for {
		pods, err := podsOn(ctx, client, name)
		if err != nil {
			return err
		}
		pods = slices.DeleteFunc(pods, ofDaemonSet)
		refused, err := evict(ctx, client, pods)
		switch {
		case err != nil:
			return err
		case len(pods) == 0:
			return nil
		case len(refused) > 0 && time.Since(begin) > patience:
			return fmt.Errorf("not drained within %v, it stays; let the budgets allow evictions and scale again: %w", patience,
				errors.Join(refused...))
		case len(refused) == 0 && !slices.ContainsFunc(pods, endsInTime):
			return nil
		}
		if !pause.For(ctx, drainPoll) {
			return fmt.Errorf("not drained: %d pods have not ended, such as %s/%s", len(pods), pods[0].Namespace, pods[0].Name)
		}
	}
}

func ofDaemonSet(p corev1.Pod) bool {
	c := metav1.GetControllerOf(&p)
	return c != nil && c.Kind == "DaemonSet"
}

// endsInTime reports whether to wait for a pod: it is not being deleted yet, or has been for less than endPatience.
func endsInTime(p corev1.Pod) bool {
	if p.DeletionTimestamp == nil {
		return true
	}
	var grace time.Duration // DeletionTimestamp is when it is over
	if s := p.DeletionGracePeriodSeconds; s != nil {
		grace = time.Duration(*s) * time.Second
	}
	return time.Since(p.DeletionTimestamp.Add(-grace)) < endPatience
}

// evict asks for the eviction of those pods that are not being deleted. What a budget refuses is not an error yet.
func evict(ctx context.Context, client kubernetes.Interface, pods []corev1.Pod) (refused []error, err error) {
	for _, p := range pods {
		if p.DeletionTimestamp != nil {
			continue
		}
		err := client.PolicyV1().Evictions(p.Namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))},
		})
		switch {
		case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err): // gone, or another of that name
		case apierrors.IsTooManyRequests(err):
			refused = append(refused, fmt.Errorf("pod %s/%s: %s", p.Namespace, p.Name, refusal(err)))
		default:
			return nil, fmt.Errorf("evict pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	return refused, nil
}

// refusal returns the API server's reason for not evicting a pod, with the budget's name, which is in the details.
func refusal(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return err.Error()
	}
	var causes []string
	for _, c := range status.Status().Details.Causes {
		causes = append(causes, c.Message)
	}
	if len(causes) == 0 {
		return err.Error()
	}
	return strings.Join(causes, "; ")
}
