package usercluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/usercluster/remote"
)

// start makes a node's pod and begins the conversation with it.
func (c *Cluster) start(ctx context.Context, number int, name string) (*remote.Node, error) {
	waiting, cancel := context.WithTimeout(ctx, c.options.start())
	defer cancel()
	pod, err := c.startPod(waiting, number, name)
	if err != nil {
		if waiting.Err() != nil && ctx.Err() == nil {
			return nil, fmt.Errorf("its pod does not run after %s: %w", c.options.start(), err)
		}
		return nil, err
	}
	conn, err := c.exec(pod, brokenError(name), "packetwalk", "on-node", "serve", "--node", name)
	if err != nil {
		return nil, err
	}
	talk, err := remote.Open(ctx, conn, c.options.Version)
	if err != nil {
		said := conn.complaint()
		if said != "" && ctx.Err() == nil && (isNodeLost(err) || errors.Is(err, context.DeadlineExceeded)) {
			return nil, fmt.Errorf("packetwalk does not run in its pod: %s", said)
		} else if said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return nil, err
	}
	return talk, nil
}

// startPod makes the Job and waits until its pod runs.
func (c *Cluster) startPod(ctx context.Context, number int, name string) (*corev1.Pod, error) {
	if err := c.prepare(ctx); err != nil {
		return nil, err
	}
	job := c.options.job(c.namespace, c.run, number, name)
	making, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTime) // as with the namespace
	defer cancel()
	if _, err := c.client.BatchV1().Jobs(c.namespace).Create(making, job, metav1.CreateOptions{}); err != nil {
		return nil, explainIn(c.namespace, err)
	}
	return c.running(ctx, job)
}

// running waits for a Job's pod to run. What hinders it for good is an error with the remedy.
func (c *Cluster) running(ctx context.Context, job *batchv1.Job) (*corev1.Pod, error) {
	selector := metav1.ListOptions{LabelSelector: k8slabels.Set(job.Spec.Template.Labels).String()}
	for {
		list, err := c.client.CoreV1().Pods(c.namespace).List(ctx, selector)
		if err != nil {
			return nil, explain(err)
		}
		for i := range list.Items {
			if done, err := podRuns(&list.Items[i], c.options); done || err != nil {
				return &list.Items[i], err
			}
		}
		if len(list.Items) == 0 {
			if err := c.refused(ctx, job.Name); err != nil {
				return nil, err
			}
		}
		switch err := c.changed(ctx, selector, list.ResourceVersion); {
		case errors.Is(err, context.DeadlineExceeded):
			return nil, lastWords(list.Items, err)
		case err != nil:
			return nil, err
		}
	}
}

// lastWords returns the last report of a pod before the patience ended.
func lastWords(pods []corev1.Pod, err error) error {
	if len(pods) == 0 {
		return err
	}
	for _, s := range pods[0].Status.ContainerStatuses {
		if w := s.State.Waiting; w != nil {
			return fmt.Errorf("it waits: %s %s", termsafe.Text(w.Reason), termsafe.Line(w.Message))
		}
	}
	return fmt.Errorf("it is %s: the kubelet does not start it; is the node alive?", termsafe.Text(string(pods[0].Status.Phase)))
}

// changed waits until something about pods has changed, for a second at most: what a Job could not make shows in events only.
func (c *Cluster) changed(ctx context.Context, o metav1.ListOptions, version string) error {
	o.ResourceVersion = version
	w, err := c.client.CoreV1().Pods(c.namespace).Watch(ctx, o)
	if err != nil {
		pause.For(ctx, 200*time.Millisecond) // an old version: list again
		return ctx.Err()
	}
	defer w.Stop()
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	case <-w.ResultChan():
	}
	return nil
}

// podRuns reports whether a pod runs, or returns why it never will.
func podRuns(p *corev1.Pod, o Options) (runs bool, err error) {
	switch p.Status.Phase {
	case corev1.PodFailed, corev1.PodSucceeded:
		if strings.HasPrefix(p.Status.Reason, "OutOf") { // of pods, or of what they ask for (kubernetes: pkg/kubelet/lifecycle/predicate.go)
			return false, fmt.Errorf("it has no room for one more pod: %s; let one go, or run 'packetwalk capture --here' on it",
				termsafe.Line(p.Status.Message))
		}
		return false, fmt.Errorf("its pod ended: %s", termsafe.Text(whyEnded(&p.Status)))
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Running != nil {
			return true, nil
		}
		w := s.State.Waiting
		if w == nil {
			continue
		}
		switch w.Reason {
		case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull":
			return false, fmt.Errorf("image %s cannot be pulled: %s; name another one with --image, or a Secret of namespace %s with "+
				"--image-pull-secret", o.image(), termsafe.Line(w.Message), Namespace)
		case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
			return false, fmt.Errorf("its container cannot be made: %s", termsafe.Line(w.Message))
		}
	}
	return false, nil
}

