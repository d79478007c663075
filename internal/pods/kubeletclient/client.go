// Package kubeletclient asks a kubelet about its pods, their logs, and to run commands in them, by the HTTP interface of kubelets
// (k8s.io/kubernetes, pkg/kubelet/server).
package kubeletclient

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream/spdy"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/base/logs"
)

// A Client is one of a kubelet. Its methods are safe for concurrent use.
type Client struct {
	address   string
	transport *http.Transport
}

// New returns a client of the kubelet at an address, HOST:PORT, that dial reaches.
func New(address string, dial func(ctx context.Context, network, address string) (net.Conn, error), config *tls.Config) *Client {
	return &Client{address: address, transport: &http.Transport{DialContext: dial, TLSClientConfig: config, MaxIdleConns: 2,
		IdleConnTimeout: time.Minute}}
}

// Close closes idle connections.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// The most that a kubelet's answers may hold, bytes: a list of pods, and an error.
const (
	maxPods  = 16 << 20
	maxError = 64 << 10
)

// Pods returns the pods that the kubelet is to run, with their statuses.
func (c *Client) Pods(ctx context.Context) ([]corev1.Pod, error) { return c.list(ctx, "/pods") }

// Running returns the pods that the container runtime runs, also those that end, without statuses.
func (c *Client) Running(ctx context.Context) ([]corev1.Pod, error) {
	return c.list(ctx, "/runningpods/")
}

func (c *Client) list(ctx context.Context, path string) ([]corev1.Pod, error) {
	body, err := c.get(ctx, path, nil)
	if err != nil {
		return nil, fmt.Errorf("list the kubelet's pods: %w", err)
	}
	defer body.Close()
	text, err := limitio.Read(body, maxPods)
	var list corev1.PodList
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("list the kubelet's pods: %w", err)
	}
	return list.Items, nil
}

// ErrStream is the error for one of the two streams of a log, which a kubelet does not tell apart.
var ErrStream = errors.New("the log's two streams cannot be read apart")

// Logs copies a container's log to w. An error of a container without that log is a *StatusError.
func (c *Client) Logs(ctx context.Context, pod *corev1.Pod, container string, o logs.Options, w io.Writer) error {
	if o.Stream != "" {
		return ErrStream
	}
	body, err := c.get(ctx, "/containerLogs/"+path(pod, container), logQuery(o))
	if err != nil {
		return err
	}
	defer body.Close()
	if _, err := io.Copy(w, body); err != nil {
		return fmt.Errorf("read the log of %s: %w", container, err)
	}
	return nil
}

func logQuery(o logs.Options) url.Values {
	q := url.Values{}
	for name, is := range map[string]bool{"follow": o.Follow, "previous": o.Previous, "timestamps": o.Timestamps} {
		if is {
			q.Set(name, "true")
		}
	}
	if o.Tail != nil {
		q.Set("tailLines", strconv.Itoa(*o.Tail))
	}
	if !o.Since.IsZero() {
		q.Set("sinceTime", o.Since.UTC().Format(time.RFC3339))
	}
	if o.LimitBytes > 0 {
		q.Set("limitBytes", strconv.FormatInt(o.LimitBytes, 10))
	}
	return q
}

// A StatusError is an answer that is none of success.
type StatusError struct {
	Code int // HTTP's
	Text string
}

func (e *StatusError) Error() string { return fmt.Sprintf("%s (HTTP %d)", e.Text, e.Code) }

func (c *Client) get(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url(path, query).String(), nil)
	if err != nil {
		return nil, err
	}
	response, err := c.transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		text, err := io.ReadAll(io.LimitReader(response.Body, maxError))
		return nil, errors.Join(&StatusError{response.StatusCode, string(text)}, err)
	}
	return response.Body, nil
}

func (c *Client) url(path string, query url.Values) *url.URL {
	return &url.URL{Scheme: "https", Host: c.address, Path: path, RawQuery: query.Encode()}
}

func path(pod *corev1.Pod, container string) string {
	return pod.Namespace + "/" + pod.Name + "/" + container
}

// An Exec is a command to run. Nil streams are not there.
type Exec struct {
	Command        []string
	TTY            bool
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resize         <-chan Size
}

// Size is a terminal's, in characters.
type Size = struct{ Width, Height uint16 }

// Exec runs a command in a container and returns its exit status.
func (c *Client) Exec(ctx context.Context, pod *corev1.Pod, container string, e Exec) (int, error) {
	if e.Stdin == nil && e.Stdout == nil && e.Stderr == nil {
		e.Stdout = io.Discard // a kubelet wants one of the three
	}
	query := url.Values{"command": e.Command}
	for name, is := range map[string]bool{
		"input": e.Stdin != nil, "output": e.Stdout != nil, "error": e.Stderr != nil && !e.TTY, "tty": e.TTY,
	} {
		if is {
			query.Set(name, "1")
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	transport := c.transport.Clone()
	transport.DialContext = func(dialCtx context.Context, network, address string) (net.Conn, error) {
		conn, err := c.transport.DialContext(dialCtx, network, address)
		if err == nil {
			context.AfterFunc(ctx, func() { conn.Close() }) // the library waits for an answer beyond that
		}
		return conn, err
	}
	upgrade, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{UpgradeTransport: transport})
	if err != nil {
		return -1, err
	}
	executor, err := remotecommand.NewSPDYExecutorForTransports(upgrade, upgrade, http.MethodPost, c.url("/exec/"+path(pod, container), query))
	if err != nil {
		return -1, err
	}
	options := remotecommand.StreamOptions{Stdin: e.Stdin, Stdout: e.Stdout, Stderr: e.Stderr, Tty: e.TTY}
	if e.TTY {
		options.Stderr = nil
	}
	if e.Resize != nil {
		options.TerminalSizeQueue = sizes{ctx, e.Resize}
	}
	err = executor.StreamWithContext(ctx, options)
	var exit exec.CodeExitError
	if errors.As(err, &exit) {
		return exit.Code, nil
	}
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err() // and not that the connection was closed
		}
		return -1, fmt.Errorf("run %q in %s: %w", e.Command, container, err)
	}
	return 0, nil
}

// sizes are a terminal's, until ctx ends.
type sizes struct {
	ctx  context.Context
	from <-chan Size
}

// Next implements remotecommand.TerminalSizeQueue: it returns nil after the last size.
func (s sizes) Next() *remotecommand.TerminalSize {
	select {
	case size, ok := <-s.from:
		if ok {
			return &remotecommand.TerminalSize{Width: size.Width, Height: size.Height}
		}
	case <-s.ctx.Done():
	}
	return nil
}
