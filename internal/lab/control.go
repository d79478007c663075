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
	"strings"
	"time"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/base/serve"
	"packetwalk.dev/internal/lab/cluster"
)

// A Step is one thing that the lab says while it comes up: JSON, one a line, on the progress pipe.
type Step struct {
	Text    string  `json:"text,omitempty"`    // what has been done, as "API server answers"
	Seconds float64 `json:"seconds,omitempty"` // since the lab process began
	Ready   bool    `json:"ready,omitempty"`   // the cluster is ready: the last step
	Error   string  `json:"error,omitempty"`   // the lab gives up, and why: the last step
}

// startControl answers the command line.
func (l *lab) startControl(ctx context.Context) error {
	return l.serve(ctx, "the control socket", func(ctx context.Context) (net.Listener, error) {
		return listenUnix(ctx, l.dir.Socket())
	}, func(ctx context.Context, socket net.Listener) error {
		return serve.New(l.control(ctx), nil).Serve(ctx, socket)
	})
}

// control is what the command line asks on the control socket: GET /status, /network, /cluster and /container-groups, all JSON, and of a
// group's container the log, as text. POST /namespaces mounts namespaces again whose mounts were lost, and answers with their hosts' names.
// PUT /cluster?timeout=DURATION has a cluster.yaml, and is answered with steps as they are done, JSON, one a line. The last one has the
// error, or is Ready: the lab is as the file says. A client that goes away changes nothing: what starts lives as long as ctx.
func (l *lab) control(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	whenReady := func(pattern string, h http.HandlerFunc) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if !l.isReady.Load() {
				http.Error(w, errNotReady.Error(), http.StatusServiceUnavailable)
				return
			}
			h(w, r)
		})
	}
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, l.status()) })
	mux.HandleFunc("GET /cluster", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, Description{Cluster: l.cluster(), Changing: l.busy.Load()})
	})
	whenReady("POST /namespaces", func(w http.ResponseWriter, _ *http.Request) {
		mounted, err := l.mountNamespaces()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		writeJSON(w, mounted)
	})
	whenReady("GET /network", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, l.azure.network()) })
	whenReady("GET /container-groups", func(w http.ResponseWriter, r *http.Request) { writeJSON(w, l.groups.public(r.Context())) })
	whenReady("GET /container-groups/{group}/{container}/log", func(w http.ResponseWriter, r *http.Request) {
		out := flushing{w, http.NewResponseController(w)}
		if err := l.groups.logs(r.Context(), r.PathValue("group"), r.PathValue("container"), r.URL.Query().Has("follow"), out); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	})
	mux.HandleFunc("PUT /cluster", func(w http.ResponseWriter, r *http.Request) {
		say := reporter(flushing{w, http.NewResponseController(w)}, time.Now())
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(relayPatience))
		source, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxClusterFile))
		timeout, invalid := time.ParseDuration(r.URL.Query().Get("timeout"))
		if err = errors.Join(err, invalid); err == nil {
			err = l.change(ctx, source, newDeadline(timeout), say)
		}
		if err != nil {
			say(Step{Error: err.Error()})
			return
		}
		say(Step{Ready: true})
	})
	return mux
}

// flushing sends each piece at once.
type flushing struct {
	io.Writer
	c *http.ResponseController
}

func (f flushing) Write(b []byte) (int, error) {
	n, err := f.Writer.Write(b)
	return n, errors.Join(err, f.c.Flush())
}

// MaxClusterFile is the most bytes of a cluster.yaml that are read; one that is parsed has at most as many.
const MaxClusterFile = 1 << 21

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

// ErrNotRunning says that the lab's process does not answer.
var ErrNotRunning = errors.New("the lab process is not running")

// controlClient is a client of the lab's control socket.
func controlClient(d Dir, patience time.Duration) *http.Client {
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
func ask[T any](ctx context.Context, d Dir, path string) (v T, err error) {
	return request[T](ctx, d, http.MethodGet, path)
}

// request sends a request without a body to the lab's control socket.
func request[T any](ctx context.Context, d Dir, method, path string) (v T, err error) {
	body, err := bodyOf(ctx, d, method, path, 10*time.Second)
	if err != nil {
		return v, err
	}
	defer body.Close()
	err = json.NewDecoder(body).Decode(&v)
	return v, err
}

// bodyOf is the answer to a request to the lab's control socket; the caller closes it. patience is for all of it; 0 has no end.
func bodyOf(ctx context.Context, d Dir, method, path string, patience time.Duration) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://lab"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := controlClient(d, patience).Do(req)
	if err != nil {
		if d.Process() == 0 {
			return nil, fmt.Errorf("%w; 'packetwalk up --name %s' starts it again, 'packetwalk down --name %s' removes the lab", ErrNotRunning,
				d.Name(), d.Name())
		}
		return nil, fmt.Errorf("ask lab %s: %w", d.Name(), err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return nil, fmt.Errorf("ask lab %s: %w", d.Name(), declined{resp.Status, strings.TrimSpace(string(text))})
	}
	return resp.Body, nil
}

// declined is an answer of the lab process other than 200.
type declined struct{ status, text string }

func (r declined) Error() string { return r.status + ": " + r.text }

// putCluster has the lab change to a cluster.yaml before the deadline. Without wait it returns when the change has begun, which it does
// if it is possible.
func putCluster(ctx context.Context, d Dir, source []byte, end deadline, wait bool, progress func(Step)) error {
	ctx, cancel := end.answer(ctx)
	defer cancel()
	url := "http://lab/cluster?timeout=" + end.left().String()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, bytes.NewReader(source))
	if err != nil {
		return err
	}
	resp, err := controlClient(d, 0).Do(req)
	if err != nil {
		return fmt.Errorf("change lab %s: %w", d.Name(), err)
	}
	defer resp.Body.Close()
	err = follow(resp.Body, wait, progress)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return fmt.Errorf("change lab %s: %w", d.Name(), err)
	}
	return nil
}

// Network is Azure's side of a running lab.
func Network(ctx context.Context, d Dir) (vnet.Network, error) {
	return ask[vnet.Network](ctx, d, "/network")
}

// Description is what a running lab's cluster is.
type Description struct {
	Cluster  *cluster.Cluster `json:"cluster"`  // with its defaults
	Changing bool             `json:"changing"` // it is on the way there
}

// Describe asks a running lab what its cluster is.
func Describe(ctx context.Context, d Dir) (Description, error) {
	return ask[Description](ctx, d, "/cluster")
}

// ContainerGroups are the container groups of a running lab, with their views and without their secrets.
func ContainerGroups(ctx context.Context, d Dir) ([]aci.ContainerGroup, error) {
	return ask[[]aci.ContainerGroup](ctx, d, "/container-groups")
}

// ContainerLogs copies the log of a container of a group to w; with follow until the container ends or ctx does.
func ContainerLogs(ctx context.Context, d Dir, group, container string, follow bool, w io.Writer) error {
	path, patience := "/container-groups/"+url.PathEscape(group)+"/"+url.PathEscape(container)+"/log", 10*time.Second
	if follow {
		path, patience = path+"?follow", 0
	}
	log, err := bodyOf(ctx, d, http.MethodGet, path, patience)
	var no declined
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
