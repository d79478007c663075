package simulated

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	vkapi "github.com/virtual-kubelet/virtual-kubelet/node/api"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"packetwalk.dev/internal/base/logs"
	"packetwalk.dev/internal/pods/nodeapi"
)

// The functions here are what the API server asks a node (nodeapi.Config).

func (n *node) running(namespace, name string) (*pod, error) {
	p := n.find(namespace, name)
	if p == nil {
		return nil, errdefs.NotFoundf("pod %q in namespace %q does not run on node %s", name, namespace, n.Node.Name)
	}
	return p, nil
}

func (n *node) openLog(namespace, name, _ string, o logs.Options) (func(context.Context, io.Writer) error, error) {
	p, err := n.running(namespace, name)
	if err != nil {
		return nil, err
	}
	if o.Previous {
		return nil, errors.New("containers of a simulated node have no earlier run")
	}
	return func(ctx context.Context, w io.Writer) error { return p.log.copy(ctx, o, p.servers.ctx.Done(), w) }, nil
}

// attach shows the log from now on: there is no process to attach to.
func (n *node) attach(ctx context.Context, namespace, name, container string, streams vkapi.AttachIO) error {
	show, err := n.openLog(namespace, name, container, logs.Options{Follow: true, Tail: new(int)})
	if err != nil || streams.Stdout() == nil {
		return err
	}
	return show(ctx, streams.Stdout())
}

// forward carries one connection to a port of the pod.
func (n *node) forward(ctx context.Context, namespace, name string, port int32, stream io.ReadWriteCloser) error {
	p, err := n.running(namespace, name)
	if err != nil {
		return err
	}
	at := p.space
	if at == nil {
		at = n.space
	}
	conn, err := at.Dial(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("failed to connect to localhost:%d inside the pod: %w", port, err)
	}
	nodeapi.Carry(conn, stream)
	return nil
}

func (n *node) list(context.Context) ([]*corev1.Pod, error) {
	return n.informer.Lister().List(labels.Everything())
}

// stats lists the pods with their start times: their usage is not measured.
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
