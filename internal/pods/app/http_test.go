package app

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// serving answers with h until the test ends and gives the address.
func serving(t *testing.T, h handler) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, ln, h) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + ln.Addr().String()
}

// A file of any size goes out piece by piece; one that becomes shorter meanwhile ends the connection, because its length was told.
func TestBigFile(t *testing.T) {
	const size = 256 << 20
	name := path.Join(t.TempDir(), "big.txt")
	if err := os.WriteFile(name, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(name, size); err != nil {
		t.Fatal(err)
	}
	s := webServer{root: path.Dir(name)}
	url := serving(t, s.answer) + "/big.txt"
	if resp, err := http.Head(url); err != nil || resp.ContentLength != size {
		t.Fatalf("%+v, %v", resp, err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	runtime.ReadMemStats(&after)
	if err != nil || n != size {
		t.Errorf("%d bytes, %v", n, err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > size/8 {
		t.Errorf("a file of %d MiB took %d MiB of memory", size>>20, used>>20)
	}
	if resp, err = http.Get(url); err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := os.Truncate(name, size/2); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%d bytes of a file that became shorter, %v", n, err)
	}
}

// Echo serves so many connections at once; the next waits for the end of one.
func TestEchoIsBounded(t *testing.T) {
	defer func(n int) { maxConnections = n }(maxConnections)
	maxConnections = 2
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go echoTCP(ln)
	dial := func() net.Conn {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		return c
	}
	hears := func(c net.Conn, patience time.Duration) error {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		_, err := io.ReadFull(c, make([]byte, 5))
		return err
	}
	first, second := dial(), dial()
	if err := errors.Join(hears(first, 10*time.Second), hears(second, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	third := dial()
	if err := hears(third, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the third of two connections: %v", err)
	}
	first.Close()
	if err := hears(third, 10*time.Second); err != nil {
		t.Error("after the end of one: ", err)
	}
}

// The articles' own log line.
func TestAccessLog(t *testing.T) {
	at := time.Date(2020, 12, 11, 17, 20, 4, 0, time.UTC)
	r := &request{method: "GET", target: "/", proto: "HTTP/1.1", header: http.Header{"User-Agent": {"curl/7.68.0"}},
		remote: netip.MustParseAddrPort("10.240.0.46:1234")}
	var out bytes.Buffer
	logNginx(&out, r, &response{body: []byte(nginxWelcome)}, at)
	if want := `10.240.0.46 - - [11/Dec/2020:17:20:04 +0000] "GET / HTTP/1.1" 200 612 "-" "curl/7.68.0" "-"` + "\n"; out.String() != want {
		t.Errorf("got  %swant %s", out.String(), want)
	}
	r.header = http.Header{"User-Agent": {"a\"b\x01ü"}}
	if got, want := combined(r, &response{}, at), `"a\x22b\x01\xC3\xBC"`; !strings.HasSuffix(got, want) {
		t.Errorf("%s does not end in %s", got, want)
	}
}

// TestServerSpeaksHTTP tests our server against a widely trusted peer, net/http's client: methods, bodies, connections.
func TestServerSpeaksHTTP(t *testing.T) {
	launch(t, "echo-test")
	url := "http://" + testAddress
	for _, method := range []string{"GET", "HEAD", "POST", "OPTIONS"} {
		status, body := do(t, method, url+"/x", strings.NewReader("payload"))
		if status != 200 || method != "HEAD" && !strings.HasSuffix(body, "payload") || method == "HEAD" && body != "" {
			t.Errorf("%s: %d %q", method, status, body)
		}
	}
	// io.NopCloser hides the length, so the body is chunked.
	if status, body := do(t, "POST", url, io.NopCloser(strings.NewReader(strings.Repeat("x", 100000)))); status != 200 || len(body) < 100000 {
		t.Errorf("chunked: %d, %d bytes", status, len(body))
	}
	if status, body := do(t, "POST", url, strings.NewReader("awaited"), "Expect", "100-continue"); status != 200 ||
		!strings.HasSuffix(body, "awaited") {
		t.Errorf("continue: %d %q", status, body)
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.0\r\n\r\n")
	in := bufio.NewReader(conn)
	for _, want := range []string{"GET /1", "GET /2"} {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, _ := io.ReadAll(resp.Body); !strings.HasPrefix(string(body), want) {
			t.Errorf("pipelined: %q", body)
		}
	}
	if _, err := in.ReadByte(); err != io.EOF {
		t.Errorf("HTTP/1.0 connection stays open: %v", err)
	}
}

func init() {
	catalog = append(catalog, App{Name: "echo-test", Images: []string{"test/echo"}, Entrypoint: []string{"/echo-test"},
		Programs: []Program{{"/echo-test",
			func(ctx context.Context, p *Process) int {
				ln, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					return 1
				}
				testAddress = ln.Addr().String()
				p.Ready()
				if serve(ctx, ln, func(r *request) response { return text(200, r.dump()+"\r\n\r\n"+string(r.body)) }) != nil {
					return 1
				}
				return 0
			}}}})
}

var testAddress string

// TestBodyIsBounded: a body that is too long is refused, and none is kept.
func TestBodyIsBounded(t *testing.T) {
	url := serving(t, func(r *request) response { return text(200, strconv.Itoa(len(r.body))) })
	for size, want := range map[int]int{maxBody: 200, maxBody + 1: 413} {
		if status, body := do(t, "POST", url, io.NopCloser(strings.NewReader(strings.Repeat("x", size)))); status != want {
			t.Errorf("%d bytes: %d %q", size, status, body)
		}
	}
}

// TestResponseIsOneResponse: no text of a request becomes a line of the response's head.
func TestResponseIsOneResponse(t *testing.T) {
	s := webServer{root: t.TempDir(), server: "x"}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for name, h := range map[string]handler{
		"a path": func(r *request) response { r.path = "/\r\nSet-Cookie: a=b/.."; return s.answer(r) },
		"a field": func(*request) response {
			return response{status: 302, header: map[string]string{"Location": "/\r\nSet-Cookie: a=b"}}
		},
	} {
		resp, err := client.Get(serving(t, h))
		if err != nil || resp.Header.Get("Set-Cookie") != "" || resp.StatusCode < 300 {
			t.Errorf("%s: %+v, %v", name, resp, err)
			continue
		}
		resp.Body.Close()
	}
}
