package httprouting

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"packetwalk.dev/internal/addons/ingress"
)

// ingress-nginx's settings (docs/user-guide/nginx-configuration/configmap.md).
const (
	connectTimeout = 5 * time.Second  // proxy-connect-timeout
	readTimeout    = 60 * time.Second // proxy-read-timeout, of the response's head
	maxTries       = 3                // proxy-next-upstream-tries
	maxBody        = 1 << 20          // proxy-body-size, bytes of a request
	keptIdle       = 320              // upstream-keepalive-connections
)

// filteredLog leaves out what the load balancer's probes of port 443 do every few seconds: connect and end.
type filteredLog struct{ log *log.Logger }

func (q filteredLog) Write(line []byte) (int, error) {
	if !bytes.HasPrefix(line, []byte("http: TLS handshake error")) || !bytes.HasSuffix(line, []byte(": EOF\n")) {
		q.log.Print(string(line))
	}
	return len(line), nil
}

// A proxy answers requests as the table of the moment says.
type proxy struct {
	table   *atomic.Pointer[ingress.Table]
	own     *tls.Certificate // for hosts without one
	reverse *httputil.ReverseProxy
	turns   sync.Map // name of a backend → *atomic.Uint64: whose turn it is
	log     *accessLog
}

func newProxy(table *atomic.Pointer[ingress.Table], own *tls.Certificate, access io.Writer, errors *log.Logger) *proxy {
	p := &proxy{table: table, own: own, log: newAccessLog(access)}
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: connectTimeout}).DialContext,
		DisableCompression:  true, // what the client asks for is what the pod is asked for
		MaxIdleConnsPerHost: keptIdle, IdleConnTimeout: 60 * time.Second,
		ResponseHeaderTimeout: readTimeout,
	}
	p.reverse = &httputil.ReverseProxy{
		Rewrite: p.rewrite, Transport: &balancer{transport}, ErrorHandler: fail, ErrorLog: errors, FlushInterval: -1, BufferPool: &buffers{},
	}
	return p
}

// exchange is what is known of one request on its way, for the access log.
type exchange struct {
	start    time.Time
	id       string // X-Request-ID
	decision ingress.Decision
	first    uint64 // of the backend's endpoints, the one whose turn it is
	tries    []try
}

// try is one attempt at an endpoint.
type try struct {
	endpoint netip.AddrPort
	status   int // 502 and 504 where it did not answer
	took     time.Duration
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange { return ctx.Value(exchangeKey{}).(*exchange) }

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{start: time.Now(), id: r.Header.Get("X-Request-ID"), decision: p.table.Load().Match(r.Host, r.URL.Path)}
	if x.id == "" {
		x.id = requestID()
	}
	counted := &countingWriter{ResponseWriter: w}
	body := &countingReader{ReadCloser: r.Body}
	r.Body = body
	p.answer(counted, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x)), x)
	p.log.write(r, x, counted, body.n)
}

func (p *proxy) answer(w http.ResponseWriter, r *http.Request, x *exchange) {
	route, backend := x.decision.Route, x.decision.Backend
	switch {
	case r.Method == http.MethodConnect: // this is no proxy for clients
		errorPage(w, http.StatusMethodNotAllowed)
	case route != nil && route.Redirect && r.TLS == nil:
		// A permanent redirect that keeps the method (ingress-nginx's http-redirect-code 308).
		target := *r.URL
		target.Scheme, target.Host = "https", x.decision.Host
		http.Redirect(w, r, target.String(), http.StatusPermanentRedirect)
	case r.ContentLength > maxBody:
		errorPage(w, http.StatusRequestEntityTooLarge)
	case len(backend.Endpoints) == 0:
		errorPage(w, http.StatusServiceUnavailable)
	default:
		if r.ContentLength != 0 {
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		}
		x.first = p.countRequest(backend)
		p.reverse.ServeHTTP(w, r)
	}
}

// countRequest counts a request to a backend, and returns how many came before. The count survives new tables.
func (p *proxy) countRequest(b *ingress.Backend) uint64 {
	counter, ok := p.turns.Load(b.Name())
	if !ok {
		counter, _ = p.turns.LoadOrStore(b.Name(), new(atomic.Uint64))
	}
	return counter.(*atomic.Uint64).Add(1) - 1
}

