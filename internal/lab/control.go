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
	"strings"
	"time"

	"packetwalk.dev/internal/cluster"
	"packetwalk.dev/internal/vnet"
)

// A Step is one thing that the lab says while it comes up: JSON, one a line, on the progress pipe.
type Step struct {
	Text    string  `json:"text,omitempty"`    // what has been done, as "API server answers"
	Seconds float64 `json:"seconds,omitempty"` // since the lab process began
	Ready   bool    `json:"ready,omitempty"`   // the cluster is ready: the last step
	Error   string  `json:"error,omitempty"`   // the lab gives up, and why: the last step
}

// controlled is what the command line asks of a lab.
type controlled interface {
	status() Status
	network() vnet.Network
	// description is the cluster as it is, with its defaults.
	description() *cluster.Cluster
	// change brings the lab to another cluster.yaml; what it starts lives as long as ctx.
	change(ctx context.Context, source []byte) error
}

// serveControl answers the command line on the control socket until ctx ends: GET /status, /network and /cluster, all JSON, and PUT /cluster with a
// cluster.yaml, answered when the lab is as it says, with 204, or with 409 and why not.
func serveControl(ctx context.Context, l net.Listener, of controlled) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, of.status()) })
	mux.HandleFunc("GET /network", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, of.network()) })
	mux.HandleFunc("GET /cluster", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, of.description()) })
	mux.HandleFunc("PUT /cluster", func(w http.ResponseWriter, r *http.Request) {
		source, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxClusterFile))
		if err == nil {
			err = of.change(ctx, source)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// maxClusterFile is the most bytes of a cluster.yaml that are read; one that is parsed has at most as many.
const maxClusterFile = 1 << 21

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

// ask gets path from the lab's control socket into v.
func ask(ctx context.Context, d Dir, path string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://lab"+path, nil)
	if err != nil {
		return err
	}
	resp, err := controlClient(d, 10*time.Second).Do(req)
	if err != nil {
		if d.Process() == 0 {
			return fmt.Errorf("%w; 'packetwalk up --name %s' starts it again, 'packetwalk down --name %s' removes the lab", ErrNotRunning, d.Name(), d.Name())
		}
		return fmt.Errorf("ask lab %s: %w", d.Name(), err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return fmt.Errorf("ask lab %s: %s: %s", d.Name(), resp.Status, strings.TrimSpace(string(text)))
	}
	return json.NewDecoder(resp.Body).Decode(v)
}

// putCluster has the lab change to a cluster.yaml.
func putCluster(ctx context.Context, d Dir, source []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://lab/cluster", bytes.NewReader(source))
	if err != nil {
		return err
	}
	resp, err := controlClient(d, patience).Do(req)
	if err != nil {
		return fmt.Errorf("change lab %s: %w", d.Name(), err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
		return fmt.Errorf("change lab %s: %s", d.Name(), strings.TrimSpace(string(text)))
	}
	return nil
}

// Network is Azure's side of a running lab.
func Network(ctx context.Context, d Dir) (vnet.Network, error) {
	var n vnet.Network
	err := ask(ctx, d, "/network", &n)
	return n, err
}

// Cluster is the description of a running lab's cluster, with its defaults.
func Cluster(ctx context.Context, d Dir) (*cluster.Cluster, error) {
	c := &cluster.Cluster{}
	err := ask(ctx, d, "/cluster", c)
	return c, err
}
