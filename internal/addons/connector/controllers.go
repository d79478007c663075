package connector

import (
	"context"
	"strings"
	"time"

	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
)

// controllers returns virtual-kubelet's controllers of the node and its pods. If another client deletes the Node, it is registered again.
func (c *connector) controllers() (*vknode.NodeController, *vknode.PodController, error) {
	client := c.cfg.Client
	nodes, err := vknode.NewNodeController(heartbeat{}, c.node.DeepCopy(), client.CoreV1().Nodes(),
		vknode.WithNodeEnableLeaseV1(client.CoordinationV1().Leases(corev1.NamespaceNodeLease), vknode.DefaultLeaseDuration),
		vknode.WithNodeStatusUpdateErrorHandler(func(ctx context.Context, err error) error {
			if !apierrors.IsNotFound(err) {
				return err
			}
			_, err = c.makeNode(ctx)
			return err
		}))
	if err != nil {
		return nil, nil, err
	}
	core := c.all.Core().V1()
	pods, err := vknode.NewPodController(vknode.PodControllerConfig{
		PodClient: client.CoreV1(), PodInformer: c.pods, EventRecorder: filteredRecorder{c.recorder}, Provider: c,
		ConfigMapInformer: core.ConfigMaps(), SecretInformer: core.Secrets(), ServiceInformer: core.Services(),
		SyncPodsFromKubernetesRateLimiter: failureLimiter(), DeletePodsFromKubernetesRateLimiter: failureLimiter(),
		SyncPodStatusFromProviderRateLimiter: failureLimiter(),
	})
	return nodes, pods, err
}

// makeNode makes the Node object; there tells that there is one already, which keeps its labels and taints.
func (c *connector) makeNode(ctx context.Context) (there bool, err error) {
	_, err = c.cfg.Client.CoreV1().Nodes().Create(ctx, c.node.DeepCopy(), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return true, nil
	}
	return false, err
}

// fromAPI returns the pod from the cache of the API server; nil if it does not exist, or another one has its name.
func (c *connector) fromAPI(pod *corev1.Pod) *corev1.Pod {
	p, err := c.pods.Lister().Pods(pod.Namespace).Get(pod.Name)
	if err != nil || p.UID != pod.UID {
		return nil
	}
	return p
}

// deleteObject takes the object of a pod away of which nothing is left. One that is not there any more is no error.
func (c *connector) deleteObject(ctx context.Context, pod *corev1.Pod) error {
	err := c.cfg.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
		metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// filteredRecorder leaves the library's own events out: users of kubectl expect a kubelet's, and those of the virtual node its own.
type filteredRecorder struct{ record.EventRecorder }

func (q filteredRecorder) Event(o runtime.Object, kind, reason, message string) {
	if !strings.HasPrefix(reason, "Provider") {
		q.EventRecorder.Event(o, kind, reason, message)
	}
}

// failureLimiter returns a queue's rate limiter that delays only failures.
func failureLimiter() workqueue.TypedRateLimiter[any] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[any](time.Millisecond, 5*time.Second)
}
