package kubelet

import (
	"context"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	corev1 "k8s.io/api/core/v1"
)

// orphanGrace is the time that the containers of a pod get whose object is gone from the API server (kubectl delete --force).
const orphanGrace = time.Second

// The methods here are virtual-kubelet's PodLifecycleHandler and PodNotifier. The library knows pods by name, this package by UID: a pod
// that is deleted and made again by the same name is two pods, and the second waits until the first is gone.

// CreatePod takes over a pod. It returns at once.
func (k *Kubelet) CreatePod(_ context.Context, pod *corev1.Pod) error {
	k.adopt(pod)
	return nil
}

// UpdatePod takes a new version of a pod.
func (k *Kubelet) UpdatePod(_ context.Context, pod *corev1.Pod) error {
	w := k.byUID(pod.UID)
	if w == nil {
		k.adopt(pod)
		return nil
	}
	w.update(pod)
	return nil
}

// DeletePod ends a pod within its grace period. It returns at once; the object is deleted from the API server when nothing of the pod is
// left.
func (k *Kubelet) DeletePod(_ context.Context, pod *corev1.Pod) error {
	w := k.byUID(pod.UID)
	if w == nil {
		return errdefs.NotFoundf("pod %s/%s is not on node %s", pod.Namespace, pod.Name, k.name)
	}
	deadline := k.cfg.Clock.Now().Add(orphanGrace)
	if k.fromAPI(pod) != nil && pod.DeletionTimestamp != nil {
		deadline = pod.DeletionTimestamp.Time // the API server adds the grace period
	}
	w.delete(deadline)
	return nil
}

// GetPod gives a pod as the kubelet knows it. A pod of this name that the API server has replaced is on its way out and not found.
func (k *Kubelet) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	w := k.byName(namespace, name)
	if w == nil {
		return nil, errdefs.NotFoundf("pod %s/%s is not on node %s", namespace, name, k.name)
	}
	pod := w.podWithStatus()
	if now, err := k.pods.Lister().Pods(namespace).Get(name); err == nil && now.UID != pod.UID {
		w.delete(k.cfg.Clock.Now().Add(orphanGrace))
		return nil, errdefs.NotFoundf("pod %s/%s was replaced", namespace, name)
	}
	return pod, nil
}

// GetPodStatus gives a pod's status as the kubelet knows it.
func (k *Kubelet) GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error) {
	p, err := k.GetPod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return &p.Status, nil
}

// GetPods lists the pods that the kubelet knows.
func (k *Kubelet) GetPods(context.Context) ([]*corev1.Pod, error) {
	var list []*corev1.Pod
	for _, w := range k.workers() {
		list = append(list, w.podWithStatus())
	}
	return list, nil
}

// NotifyPods takes the function that writes a pod's status.
func (k *Kubelet) NotifyPods(_ context.Context, notify func(*corev1.Pod)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.notify = notify
}
