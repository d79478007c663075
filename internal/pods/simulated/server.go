package simulated

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// refusal answers requests for logs, exec, attach and port-forward.
const refusal = "pod is simulated and runs no program; for logs, exec, attach and port-forward, run it in a node pool with runtime: containerd"

// list returns all pods of the node.
func (n *node) list(context.Context) ([]*corev1.Pod, error) {
	return n.informer.Lister().List(labels.Everything())
}

// stats lists the pods with their start times. It measures no usage.
func (n *node) stats(ctx context.Context) (*statsv1alpha1.Summary, error) {
	all, err := n.list(ctx)
	sum := &statsv1alpha1.Summary{Node: statsv1alpha1.NodeStats{NodeName: n.Node.Name}, Pods: []statsv1alpha1.PodStats{}}
	for _, o := range all {
		one := statsv1alpha1.PodStats{PodRef: statsv1alpha1.PodReference{Name: o.Name, Namespace: o.Namespace, UID: string(o.UID)}}
		if t := o.Status.StartTime; t != nil {
			one.StartTime = metav1.NewTime(t.Time)
		}
		sum.Pods = append(sum.Pods, one)
	}
	return sum, err
}
