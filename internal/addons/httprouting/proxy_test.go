package httprouting

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"packetwalk.dev/internal/addons/ingress"
)

// site is a proxy that serves on the loopback, with and without TLS, and a table of one host.
type site struct {
	proxy         *proxy
	table         atomic.Pointer[ingress.Table]
	plain, secure *httptest.Server
	log           syncBuffer
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

// line waits for a line that the pattern matches.
func (s *syncBuffer) line(t *testing.T, pattern string) {
	t.Helper()
	for range 100 {
		s.mu.Lock()
		text := s.b.String()
		s.mu.Unlock()
		if regexp.MustCompile(`(?m)^` + pattern + `$`).MatchString(text) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("no line %q in the log:\n%s", pattern, s.b.String())
}

func newSite(t *testing.T, routes ...ingress.Route) *site {
	t.Helper()
	own, err := ownCertificate(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := &site{}
	s.proxy = newProxy(&s.table, own, &s.log, log.New(io.Discard, "", 0))
	s.table.Store(&ingress.Table{Hosts: map[string]*ingress.Host{"shop.example.org": {Name: "shop.example.org", Routes: routes}}})
	s.plain = httptest.NewServer(s.proxy)
	s.secure = httptest.NewUnstartedServer(s.proxy)
	s.secure.TLS, s.secure.EnableHTTP2 = s.proxy.tlsConfig(), true
	s.secure.StartTLS()
	t.Cleanup(s.plain.Close)
	t.Cleanup(s.secure.Close)
	return s
}

// route returns a route for all paths to these endpoints.
func route(endpoints ...string) ingress.Route {
	r := ingress.Route{Path: "/", Type: networkingv1.PathTypePrefix,
		Backend: ingress.Backend{Service: types.NamespacedName{Namespace: "default", Name: "shop"}, Port: "80"}}
	for _, e := range endpoints {
		r.Endpoints = append(r.Endpoints, netip.MustParseAddrPort(strings.TrimPrefix(e, "http://")))
	}
	return r
}

// pod serves on the loopback.
func pod(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// get asks for a path of the site's host.
func (s *site) get(t *testing.T, path string, header http.Header) (*http.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.plain.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "shop.example.org"
	for name, values := range header {
		r.Header[name] = values
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// unreachable returns an address on which no process listens.
func unreachable(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestRoundRobin(t *testing.T) {
	name := func(n string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, n) }
	}
	s := newSite(t, route(pod(t, name("a")), pod(t, name("b")), pod(t, name("c"))))
	var order strings.Builder
	for range 4 {
		_, body := s.get(t, "/", nil)
		order.WriteString(body)
	}
	if got := order.String(); !strings.Contains("abcabc", got[:3]) || got[3] != got[0] {
		t.Errorf("requests went to %s", got)
	}
}

// TestForwardedHeaders: what ingress-nginx sets, and what it does not believe.
func TestForwardedHeaders(t *testing.T) {
	seen := make(chan *http.Request, 1)
	s := newSite(t, route(pod(t, func(_ http.ResponseWriter, r *http.Request) { seen <- r })))
	s.get(t, "/a%2Fb?x=1;y&z=%zz", http.Header{
		"X-Forwarded-For": {"1.2.3.4"}, "X-Forwarded-Proto": {"https"}, "X-Real-Ip": {"1.2.3.4"}, "X-Request-Id": {"mine"}, "Proxy": {"evil"},
		"User-Agent": {""},
	})
	r := <-seen
	for name, want := range map[string]string{
		"X-Forwarded-For": "127.0.0.1", "X-Real-Ip": "127.0.0.1", "X-Forwarded-Host": "shop.example.org", "X-Forwarded-Proto": "http",
		"X-Forwarded-Port": "80",
		"X-Scheme":         "http", "X-Forwarded-Scheme": "http", "X-Original-Forwarded-For": "1.2.3.4", "X-Request-Id": "mine", "Proxy": "",
		"User-Agent": "",
	} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if r.Host != "shop.example.org" || r.RequestURI != "/a%2Fb?x=1;y&z=%zz" {
		t.Errorf("the pod is asked for %s of %s", r.RequestURI, r.Host)
	}
	s.log.line(t, `127\.0\.0\.1 - - \[.*\] "GET /a%2Fb\?x=1;y&z=%zz HTTP/1\.1" 200 0 "-" "-" \d+ 0\.\d{3} \[default-shop-80\] \[\] 127\.0\.0\.1:\d+ 0 0\.\d{3} 200 mine`)
}

// TestNextEndpoint: where no connection comes about another pod is asked, also with a body; where one broke it is not, and the client is
// told.
func TestNextEndpoint(t *testing.T) {
	good := pod(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	dead := unreachable(t)
	s := newSite(t, route(dead, good))
	for range 2 { // whoever's turn it is first
		r, _ := http.NewRequest(http.MethodPost, s.plain.URL, strings.NewReader("hello"))
		r.Host = "shop.example.org"
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != "hello" {
			t.Errorf("%d %q", resp.StatusCode, body)
		}
	}
	s.log.line(t, `.*"POST / HTTP/1\.1" 200 5 .* \[\] `+regexp.QuoteMeta(dead)+`, 127\.0\.0\.1:\d+ 0, 5 0\.\d+, 0\.\d+ 502, 200 .*`)

	breaks := pod(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, _ := w.(http.Hijacker).Hijack()
		conn.Close()
	})
	var asked atomic.Int32
	other := pod(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	s = newSite(t, route(breaks, other))
	s.proxy.turns.Store("default-shop-80", new(atomic.Uint64))
	if resp, body := s.get(t, "/", nil); resp.StatusCode != http.StatusBadGateway || !strings.Contains(body, "502 Bad Gateway") ||
		asked.Load() > 0 {
		t.Errorf("%d %q, and %d others asked", resp.StatusCode, body, asked.Load())
	}
	s = newSite(t, route(dead))
	if resp, _ := s.get(t, "/", nil); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("a dead endpoint alone: %d", resp.StatusCode)
	}
}

func TestNoEndpoints(t *testing.T) {
	s := newSite(t, route())
	if resp, body := s.get(t, "/x", nil); resp.StatusCode != http.StatusServiceUnavailable ||
		!strings.Contains(body, "503 Service Temporarily Unavailable") {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
	s.log.line(t, `.*"GET /x HTTP/1\.1" 503 \d+ .* \[default-shop-80\] \[\] - - - - [0-9a-f]{32}`)
}

func TestConnectIsRefused(t *testing.T) {
	s := newSite(t, route(pod(t, func(http.ResponseWriter, *http.Request) { t.Error("a pod was asked to connect") })))
	conn, err := net.Dial("tcp", s.plain.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, "CONNECT shop.example.org:80 HTTP/1.1\r\nHost: shop.example.org\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 405 ") {
		t.Errorf("%q, %v", answer, err)
	}
}

func TestWebSocket(t *testing.T) {
	backend := httptest.NewServer(websocket.Handler(func(c *websocket.Conn) { _, _ = io.Copy(c, c) }))
	t.Cleanup(backend.Close)
	s := newSite(t, route(backend.URL))
	config, err := websocket.NewConfig("ws://shop.example.org/chat", "http://shop.example.org")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", s.plain.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	c, err := websocket.NewClient(config, conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one", "two"} {
		if err := websocket.Message.Send(c, text); err != nil {
			t.Fatal(err)
		}
		var got string
		if err := websocket.Message.Receive(c, &got); err != nil || got != text {
			t.Fatalf("%q, %v", got, err)
		}
	}
	c.Close()
	s.log.line(t, `.*"GET /chat HTTP/1\.1" 101 [1-9]\d* .* 101 [0-9a-f]{32}`)
}

// TestRedirect: a host with a certificate sends those who come by HTTP to HTTPS, with what they asked for.
// TestLargeBody: a body is as long as nginx lets it be, with a length that was announced or without.
func TestLargeBody(t *testing.T) {
	s := newSite(t, route(pod(t, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			panic(http.ErrAbortHandler) // the proxy broke off
		}
	})))
	for name, tt := range map[string]struct {
		body io.Reader
		want int
	}{
		"as long as may be": {strings.NewReader(strings.Repeat("x", maxBody)), http.StatusOK},
		"longer":            {strings.NewReader(strings.Repeat("x", maxBody+1)), http.StatusRequestEntityTooLarge},
		"longer, in chunks": {io.NopCloser(strings.NewReader(strings.Repeat("x", maxBody+1))), http.StatusRequestEntityTooLarge},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.plain.URL, tt.body)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "shop.example.org"
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(name, err)
		}
		resp.Body.Close()
		if resp.StatusCode != tt.want {
			t.Errorf("%s: %s, want %d", name, resp.Status, tt.want)
		}
	}
}

func TestRedirect(t *testing.T) {
	r := route(pod(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("X-Forwarded-Proto"), r.Header.Get("X-Forwarded-Port"))
	}))
	r.Redirect = true
	s := newSite(t, r)
	resp, _ := s.get(t, "/a?b=c", nil)
	if resp.StatusCode != http.StatusPermanentRedirect || resp.Header.Get("Location") != "https://shop.example.org/a?b=c" {
		t.Errorf("%d to %s", resp.StatusCode, resp.Header.Get("Location"))
	}
	req, _ := http.NewRequest(http.MethodGet, s.secure.URL, nil)
	req.Host = "shop.example.org"
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if string(body) != "https443" || resp.ProtoMajor != 2 {
		t.Errorf("by HTTPS: %q, HTTP/%d", body, resp.ProtoMajor)
	}
}

