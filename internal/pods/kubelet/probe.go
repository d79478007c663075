package kubelet

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"

	"packetwalk.dev/internal/pods/container"
)

// A threshold counts a probe's results in a row and says when the verdict changes (pkg/kubelet/prober/worker.go).
type threshold struct {
	success, failure int
	last             bool
	run              int
}

func newThreshold(p *corev1.Probe) *threshold {
	return &threshold{success: max(int(p.SuccessThreshold), 1), failure: max(int(p.FailureThreshold), 1)}
}

// add takes one result and tells whether so many came in a row that it is the verdict.
func (t *threshold) add(ok bool) (decided bool) {
	if t.run == 0 || ok != t.last {
		t.last, t.run = ok, 0
	}
	t.run++
	if ok {
		return t.run >= t.success
	}
	return t.run >= t.failure
}

// A prober runs the probes of one running container.
type prober struct {
	clock clock.Clock
	run   func(ctx context.Context, p *corev1.Probe) error // one probe; the error says what failed
	// report takes each result; decided as threshold.add gives it.
	report func(kind probeKind, err error, decided bool)
}

// all runs the container's probes until ctx ends: the startup probe until it has decided, then the others side by side.
func (p *prober) all(ctx context.Context, c *corev1.Container, started time.Time) {
	if c.StartupProbe != nil && !p.loop(ctx, startupProbe, c.StartupProbe, started, true) {
		return
	}
	if c.LivenessProbe != nil {
		go p.loop(ctx, livenessProbe, c.LivenessProbe, started, false)
	}
	if c.ReadinessProbe != nil {
		p.loop(ctx, readinessProbe, c.ReadinessProbe, started, false)
	}
}

// loop probes every period after the initial delay, counted from the container's start, and tells whether the last verdict was good. once
// ends it at the first verdict.
func (p *prober) loop(ctx context.Context, kind probeKind, spec *corev1.Probe, started time.Time, once bool) bool {
	period := time.Duration(max(spec.PeriodSeconds, 1)) * time.Second
	first := started.Add(time.Duration(spec.InitialDelaySeconds) * time.Second)
	timer := p.clock.NewTimer(max(first.Sub(p.clock.Now()), 0))
	defer timer.Stop()
	t := newThreshold(spec)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C():
		}
		limit, cancel := context.WithTimeout(ctx, time.Duration(max(spec.TimeoutSeconds, 1))*time.Second)
		err := p.run(limit, spec)
		cancel()
		if ctx.Err() != nil {
			return false
		}
		decided := t.add(err == nil)
		p.report(kind, err, decided)
		if decided && once {
			return err == nil
		}
		timer.Reset(period)
	}
}

// A target is where a container's probes go.
type target struct {
	spec *corev1.Container
	ip   string // the pod's
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	exec func(ctx context.Context, e container.Exec) (int, error)
}

// probe runs one probe. It connects from the node, as a kubelet does.
func (t target) probe(ctx context.Context, p *corev1.Probe) error {
	switch {
	case p.Exec != nil:
		return t.command(ctx, p.Exec.Command)
	case p.HTTPGet != nil:
		return t.get(ctx, p.HTTPGet)
	case p.TCPSocket != nil:
		port, err := portNumber(p.TCPSocket.Port, t.spec)
		if err != nil {
			return err
		}
		conn, err := t.dial(ctx, "tcp", net.JoinHostPort(cmp.Or(p.TCPSocket.Host, t.ip), port))
		if err != nil {
			return err
		}
		return conn.Close()
	case p.GRPC != nil:
		return t.health(ctx, p.GRPC)
	}
	return nil
}

func (t target) command(ctx context.Context, args []string) error {
	var out limitedBuffer
	code, err := t.exec(ctx, container.Exec{Args: args, Stdout: &out, Stderr: &out})
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("command timed out: %q", strings.Join(args, " "))
	case err != nil:
		return err
	case code != 0:
		return errors.New(cmp.Or(strings.TrimSpace(out.String()), fmt.Sprintf("command exited with %d", code)))
	}
	return nil
}

// get is an HTTP probe: any status from 200 to 399 is success; redirects to other hosts are success and not followed (pkg/probe/http).
func (t target) get(ctx context.Context, h *corev1.HTTPGetAction) error {
	req, err := t.request(ctx, h)
	if err != nil {
		return err
	}
	client := http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: t.dial, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			if next.URL.Hostname() != req.URL.Hostname() || len(via) >= 10 {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 10<<10))
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return fmt.Errorf("HTTP probe failed with statuscode: %d", resp.StatusCode)
	}
	return nil
}

func (t target) request(ctx context.Context, h *corev1.HTTPGetAction) (*http.Request, error) {
	port, err := portNumber(h.Port, t.spec)
	if err != nil {
		return nil, err
	}
	path := h.Path
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	url := strings.ToLower(cmp.Or(string(h.Scheme), "http")) + "://" + net.JoinHostPort(cmp.Or(h.Host, t.ip), port) + path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "kube-probe/1.35")
	req.Header.Set("Accept", "*/*")
	for _, x := range h.HTTPHeaders {
		if http.CanonicalHeaderKey(x.Name) == "Host" {
			req.Host = x.Value
			continue
		}
		req.Header.Add(x.Name, x.Value)
	}
	return req, nil
}

// portNumber is a probe's or hook's port, by number or by the name of one of the container's.
func portNumber(p intstr.IntOrString, c *corev1.Container) (string, error) {
	if p.Type == intstr.Int {
		return strconv.Itoa(p.IntValue()), nil
	}
	for _, port := range c.Ports {
		if port.Name == p.StrVal {
			return strconv.Itoa(int(port.ContainerPort)), nil
		}
	}
	if _, err := strconv.ParseUint(p.StrVal, 10, 16); err == nil {
		return p.StrVal, nil
	}
	return "", fmt.Errorf("container %s has no port named %q", c.Name, p.StrVal)
}

// limitedBuffer keeps the first 10 KiB: the most that a probe's message takes.
type limitedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if room := 10<<10 - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
