package nodeapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	vkapi "github.com/virtual-kubelet/virtual-kubelet/node/api"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilexec "k8s.io/utils/exec"

	"packetwalk.dev/internal/base/logs"
	"packetwalk.dev/internal/base/serve"
)

// APIServerName is the common name of the API server's certificate as a client of nodes.
const APIServerName = "kube-apiserver-kubelet-client"

// streamIdle is the idle time that ends an exec, attach or port-forward. It is upstream's streamingConnectionIdleTimeout.
const streamIdle = 4 * time.Hour

// Config is a node's side of the interface. All functions must be set, except for those that Refusal replaces.
type Config struct {
	Certificate tls.Certificate
	// Clients must show a certificate signed by ClientCA, with the common name ClientName or of the organization system:masters.
	ClientCA   *x509.CertPool
	ClientName string
	Now        func() time.Time

	// Log finds a container's log; copy writes the lines to w, and with Follow goes on until the container has ended or ctx does. An error
	// that is errdefs' NotFound is answered with 404.
	Log         func(namespace, pod, container string, o logs.Options) (copy func(ctx context.Context, w io.Writer) error, err error)
	Exec        vkapi.ContainerExecHandlerFunc
	Attach      vkapi.ContainerAttachHandlerFunc
	PortForward vkapi.PortForwardHandlerFunc
	Pods        vkapi.PodListerFunc
	Stats       vkapi.PodStatsSummaryHandlerFunc
	// Refusal replaces Log, Exec, Attach and PortForward for a node whose pods run no programs: it answers these requests with this text.
	Refusal string
}

type server struct {
	Config
	library http.Handler
}

// newHandler answers requests; the connections they come over must be TLS.
func newHandler(c Config) http.Handler {
	return &server{c, vkapi.PodHandler(vkapi.PodHandlerConfig{
		RunInContainer: c.Exec, AttachToContainer: c.Attach, PortForward: c.PortForward,
		GetPods: c.Pods, GetPodsFromKubernetes: c.Pods, GetStatsSummary: c.Stats,
		// The library swaps the two for port-forward (v1.12.0, node/api/server.go); with one value for both that does no harm.
		StreamIdleTimeout: streamIdle, StreamCreationTimeout: streamIdle,
	}, true)}
}

// maxHeader is as a kubelet has it: a command to run stands in the request's head.
const maxHeader = http.DefaultMaxHeaderBytes

// Serve answers on a listener until ctx ends.
func Serve(ctx context.Context, l net.Listener, c Config) error {
	return serve.New(newHandler(c), nil).WithTLS(&tls.Config{
		Certificates: []tls.Certificate{c.Certificate}, ClientCAs: c.ClientCA, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, // the streams are upgraded connections
	}).WithHeader(maxHeader).Serve(ctx, l)
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.allowed(r) {
		http.Error(w, "Forbidden", http.StatusForbidden)
		return
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case parts[0] == "healthz":
		_, _ = io.WriteString(w, "ok")
	case s.Refusal != "" && parts[0] == "containerLogs":
		http.Error(w, s.Refusal, http.StatusBadRequest)
	case s.Refusal != "" && slices.Contains([]string{"exec", "attach", "portForward"}, parts[0]):
		refuseStream(w, s.Refusal)
	case parts[0] == "containerLogs" && len(parts) == 4:
		s.logs(w, r, parts[1], parts[2], parts[3])
	default:
		s.library.ServeHTTP(w, r)
	}
}

// refuseStream answers a request for a stream. Its clients take text for a Status in YAML where they can (apimachinery,
// pkg/util/httpstream/spdy), so the answer is one.
func refuseStream(w http.ResponseWriter, text string) {
	status := apierrors.NewBadRequest(text).Status()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status) // the client may have gone
}

// allowed lets the API server in, and cluster administrators.
func (s *server) allowed(r *http.Request) bool {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return false
	}
	subject := r.TLS.PeerCertificates[0].Subject
	return subject.CommonName == s.ClientName || slices.Contains(subject.Organization, "system:masters")
}

