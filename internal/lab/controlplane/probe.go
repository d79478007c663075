package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/supervise"
)

// Dial opens a connection to an address as the control plane's network namespace sees it.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Probe is a component's readiness endpoint: HTTP 200 says ready.
type Probe struct {
	Socket string // a unix socket to dial instead of the URL's host
	URL    string
}

// probeInterval is short: a lab's start waits on it.
const probeInterval = 20 * time.Millisecond

// Launch starts some of all components with launch, each as soon as the one that it needs is ready.
// launch may find its component running already. The error, when ctx ends first, names the component and its last answer.
func (a *Authority) Launch(ctx context.Context, all, some []Component, dial Dial, launch func(Component) error) error {
	for _, component := range some {
		for _, needed := range all {
			if needed.Name != component.After {
				continue
			}
			if err := a.WaitReady(ctx, dial, needed); err != nil {
				return err
			}
		}
		if err := launch(component); err != nil {
			return err
		}
	}
	return nil
}

// WaitReady waits until the components are ready. The error, when ctx ends first, holds the last answer.
func (a *Authority) WaitReady(ctx context.Context, dial Dial, components ...Component) error {
	for _, component := range components {
		if err := a.wait(ctx, component, component.Ready, dial); err != nil {
			return err
		}
	}
	return nil
}

// WaitServing waits until the component takes requests: from then on an admin's writes to the API server succeed.
func (a *Authority) WaitServing(ctx context.Context, component Component, dial Dial) error {
	return a.wait(ctx, component, component.Serving, dial)
}

// wait asks as admin until the probe's answer is 200.
func (a *Authority) wait(ctx context.Context, component Component, probe Probe, dial Dial) error {
	if probe == (Probe{}) {
		return nil
	}
	client, err := a.probeClient(probe, dial)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	last := errors.New("not asked")
	for {
		err := ask(ctx, client, probe.URL)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err // the end of ctx would hide what is wrong
		}
		if !pause.For(ctx, probeInterval) {
			return fmt.Errorf("%s is not ready: %w; its log %s ends with:%s", component.Name, last, filepath.Base(component.LogFile),
				supervise.LastLines(component.LogFile))
		}
	}
}

func (a *Authority) probeClient(probe Probe, dial Dial) (*http.Client, error) {
	admin, err := a.Client(Admin, time.Now())
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(admin.Certificate, admin.Key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.certificate)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if probe.Socket != "" {
				return (&net.Dialer{}).DialContext(ctx, "unix", probe.Socket)
			}
			return dial(ctx, network, address)
		},
	}
	return &http.Client{Transport: transport, Timeout: 5 * time.Second}, nil
}

// ask asks one question. For any answer but 200 it returns an error with the answer's text, which names the checks that fail.
func ask(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, failedChecks(string(text)))
	}
	return nil
}

// failedChecks keeps the lines of a /readyz answer that tell of a failure ("[-]poststarthook/… failed"), or all when there are none.
func failedChecks(text string) string {
	var failed []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "[-]") {
			failed = append(failed, strings.TrimSpace(line))
		}
	}
	if failed == nil {
		return strings.TrimSpace(text)
	}
	return strings.Join(failed, ", ")
}
