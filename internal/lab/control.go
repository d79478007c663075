package lab

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"packetwalk.dev/internal/base/serve"
	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
)

// startControl answers the command line.
func (l *lab) startControl(ctx context.Context) error {
	return l.Serve(ctx, "the control socket", func(ctx context.Context) (net.Listener, error) {
		return lifecycle.ListenUnix(ctx, l.Dir.Socket())
	}, func(ctx context.Context, socket net.Listener) error {
		return serve.New(l.control(ctx), nil).Serve(ctx, socket)
	})
}

// control returns what the command line asks on the control socket: GET /status, /network, /cluster and /container-groups, all JSON, and of
// a group's container the log, as text. POST /repair makes again what is missing of the lab, and answers with what that was, in words. PUT
// /cluster?timeout=DURATION has a cluster.yaml, and is answered with steps as they are done, JSON, one a line. The last one has the error,
// or is Ready: the lab is as the file says. A client that goes away changes nothing: what starts lives as long as ctx.
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
		writeJSON(w, Description{Cluster: l.Cluster(), Changing: l.busy.Load()})
	})
	whenReady("POST /repair", func(w http.ResponseWriter, _ *http.Request) {
		repaired, err := l.repair(ctx)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		writeJSON(w, repaired)
	})
	whenReady("GET /network", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, l.azure.Current()) })
	whenReady("GET /container-groups", func(w http.ResponseWriter, r *http.Request) { writeJSON(w, l.groups.Public(r.Context())) })
	whenReady("GET /container-groups/{group}/{container}/log", func(w http.ResponseWriter, r *http.Request) {
		out := flushWriter{w, http.NewResponseController(w)}
		if err := l.groups.CopyLog(r.Context(), r.PathValue("group"), r.PathValue("container"), r.URL.Query().Has("follow"), out); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	})
	mux.HandleFunc("PUT /cluster", func(w http.ResponseWriter, r *http.Request) {
		say := lifecycle.NewReporter(flushWriter{w, http.NewResponseController(w)}, time.Now())
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(apiserver.Patience))
		source, err := io.ReadAll(http.MaxBytesReader(w, r.Body, layout.MaxClusterFile))
		timeout, invalid := time.ParseDuration(r.URL.Query().Get("timeout"))
		if err = errors.Join(err, invalid); err == nil {
			err = l.change(ctx, source, lifecycle.NewDeadline(timeout), say)
		}
		if err != nil {
			say(lifecycle.Step{Error: err.Error()})
			return
		}
		say(lifecycle.Step{Ready: true})
	})
	return mux
}

// flushWriter sends each piece at once.
type flushWriter struct {
	io.Writer
	c *http.ResponseController
}

func (f flushWriter) Write(b []byte) (int, error) {
	n, err := f.Writer.Write(b)
	return n, errors.Join(err, f.c.Flush())
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}
