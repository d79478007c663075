// Package serve makes HTTP servers. There is no other place for it, so that each has all of the limits here: on the time that a client may
// take, on what is kept of it in memory, and on how many there are at once. It knows nothing of what is served, and must not import
// anything of ours.
package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// The limits. A response may take its time: logs are followed, and sessions go on.
const (
	// from a connection's begin, or a request's first octet, to the end of the request's head; TLS's handshake too
	HeaderTime     = 10 * time.Second
	RestTime       = 60 * time.Second // between two pieces of a request's body, as nginx's client_body_timeout
	IdleTime       = 75 * time.Second // between two requests, as nginx's keepalive_timeout
	MaxHeader      = 32 << 10         // bytes of a request's head, which net/http gives 4 KiB more
	MaxBody        = 8 << 20          // bytes of a request's body
	MaxConnections = 4096             // at once
	MaxOfPeer      = 1024             // of one address, that are idle
)

// A Server answers HTTP requests within the limits.
type Server struct{ http http.Server }

// New makes a server that answers with h. errors takes what net/http has to say of clients; nil is for nothing.
func New(h http.Handler, errors *log.Logger) *Server {
	if errors == nil {
		errors = log.New(io.Discard, "", 0)
	}
	return &Server{http.Server{
		Handler: inUse(limited(h)), ErrorLog: errors, ReadHeaderTimeout: HeaderTime, IdleTimeout: IdleTime, MaxHeaderBytes: MaxHeader,
		ConnContext: withConn, ConnState: taken,
	}}
}

// connKey is where a request's context has its connection.
type connKey struct{}

// withConn puts a connection into the context of its requests.
func withConn(ctx context.Context, c net.Conn) context.Context {
	of := limitedOf(c)
	if of == nil {
		return ctx
	}
	of.stopReadingHead()
	return context.WithValue(ctx, connKey{}, of)
}

// inUse has a request's connection be in use while it is answered.
func inUse(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if of, ok := r.Context().Value(connKey{}).(*limitedConn); ok {
			of.use(1)
			defer of.use(-1)
		}
		h.ServeHTTP(w, r)
	})
}

// taken has a connection that a handler takes over be in use for good.
func taken(c net.Conn, state http.ConnState) {
	if of := limitedOf(c); of != nil && state == http.StateHijacked {
		of.use(1)
	}
}

// WithoutKeepAlive has the server close each connection when it has answered, as servers of health checks do: clients of these come once.
func (s *Server) WithoutKeepAlive() *Server {
	s.http.SetKeepAlivesEnabled(false)
	return s
}

// WithTLS has the server speak TLS.
func (s *Server) WithTLS(c *tls.Config) *Server {
	s.http.TLSConfig = c
	return s
}

// WithHeader has the server take requests whose head has up to n bytes.
func (s *Server) WithHeader(n int) *Server {
	s.http.MaxHeaderBytes = n
	return s
}

// Serve answers on a listener until ctx ends, or Close or Shutdown is called; then its error is nil. TLS is for servers that have it.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	l = Limit(l)
	var err error
	if s.http.TLSConfig != nil {
		err = s.http.ServeTLS(l, "", "")
	} else {
		err = s.http.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Close ends the server and its connections.
func (s *Server) Close() { _ = s.http.Close() } // its errors are of listeners that are closed already

// Shutdown takes no more requests and waits for those that are there, until ctx ends.
func (s *Server) Shutdown(ctx context.Context) error { return s.http.Shutdown(ctx) }

// limited bounds the body of each request: its length, and how long it may stand still.
func limited(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			b := &body{ReadCloser: http.MaxBytesReader(w, r.Body, MaxBody), control: http.NewResponseController(w)}
			b.allow(RestTime) // also for a handler that reads nothing: net/http reads what is left
			defer b.leave()
			r.Body = b
		}
		h.ServeHTTP(w, r)
	})
}

// A body is a request's, each piece of which must come in time.
type body struct {
	io.ReadCloser
	control *http.ResponseController
	mu      sync.Mutex
	left    bool // the handler has returned: the connection's time is net/http's
}

func (b *body) Read(p []byte) (int, error) {
	b.allow(RestTime)
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.allow(0) // from here on net/http reads to see the client go
	}
	return n, err
}

// allow gives the next read a time; 0 is for ever. Writers that know no time limits, as those of tests, have none.
func (b *body) allow(d time.Duration) {
	var end time.Time
	if d > 0 {
		end = time.Now().Add(d)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.left {
		_ = b.control.SetReadDeadline(end)
	}
}

func (b *body) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = true
}