// TestServerNames: each host shows its own certificate, others the controller's.
func TestServerNames(t *testing.T) {
	s := newSite(t, route())
	cert, err := ownCertificate(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s.table.Load().Hosts["shop.example.org"].Certificate = &ingress.Certificate{Pair: *cert}
	for name, want := range map[string]*tls.Certificate{"shop.example.org": cert, "other.example.org": s.proxy.own} {
		conn, err := tls.Dial("tcp", s.secure.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, ServerName: name})
		if err != nil {
			t.Fatal(err)
		}
		if got := conn.ConnectionState().PeerCertificates[0].Raw; !bytes.Equal(got, want.Certificate[0]) {
			t.Errorf("%s shows another certificate", name)
		}
		conn.Close()
	}
}

// TestTableChanges: the next request goes by the new table, while one that is there goes on by the old one.
func TestTableChanges(t *testing.T) {
	hold := make(chan struct{})
	old := pod(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			fmt.Fprint(w, "begin ")
			w.(http.Flusher).Flush()
			<-hold
		}
		fmt.Fprint(w, "old")
	})
	s := newSite(t, route(old))
	first := make(chan string)
	begun := make(chan struct{})
	go func() {
		r, _ := http.NewRequest(http.MethodGet, s.plain.URL+"/slow", nil)
		r.Host = "shop.example.org"
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			close(begun)
			first <- err.Error()
			return
		}
		defer resp.Body.Close()
		begin := make([]byte, len("begin "))
		_, _ = io.ReadFull(resp.Body, begin) // which comes at once: nothing is held back
		close(begun)
		rest, _ := io.ReadAll(resp.Body)
		first <- string(begin) + string(rest)
	}()
	<-begun
	s.table.Store(&ingress.Table{Hosts: map[string]*ingress.Host{"": {Routes: []ingress.Route{route(pod(t,
		func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "new") }))}}}})
	if _, body := s.get(t, "/", nil); body != "new" {
		t.Errorf("after the change: %q", body)
	}
	close(hold)
	if got := <-first; got != "begin old" {
		t.Errorf("the request that was there got %q", got)
	}
}

func TestQuiet(t *testing.T) {
	var b bytes.Buffer
	l := log.New(filteredLog{log.New(&b, "", 0)}, "", 0)
	l.Print("http: TLS handshake error from 10.13.76.4:9711: EOF")
	l.Print("http: TLS handshake error from 10.13.76.4:9711: tls: unknown certificate")
	if got := b.String(); got != "http: TLS handshake error from 10.13.76.4:9711: tls: unknown certificate\n" {
		t.Errorf("%q", got)
	}
}