// requestID returns 32 hex digits, as nginx's $request_id.
func requestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// rewrite sets the headers that ingress-nginx sets where it does not trust those of the client (use-forwarded-headers false): what the
// client says of itself is replaced, and only its X-Forwarded-For kept under another name.
func (p *proxy) rewrite(r *httputil.ProxyRequest) {
	x := exchangeOf(r.In.Context())
	client, _, _ := net.SplitHostPort(r.In.RemoteAddr)
	proto, port := "http", "80"
	if r.In.TLS != nil {
		proto, port = "https", "443"
	}
	r.Out.URL.Scheme = "http"
	r.Out.URL.Host = x.decision.Backend.Name() // the balancer puts an endpoint in its place
	r.Out.URL.RawQuery = r.In.URL.RawQuery     // as it came: Rewrite leaves out what it cannot parse
	h := r.Out.Header
	h.Del("Proxy") // CVE-2016-5386
	if before := r.In.Header.Values("X-Forwarded-For"); len(before) > 0 {
		h["X-Original-Forwarded-For"] = slices.Clone(before)
	}
	for _, set := range [...]struct{ name, value string }{
		{"X-Request-Id", x.id}, {"X-Real-Ip", client}, {"X-Forwarded-For", client}, {"X-Forwarded-Host", r.In.Host}, {"X-Forwarded-Port", port},
		{"X-Forwarded-Proto", proto}, {"X-Forwarded-Scheme", proto}, {"X-Scheme", proto},
	} {
		h[set.name] = []string{set.value} // the names are canonical
	}
	if _, ok := r.In.Header["User-Agent"]; !ok {
		h["User-Agent"] = nil // do not make one up
	}
}

// A balancer sends a request to the endpoint whose turn it is, and to the next one where no connection comes about: then no pod has seen
// it.
type balancer struct{ transport *http.Transport }

func (b *balancer) RoundTrip(r *http.Request) (*http.Response, error) {
	x := exchangeOf(r.Context())
	all := x.decision.Backend.Endpoints
	body := r.Body
	for n := range uint64(maxTries) {
		endpoint := all[(x.first+n)%uint64(len(all))]
		out, u := *r, *r.URL // which the transport does not change
		u.Host = endpoint.String()
		out.URL = &u
		if body != nil {
			out.Body = io.NopCloser(body) // a failed try must not end it for the next
		}
		begin := time.Now()
		resp, err := b.transport.RoundTrip(&out)
		t := try{endpoint: endpoint, took: time.Since(begin)}
		if err == nil {
			t.status = resp.StatusCode
			x.tries = append(x.tries, t)
			return resp, nil
		}
		t.status = statusOf(err)
		x.tries = append(x.tries, t)
		var op *net.OpError
		unseen := errors.As(err, &op) && op.Op == "dial" && r.Context().Err() == nil
		if !unseen || n+1 == min(maxTries, uint64(len(all))) {
			return nil, err
		}
	}
	panic("unreachable: the last try returns")
}

// statusOf returns what nginx answers with when an endpoint does not.
func statusOf(err error) int {
	var long *http.MaxBytesError
	if errors.As(err, &long) {
		return http.StatusRequestEntityTooLarge
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway
}

// statusClientGone is nginx's for a client that did not wait for the answer.
const statusClientGone = 499

// fail answers for endpoints that did not.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(r.Context().Err(), context.Canceled) {
		w.WriteHeader(statusClientGone)
		return
	}
	errorPage(w, statusOf(err))
}

// errorWords are nginx's names of statuses, where they are not Go's.
var errorWords = map[int]string{http.StatusMethodNotAllowed: "Not Allowed",
	http.StatusServiceUnavailable: "Service Temporarily Unavailable", http.StatusGatewayTimeout: "Gateway Time-out"}

func errorPage(w http.ResponseWriter, status int) {
	words := errorWords[status]
	if words == "" {
		words = http.StatusText(status)
	}
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<html>\r\n<head><title>%[1]d %[2]s</title></head>\r\n<body>\r\n<center><h1>%[1]d %[2]s</h1></center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n", status, words)
}

// buffers lends the reverse proxy its copy buffers.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