// logs answers a request for a container's log. The library's handler cannot tell "no lines" from "all lines".
func (s *server) logs(w http.ResponseWriter, r *http.Request, namespace, pod, name string) {
	opts, err := logOptions(r.URL.Query(), s.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	write, err := s.Log(namespace, pod, name, opts)
	if err != nil {
		code := http.StatusBadRequest
		if errdefs.IsNotFound(err) {
			code = http.StatusNotFound
		}
		http.Error(w, err.Error(), code)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	if err := write(r.Context(), flusher{w, http.NewResponseController(w)}); err != nil && r.Context().Err() == nil {
		_, _ = io.WriteString(w, err.Error()+"\n")
	}
}

type flusher struct {
	w io.Writer
	c *http.ResponseController
}

func (f flusher) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	_ = f.c.Flush()
	return n, err
}

// logOptions reads the query of a log request (PodLogOptions).
func logOptions(q url.Values, now time.Time) (o logs.Options, err error) {
	var faults []error
	number := func(name string) (n int64, ok bool) {
		v := q.Get(name)
		if v == "" {
			return 0, false
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < 0 {
			faults = append(faults, fmt.Errorf("%s=%s is not a number of 0 or more", name, v))
		}
		return n, err == nil
	}
	flag := func(name string) bool {
		v := q.Get(name)
		if v == "" {
			return false
		}
		b, err := strconv.ParseBool(v)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s=%s is neither true nor false", name, v))
		}
		return b
	}
	o.Follow, o.Timestamps, o.Previous = flag("follow"), flag("timestamps"), flag("previous")
	if n, ok := number("tailLines"); ok {
		o.Tail = new(int(n))
	}
	o.LimitBytes, _ = number("limitBytes")
	if n, ok := number("sinceSeconds"); ok {
		o.Since = now.Add(-time.Duration(n) * time.Second)
	}
	if v := q.Get("sinceTime"); v != "" {
		if o.Since, err = time.Parse(time.RFC3339, v); err != nil {
			faults = append(faults, fmt.Errorf("sinceTime=%s: %w", v, err))
		}
	}
	if s := q.Get("stream"); s != "" && s != "All" {
		o.Stream = strings.ToLower(s)
	}
	return o, errors.Join(faults...)
}

// Streams are a client's, as those who run containers take them: what the client has not is nil, also as an interface.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resize         <-chan struct{ Width, Height uint16 } // until ctx ends
}

// StreamsOf gives a client's streams.
func StreamsOf(ctx context.Context, client vkapi.AttachIO) Streams {
	s := Streams{Resize: sizes(ctx, client.Resize())}
	if in := client.Stdin(); in != nil {
		s.Stdin = in
	}
	if out := client.Stdout(); out != nil {
		s.Stdout = out
	}
	if errs := client.Stderr(); errs != nil {
		s.Stderr = errs
	}
	return s
}

func sizes(ctx context.Context, in <-chan vkapi.TermSize) <-chan struct{ Width, Height uint16 } {
	if in == nil {
		return nil
	}
	out := make(chan struct{ Width, Height uint16 })
	go func() {
		defer close(out)
		for {
			select {
			case s := <-in:
				select {
				case out <- s:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// Carry copies both ways between a forwarded port's connection and its stream, and closes both, when the connection has ended.
func Carry(conn net.Conn, stream io.ReadWriteCloser) {
	defer conn.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(conn, stream)
		if c, ok := conn.(*net.TCPConn); ok {
			_ = c.CloseWrite()
		}
	})
	_, _ = io.Copy(stream, conn)
	_ = stream.Close()
	wg.Wait()
}

// ExitError makes an exit status what the library sends as such.
func ExitError(code int, err error) error {
	if err != nil || code == 0 {
		return err
	}
	return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
}
