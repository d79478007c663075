package httprouting

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"testing"
	"time"

	"packetwalk.dev/internal/addons/ingress"
)

// BenchmarkProxy is a request over a connection that stays, to a pod on the loopback, beside Go's reverse proxy as it comes. The access log
// is written to a file, a system call a line.
func BenchmarkProxy(b *testing.B) {
	pod := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	defer pod.Close()
	target, err := url.Parse(pod.URL)
	if err != nil {
		b.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	s := &site{}
	own, err := ownCertificate(time.Now())
	if err != nil {
		b.Fatal(err)
	}
	s.proxy = newProxy(&s.table, own, null, nil)
	s.table.Store(&ingress.Table{Hosts: map[string]*ingress.Host{"shop.example.org": {Name: "shop.example.org",
		Routes: []ingress.Route{route(pod.URL)}}}})
	plain := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target); r.SetXForwarded() },
		Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: keptIdle},
	}
	for name, handler := range map[string]http.Handler{"ingress": s.proxy, "plain": plain} {
		b.Run(name, func(b *testing.B) {
			server := httptest.NewServer(handler)
			defer server.Close()
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			reader := bufio.NewReader(conn)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: shop.example.org\r\n\r\n"); err != nil {
					b.Fatal(err)
				}
				resp, err := http.ReadResponse(reader, nil)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
					b.Fatal(resp.Status, err)
				}
			}
		})
	}
}
