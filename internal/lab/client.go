package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/status"
)

// ErrNotRunning says that the lab's process does not answer.
var ErrNotRunning = errors.New("the lab process is not running")

// A StartingError says that a lab is being brought up.
type StartingError struct{ Name string }

// Error implements error.
func (e *StartingError) Error() string {
	return fmt.Sprintf("lab %s is starting; ask again when 'packetwalk status --name %s' names no problem", e.Name, e.Name)
}

// CheckStarting returns a StartingError while a lab is being brought up.
func CheckStarting(ctx context.Context, d layout.Dir) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := Network(ctx, d)
	if !isStarting(d, err) {
		return nil
	}
	return &StartingError{d.Name()}
}

// isStarting reports whether a request failed because the lab is being brought up, perhaps before its process has begun.
func isStarting(d layout.Dir, err error) bool {
	_, starting := errors.AsType[*StartingError](err)
	return starting || errors.Is(err, ErrNotRunning) && d.IsLocked()
}

// controlClient returns a client of the lab's control socket.
func controlClient(d layout.Dir, patience time.Duration) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var dialer net.Dialer
				return dialer.DialContext(ctx, "unix", d.Socket())
			},
		},
		Timeout: patience,
	}
}

// ask gets path from the lab's control socket.
func ask[T any](ctx context.Context, d layout.Dir, path string) (v T, err error) {
	return request[T](ctx, d, http.MethodGet, path)
}

// request sends a request without a body to the lab's control socket.
func request[T any](ctx context.Context, d layout.Dir, method, path string) (v T, err error) {
	body, err := bodyOf(ctx, d, method, path, 10*time.Second)
	if err != nil {
		return v, err
	}
	defer body.Close()
	err = json.NewDecoder(body).Decode(&v)
	return v, err
}

// bodyOf returns the answer to a request to the lab's control socket; the caller closes it. patience is for all of it; 0 has no end.
func bodyOf(ctx context.Context, d layout.Dir, method, path string, patience time.Duration) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://lab"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := controlClient(d, patience).Do(req)
	if err != nil {
		switch {
		case d.Process() != 0 && (errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)):
			return nil, &StartingError{d.Name()}
		case d.Process() == 0:
			return nil, fmt.Errorf("%w; 'packetwalk up --name %s' starts it again, 'packetwalk down --name %s' removes the lab", ErrNotRunning,
				d.Name(), d.Name())
		}
		return nil, fmt.Errorf("ask lab %s: %w", d.Name(), err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusServiceUnavailable {
			return nil, &StartingError{d.Name()}
		}
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return nil, fmt.Errorf("ask lab %s: %w", d.Name(), statusError{resp.Status, strings.TrimSpace(string(text))})
	}
	return resp.Body, nil
}

// statusError is an answer of the lab process other than 200.
type statusError struct{ status, text string }

func (r statusError) Error() string { return r.status + ": " + r.text }

// putCluster has the lab change to a cluster.yaml before the deadline. Without wait it returns when the change has begun, which it does
// if it is possible.
func putCluster(ctx context.Context, d layout.Dir, source []byte, end lifecycle.Deadline, wait bool, progress func(lifecycle.Step)) error {
	ctx, cancel := end.BoundAnswer(ctx)
	defer cancel()
	url := "http://lab/cluster?timeout=" + end.Left().String()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, bytes.NewReader(source))
	if err != nil {
		return err
	}
	resp, err := controlClient(d, 0).Do(req)
	if err != nil {
		return fmt.Errorf("change lab %s: %w", d.Name(), err)
	}
	defer resp.Body.Close()
	err = readSteps(resp.Body, wait, progress)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return fmt.Errorf("change lab %s: %w", d.Name(), err)
	}
	return nil
}

// Network returns Azure's side of a running lab.
func Network(ctx context.Context, d layout.Dir) (vnet.Network, error) {
	return ask[vnet.Network](ctx, d, "/network")
}

// Description is what a running lab's cluster is.
type Description struct {
	Cluster  *cluster.Cluster `json:"cluster"`  // with its defaults
	Changing bool             `json:"changing"` // it is on the way there
}

// Describe asks a running lab what its cluster is.
func Describe(ctx context.Context, d layout.Dir) (Description, error) {
	return ask[Description](ctx, d, "/cluster")
}

// ContainerGroups returns the container groups of a running lab, with their views and without their secrets.
func ContainerGroups(ctx context.Context, d layout.Dir) ([]aci.ContainerGroup, error) {
	return ask[[]aci.ContainerGroup](ctx, d, "/container-groups")
}

// ContainerLogs copies the log of a container of a group to w; with follow until the container ends or ctx does.
func ContainerLogs(ctx context.Context, d layout.Dir, group, container string, follow bool, w io.Writer) error {
	path, patience := "/container-groups/"+url.PathEscape(group)+"/"+url.PathEscape(container)+"/log", 10*time.Second
	if follow {
		path, patience = path+"?follow", 0
	}
	log, err := bodyOf(ctx, d, http.MethodGet, path, patience)
	var no statusError
	if errors.As(err, &no) {
		return errors.New(no.text) // in Azure's words
	}
	if err != nil {
		return err
	}
	defer log.Close()
	_, err = io.Copy(w, log)
	return err
}

// StatusOf asks the lab how it is. When its process does not answer, the status says so and what is known from its files.
func StatusOf(ctx context.Context, d layout.Dir) status.Status {
	s, err := ask[status.Status](ctx, d, "/status")
	if err == nil {
		return s
	}
	s = status.New(d.Name(), d.Process())
	if isStarting(d, err) {
		s.Problems = []string{"the lab starts"}
		return s
	}
	if s.Pid != 0 {
		s.Problems = []string{"the lab process starts, or does not answer: " + err.Error()}
		return s
	}
	s.Problems = []string{fmt.Sprintf("the lab process has died: what is established goes on, but nothing changes any more and what dies stays dead; "+
		"'packetwalk up --name %s' takes the lab up again", d.Name())}
	if _, err := os.Stat(d.Kubeconfig()); err == nil {
		s.Kubeconfig = d.Kubeconfig()
	}
	addRecorded(&s, d)
	return s
}

// addRecorded adds to a status which of the lab's recorded processes still run, for a lab whose own process does not answer.
func addRecorded(s *status.Status, d layout.Dir) {
	look := func(name, file string) status.Component {
		c := status.Component{Name: name, Pid: supervise.Recorded(file)}
		if c.Pid == 0 {
			s.Problems = append(s.Problems, name+" is down")
		}
		return c
	}
	files, _ := filepath.Glob(d.Path("*.pid")) // the pattern is well formed
	for _, file := range files {
		if file != d.LockFile() {
			s.Components = append(s.Components, look(strings.TrimSuffix(filepath.Base(file), ".pid"), file))
		}
	}
	agents, _ := filepath.Glob(d.Path("nodes", "*", "agent.pid"))
	for _, file := range agents {
		name := filepath.Base(filepath.Dir(file))
		n := status.Node{Name: name, Pods: -1, Agent: look(name, file)}
		lookIf := func(name, file string) *status.Component {
			if _, err := os.Stat(file); err != nil {
				return nil
			}
			there := look(name, file)
			return &there
		}
		n.Machine, n.KubeProxy = lookIf(name+".machine", d.MachinePid(name)), lookIf(name+".kube-proxy", d.ProxyPid(name))
		n.CalicoFelix, n.LocalDNS = lookIf(name+".calico-felix", d.FelixPid(name)), lookIf(name+".localdns", d.LocalDNSPid(name))
		s.Nodes = append(s.Nodes, n)
	}
}
