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
		t.Errorf("%d octets, %v", n, err)
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
		t.Errorf("%d octets of a file that became shorter, %v", n, err)
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
	r := &request{method: "GET", target: "/", proto: "HTTP/1.1", header: header{{"user-agent", "curl/7.68.0"}},
		remote: netip.MustParseAddrPort("10.240.0.46:1234")}
	var out bytes.Buffer
	logNginx(&out, r, &response{body: []byte(nginxWelcome)}, at)
	if want := `10.240.0.46 - - [11/Dec/2020:17:20:04 +0000] "GET / HTTP/1.1" 200 612 "-" "curl/7.68.0" "-"` + "\n"; out.String() != want {
		t.Errorf("got  %swant %s", out.String(), want)
	}
	r.header = header{{"User-Agent", "a\"b\x01ü"}}
	if got, want := combined(r, &response{}, at), `"a\x22b\x01\xC3\xBC"`; !strings.HasSuffix(got, want) {
		t.Errorf("%s does not end in %s", got, want)
	}
}

// A peer that everybody trusts, net/http's client, against our server: methods, bodies, connections.
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

func TestBadRequests(t *testing.T) {
	const post = "POST / HTTP/1.1\r\nHost: a\r\n"
	for raw, want := range map[string]int{
		post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":    400,
		post + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n":    400,
		post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab":                    400,
		post + "Content-Length: 1\r\nContent-Length: 1\r\n\r\na":                     400,
		post + "Content-Length: 1, 1\r\n\r\na":                                       400,
		post + "Content-Length: +1\r\n\r\na":                                         400,
		post + "Content-Length: 0x1\r\n\r\na":                                        400,
		post + "Content-Length:\r\n\r\n":                                             400,
		post + "Content-Length : 1\r\n\r\na":                                         400,
		post + "Content-Length: 99999999999999999999\r\n\r\n":                        400,
		post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n":   400,
		post + "Transfer-Encoding:\r\n\r\n":                                          501,
		post + "Transfer-Encoding: chunked, identity\r\n\r\n":                        501,
		"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":             400,
		post + "Transfer-Encoding: chunked\r\n\r\n-1\r\n":                            400,
		post + "Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n":             400,
		post + "Transfer-Encoding: chunked\r\n\r\n ;\r\n":                            400,
		post + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n":             400,
		post + "Transfer-Encoding: chunked\r\n\r\n7fffffffffffffff\r\n":              413,
		post + "Transfer-Encoding: chunked\r\n\r\n1;x\na\r\n0\r\n\r\n":               400,
		post + "Transfer-Encoding: chunked\r\n\r\n1\r\nab0\r\n\r\n":                  400,
		post + "Transfer-Encoding: chunked\r\n\r\n1;" + strings.Repeat("x", maxHead): 431,
		post + "X: a\rContent-Length: 5\r\n\r\n":                                     400,
		post + "X: a\x00b\r\n\r\n":                                                   400,
		post + " folded\r\n\r\n":                                                     400,
		"GET /" + strings.Repeat("x", maxHead) + " HTTP/1.1\r\nHost: a\r\n\r\n":      431,
		"GET /\x1b HTTP/1.1\r\nHost: a\r\n\r\n":                                      400,
		"GET / HTTP/1.1\r\n\r\n":                                                     400,
		"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n":                               400,
		"GET /\r\n\r\n":                                                                400,
		"G(T / HTTP/1.1\r\nHost: a\r\n\r\n":                                            400,
		"GET / HTTP/2.0\r\nHost: a\r\n\r\n":                                            505,
		"GET / HTTP/1.1\r\nHost: a\r\nbad line\r\n\r\n":                                400,
		"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n":                       400,
		"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n":                413,
		"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n":                 501,
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n":       400,
		"GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", maxHead) + "\r\n\r\n": 431,
	} {
		_, err := readRequest(bufio.NewReader(strings.NewReader(raw)), func() error { return nil })
		var bad *badRequest
		if !errors.As(err, &bad) || bad.status != want {
			t.Errorf("%.60q: %v, want %d", raw, err, want)
		}
	}
}

// FuzzReadRequest: what is read here is, to net/http, the same request, and what follows it on the connection is the same.
func FuzzReadRequest(f *testing.F) {
	f.Add([]byte("GET /a?b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT: v\r\n\r\n"))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n"))
	f.Add([]byte("GET * HTTP/1.0\n\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		ours := bufio.NewReader(bytes.NewReader(raw))
		r, err := readRequest(ours, func() error { return nil })
		if err != nil {
			return
		}
		if len(r.body) > maxBody || strings.ContainsFunc(strings.ReplaceAll(r.dump(), "\r\n", ""), isControl) {
			t.Errorf("%+v", r)
		}
		theirs := bufio.NewReader(bytes.NewReader(bytes.TrimLeft(raw, "\r\n")))
		other, err := http.ReadRequest(theirs)
		if err != nil {
			return // net/http refuses more: nobody can be led astray
		}
		body, err := io.ReadAll(other.Body)
		if err != nil {
			return
		}
		left, _ := io.ReadAll(ours)
		leftThere, _ := io.ReadAll(theirs)
		if other.Method != r.method || !bytes.Equal(body, r.body) || !bytes.Equal(left, leftThere) {
			t.Errorf("%q: here %s %q and then %q, in net/http %s %q and then %q", raw, r.method, r.body, left, other.Method, body, leftThere)
		}
	})
}

// TestResponseIsOneResponse: no text of a request becomes a line of the response's head.
func TestResponseIsOneResponse(t *testing.T) {
	s := webServer{root: t.TempDir(), server: "x"}
	r := &request{method: "GET", proto: "HTTP/1.1", host: "a", path: "/\r\nSet-Cookie: a=b/.."}
	resp := s.answer(r)
	if resp.status != 301 {
		t.Fatalf("status %d", resp.status)
	}
	for _, resp := range []response{resp, {status: 302, header: header{{"Location", "/\r\nSet-Cookie: a=b"}}}} {
		wire := appendResponse(nil, r, &resp, true, time.Now())
		if read, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(wire)), nil); err != nil || read.Header.Get("Set-Cookie") != "" {
			t.Errorf("%v: %q", err, wire)
		}
	}
}
