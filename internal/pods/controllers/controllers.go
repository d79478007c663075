// Package controllers sets up virtual-kubelet's controllers of a node and its pods, for the nodes that run pods themselves and for the
// virtual one, and does with the API server what both do. It imports nothing of the project.
package controllers

import (
	"context"
	"strings"
	"time"

	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
)

// Config is what the controllers need.
type Config struct {
	Client     kubernetes.Interface
	Node       *corev1.Node // to be registered; never changed
	Health     vknode.NodeProvider
	Pods       coreinformers.PodInformer       // of the node's pods
	Objects    informers.SharedInformerFactory // of ConfigMaps, Secrets and Services
	Recorder   record.EventRecorder            // gets events but the library's own
	Provider   vknode.PodLifecycleHandler      // who runs pods
	LateFields bool                            // the provider puts variables in when a container starts, as a kubelet does
}

// New makes the controllers. A Node that somebody deletes is registered again.
func New(c Config) (*vknode.NodeController, *vknode.PodController, error) {
	nodes, err := vknode.NewNodeController(c.Health, c.Node.DeepCopy(), c.Client.CoreV1().Nodes(),
		vknode.WithNodeEnableLeaseV1(c.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease), vknode.DefaultLeaseDuration),
		vknode.WithNodeStatusUpdateErrorHandler(func(ctx context.Context, err error) error {
			if !apierrors.IsNotFound(err) {
				return err
			}
			_, err = Register(ctx, c.Client, c.Node)
			return err
		}))
	if err != nil {
		return nil, nil, err
	}
	core := c.Objects.Core().V1()
	pods, err := vknode.NewPodController(vknode.PodControllerConfig{
		PodClient: c.Client.CoreV1(), PodInformer: c.Pods, EventRecorder: quiet{c.Recorder}, Provider: c.Provider,
		ConfigMapInformer: core.ConfigMaps(), SecretInformer: core.Secrets(), ServiceInformer: core.Services(),
		SyncPodsFromKubernetesRateLimiter: promptly(), DeletePodsFromKubernetesRateLimiter: promptly(),
		SyncPodStatusFromProviderRateLimiter: promptly(), SkipDownwardAPIResolution: c.LateFields,
	})
	return nodes, pods, err
}

// Register makes the Node object; there tells that there is one already, which keeps its labels and taints.
func Register(ctx context.Context, client kubernetes.Interface, node *corev1.Node) (there bool, err error) {
	_, err = client.CoreV1().Nodes().Create(ctx, node.DeepCopy(), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return true, nil
	}
	return false, err
}

// FromAPI is the pod as the API server has it, as far as the cache knows; nil if it is not there, or another one of its name.
func FromAPI(pods coreinformers.PodInformer, pod *corev1.Pod) *corev1.Pod {
	p, err := pods.Lister().Pods(pod.Namespace).Get(pod.Name)
	if err != nil || p.UID != pod.UID {
		return nil
	}
	return p
}

// Delete takes the object of a pod away of which nothing is left. One that is not there any more is no error.
func Delete(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
		metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// quiet leaves the library's own events out: users of kubectl expect a kubelet's, and those of the virtual node its own.
type quiet struct{ record.EventRecorder }

func (q quiet) Event(o runtime.Object, kind, reason, message string) {
	if !strings.HasPrefix(reason, "Provider") {
		q.EventRecorder.Event(o, kind, reason, message)
	}
}

// promptly is a queue's rate limiter that delays nothing but failures.
func promptly() workqueue.TypedRateLimiter[any] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[any](time.Millisecond, 5*time.Second)
}