// whyEnded returns what is known of why a pod ended: its own reason, as of an eviction, or its container's.
func whyEnded(status *corev1.PodStatus) string {
	words := []string{status.Reason, status.Message}
	for _, s := range status.ContainerStatuses {
		if t := s.State.Terminated; t != nil {
			words = append(words, t.Reason, fmt.Sprintf("(exit status %d)", t.ExitCode), t.Message)
		}
	}
	return strings.Join(strings.Fields(strings.Join(words, " ")), " ")
}

// refused finds out why a Job could not make its pod: admission says so to the Job's controller, which writes an event.
func (c *Cluster) refused(ctx context.Context, job string) error {
	of := fields.Set{"involvedObject.name": job, "reason": "FailedCreate"}.AsSelector().String()
	events, err := c.client.CoreV1().Events(c.namespace).List(ctx, metav1.ListOptions{FieldSelector: of, Limit: 10})
	if err == nil && len(events.Items) > 0 { // they are a help only
		message := events.Items[0].Message
		return fmt.Errorf("its pod is refused: %s; %s", termsafe.Line(message), remedy(c.namespace, message))
	}
	return nil
}

// stream is an exec's standard input and output.
type stream struct {
	io.Reader
	io.WriteCloser
	stop context.CancelFunc
	over chan struct{} // the exec has ended
	mu   sync.Mutex
	said strings.Builder // on the standard error, and by the API server
}

// maxSaid bounds what is kept of complaints, in bytes.
const maxSaid = 2 << 10

// goodbye is how long the command may take to end by itself, which it does when its standard input ends.
const goodbye = 500 * time.Millisecond

// Close ends the exec.
func (s *stream) Close() error {
	err := s.WriteCloser.Close()
	select {
	case <-s.over:
	case <-time.After(goodbye):
	}
	s.stop()
	return err
}

func (s *stream) complain(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.said.Len() < maxSaid {
		s.said.WriteString(text[:min(len(text), maxSaid)])
	}
}

func (s *stream) complaint() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return termsafe.Line(s.said.String())
}

// complaints takes the standard error.
type complaints struct{ *stream }

func (c complaints) Write(p []byte) (int, error) {
	c.complain(string(p))
	return len(p), nil
}

// brokenError says of a node that the stream to it has ended.
type brokenError string

func (e brokenError) Error() string {
	return fmt.Sprintf("the stream to node %s broke off: its pod was deleted, or the node or the API server is lost; run it again", string(e))
}

// isNodeLost reports whether an error says that a node was lost during the reading.
func isNodeLost(err error) bool {
	_, lost := errors.AsType[brokenError](err)
	return lost
}

// exec starts a command in a pod, whose output ends with an error, over a WebSocket, or SPDY where the API server is too old for that
// (KEP-4006).
func (c *Cluster) exec(pod *corev1.Pod, broken error, command ...string) (*stream, error) {
	url := c.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: containerOf, Command: command, Stdin: true, Stdout: true, Stderr: true},
			scheme.ParameterCodec).URL()
	socket, err := remotecommand.NewWebSocketExecutor(c.config, "GET", url.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(c.config, "POST", url)
	if err != nil {
		return nil, err
	}
	executor, err := remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	fromUs, toNode := io.Pipe()
	fromNode, toUs := io.Pipe()
	s := &stream{Reader: fromNode, WriteCloser: toNode, stop: stop, over: make(chan struct{})}
	go func() {
		defer close(s.over)
		err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: fromUs, Stdout: toUs, Stderr: complaints{s}})
		if err != nil && ctx.Err() == nil {
			s.complain(err.Error())
		}
		_ = toUs.CloseWithError(broken)
		_ = fromUs.CloseWithError(broken)
	}()
	return s, nil
}
