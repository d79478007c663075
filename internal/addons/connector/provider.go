package connector

import (
	"context"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"packetwalk.dev/internal/azure/aci"
)

// The methods here are virtual-kubelet's PodLifecycleHandler and PodNotifier. What they ask for is done by the pods' followers, which write
// statuses themselves: the library writes one only when it is new to it, and so does not take back what others have written meanwhile.

// CreatePod takes over a pod. It returns at once.
func (c *connector) CreatePod(_ context.Context, pod *corev1.Pod) error {
	c.startNew(pod, nil)
	return nil
}

// UpdatePod takes a new version of a pod. One of another UID is another pod: the group of the one before goes first.
func (c *connector) UpdatePod(_ context.Context, pod *corev1.Pod) error {
	f := c.follower(pod.Namespace, pod.Name)
	switch {
	case f == nil:
		c.startNew(pod, nil)
	case f.currentPod().UID != pod.UID:
		f.delete(0)
		c.startNew(pod, f)
	default:
		f.update(pod)
	}
	return nil
}

// DeletePod ends a pod's group within its grace period. It returns at once; the object goes when nothing of the group is left.
func (c *connector) DeletePod(_ context.Context, pod *corev1.Pod) error {
	f := c.follower(pod.Namespace, pod.Name)
	if f == nil {
		return errdefs.AsNotFound(errNoPod)
	}
	grace := int64(0)
	if g := pod.DeletionGracePeriodSeconds; pod.DeletionTimestamp != nil && g != nil {
		grace = *g
	}
	f.delete(grace)
	return nil
}

// GetPod gives a pod that the connector knows.
func (c *connector) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	f := c.follower(namespace, name)
	if f == nil {
		return nil, errdefs.AsNotFound(errNoPod)
	}
	return f.currentPod().DeepCopy(), nil
}

// GetPodStatus gives a pod's status as the API server has it, which is where the follower writes it.
func (c *connector) GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error) {
	pod, err := c.GetPod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	if now := c.fromAPI(pod); now != nil {
		return now.Status.DeepCopy(), nil
	}
	return &pod.Status, nil
}

// GetPods lists the pods that the connector knows.
func (c *connector) GetPods(context.Context) ([]*corev1.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []*corev1.Pod
	for _, f := range c.known {
		list = append(list, f.currentPod().DeepCopy())
	}
	return list, nil
}

// NotifyPods ignores the library's callback for statuses; see above.
func (c *connector) NotifyPods(context.Context, func(*corev1.Pod)) {}

func key(namespace, name string) string { return namespace + "/" + name }

func (c *connector) follower(namespace, name string) *follower {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[key(namespace, name)]
}

// restore finds the groups that an earlier connector of this node has made. Those whose pods are gone are deleted by the library, which
// asks for the pods that there are when it starts.
func (c *connector) restore(ctx context.Context) error {
	groups, err := c.cfg.ACI.List(ctx)
	if err != nil {
		return err
	}
	for i := range groups {
		pod := podOf(&groups[i])
		if groups[i].Tags[tagNode] != c.cfg.NodeName || pod.Name == "" {
			continue
		}
		if now := c.fromAPI(pod); now != nil {
			pod = now.DeepCopy()
		}
		c.cfg.Log.Info("found container group", "group", groups[i].Name)
		c.start(pod, nil, true)
	}
	return nil
}

// podOf returns what of a pod its group tells.
func podOf(g *aci.ContainerGroup) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: g.Tags[tagNamespace], Name: g.Tags[tagPod], UID: types.UID(g.Tags[tagUID])}}
}
