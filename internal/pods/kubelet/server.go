package kubelet

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	vkapi "github.com/virtual-kubelet/virtual-kubelet/node/api"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"packetwalk.dev/internal/base/logs"
	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/nodeapi"
)

// api is the node's side of the interface that the API server asks.
func (k *Kubelet) api() nodeapi.Config {
	return nodeapi.Config{
		Certificate: k.cfg.TLSCert, ClientCA: k.cfg.ClientCA, ClientName: k.cfg.ClientName, Now: k.cfg.Clock.Now,
		Log: k.openLog, Exec: k.execInContainer, Attach: k.attachToContainer, PortForward: k.portForward, Pods: k.GetPods, Stats: k.stats,
		NodeLogs: k.nodeLogs(),
	}
}

// listen opens the kubelet's port in the node's namespace; serve answers on it until ctx ends.
func (k *Kubelet) listen(ctx context.Context) (serve func() error, err error) {
	ln, err := k.cfg.NodeNS.Listen(ctx, "tcp", net.JoinHostPort("0.0.0.0", strconv.Itoa(k.cfg.Port)))
	if err != nil {
		return nil, fmt.Errorf("kubelet %s: %w", k.name, err)
	}
	return func() error { return nodeapi.Serve(ctx, ln, k.api()) }, nil
}

// openLog finds a container's log for a request.
func (k *Kubelet) openLog(namespace, pod, name string, o logs.Options) (func(context.Context, io.Writer) error, error) {
	path, ended, err := k.logOf(namespace, pod, name, o.Previous)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, w io.Writer) error { return container.ReadLogs(ctx, path, o, ended, w) }, nil
}

// logOf finds the log of a container, and what tells that nothing more will be written to it.
func (k *Kubelet) logOf(namespace, pod, name string, previous bool) (path string, ended <-chan struct{}, err error) {
	w := k.byName(namespace, pod)
	if w == nil {
		return "", nil, errdefs.NotFoundf("pod %q not found in namespace %q", pod, namespace)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.m.containers {
		if c.Name != name {
			continue
		}
		attempt := c.Attempt
		if c.Phase == phaseStarting { // until it has started, the one before is the last
			attempt--
		}
		if previous {
			attempt--
			if attempt < 1 {
				return "", nil, fmt.Errorf("previous terminated container %q in pod %q not found", name, pod)
			}
		}
		if attempt < 1 {
			reason := cmp.Or(c.Reason, w.m.usualWait(c))
			return "", nil, fmt.Errorf("container %q in pod %q is waiting to start: %s", name, pod, reason)
		}
		ended = closed
		if r := w.runs[name]; r != nil && !previous && attempt == c.Attempt {
			ended = r.c.Done()
		}
		return w.logPath(name, attempt-1), ended, nil
	}
	return "", nil, errdefs.NotFoundf("container %q not found in pod %q", name, pod)
}

var closed = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// running finds a container that runs.
func (k *Kubelet) running(namespace, pod, name string) (*run, *containerState, error) {
	w := k.byName(namespace, pod)
	if w == nil {
		return nil, nil, errdefs.NotFoundf("pod %q not found in namespace %q", pod, namespace)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.m.containers {
		if c.Name == name || name == "" && c.role == roleRegular {
			if r := w.runs[c.Name]; r != nil {
				return r, c, nil
			}
			return nil, nil, fmt.Errorf("container %q: %w", c.Name, container.ErrNotRunning)
		}
	}
	return nil, nil, errdefs.NotFoundf("container not found (%q)", name)
}

func (k *Kubelet) execInContainer(ctx context.Context, namespace, pod, name string, cmd []string, streams vkapi.AttachIO) error {
	r, c, err := k.running(namespace, pod, name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := nodeapi.StreamsOf(ctx, streams)
	if k.cfg.OnNode != nil && k.onNode(namespace, pod, c) {
		go func() { // what runs beside the container ends with it all the same
			select {
			case <-r.c.Done():
				cancel()
			case <-ctx.Done():
			}
		}()
		if ran, err := k.cfg.OnNode(ctx, c.spec.Image, cmd, container.Streams(s)); ran {
			return err
		}
	}
	e := container.Exec{Args: cmd, TTY: streams.TTY(), Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Resize: s.Resize}
	return nodeapi.ExitError(e.Report(r.c.Exec(ctx, e)))
}

// onNode tells of a container that has all of its node, as far as its pod's object says.
func (k *Kubelet) onNode(namespace, pod string, c *containerState) bool {
	w := k.byName(namespace, pod)
	if w == nil || c.spec.SecurityContext == nil || !isTrue(c.spec.SecurityContext.Privileged) {
		return false
	}
	spec := &w.pod().Spec
	return spec.HostNetwork && spec.HostPID
}

// attachToContainer connects to the container's streams; one that has none to connect to shows its log.
func (k *Kubelet) attachToContainer(ctx context.Context, namespace, pod, name string, streams vkapi.AttachIO) error {
	r, c, err := k.running(namespace, pod, name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !c.spec.Stdin && !c.spec.TTY {
		path, ended, err := k.logOf(namespace, pod, c.Name, false)
		if err != nil || streams.Stdout() == nil {
			return err
		}
		out := streams.Stdout()
		err = container.ReadLogs(ctx, path, logs.Options{Follow: true}, ended, gone{out, cancel})
		if ctx.Err() != nil { // the client has gone
			return nil
		}
		return err
	}
	return r.c.Attach(ctx, container.Streams(nodeapi.StreamsOf(ctx, streams)))
}

// gone calls a function when its writer fails.
type gone struct {
	io.Writer
	call func()
}

func (g gone) Write(p []byte) (int, error) {
	n, err := g.Writer.Write(p)
	if err != nil {
		g.call()
	}
	return n, err
}

// portForward carries one connection into the pod's network namespace.
func (k *Kubelet) portForward(ctx context.Context, namespace, pod string, port int32, stream io.ReadWriteCloser) error {
	w := k.byName(namespace, pod)
	if w == nil {
		return errdefs.NotFoundf("pod %q not found in namespace %q", pod, namespace)
	}
	conn, err := w.dial(ctx, port)
	if err != nil {
		return fmt.Errorf("failed to connect to localhost:%d inside the pod: %w", port, err)
	}
	nodeapi.Carry(conn, stream)
	return nil
}

// stats is the minimum of /stats/summary: who is there since when. A lab does not measure its pods' resources.
func (k *Kubelet) stats(context.Context) (*statsv1alpha1.Summary, error) {
	sum := &statsv1alpha1.Summary{Node: statsv1alpha1.NodeStats{NodeName: k.name}, Pods: []statsv1alpha1.PodStats{}}
	for _, w := range k.workers() {
		pod := w.podWithStatus()
		ps := statsv1alpha1.PodStats{PodRef: statsv1alpha1.PodReference{Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID)}}
		if pod.Status.StartTime != nil {
			ps.StartTime = *pod.Status.StartTime
		}
		for _, c := range pod.Status.ContainerStatuses {
			if c.State.Running != nil {
				ps.Containers = append(ps.Containers,
					statsv1alpha1.ContainerStats{Name: c.Name, StartTime: metav1.NewTime(c.State.Running.StartedAt.Time)})
			}
		}
		sum.Pods = append(sum.Pods, ps)
	}
	return sum, nil
}
