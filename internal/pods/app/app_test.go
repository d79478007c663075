package app

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestResolve(t *testing.T) {
	for image, want := range map[string]string{
		"nginx": "nginx", "nginx:1.25": "nginx", "nginx@sha256:0123": "nginx", "nginx:1.25@sha256:0123": "nginx",
		"docker.io/nginx": "nginx", "docker.io/library/nginx:1.25": "nginx", "library/nginx": "nginx",
		"erjosito/whereami:1.3": "whereami", "docker.io/erjosito/whereami": "whereami",
		"gcr.io/kuar-demo/kuard-amd64:blue": "kuard", "registry.k8s.io/pause:3.9": "pause",
		"registry.k8s.io/e2e-test-images/agnhost:2.53": "agnhost", "mcr.microsoft.com/mirror/docker/library/ubuntu:22.04": "ubuntu",
		"localhost:5000/nginx": "", "example.com/nginx": "", "library/erjosito/whereami": "whereami", "": "", "nginxx": "", "NGINX": "",
	} {
		got, err := Resolve(image)
		if got.Name != want || (err != nil) != (want == "") {
			t.Errorf("%q is %q, %v; want %q", image, got.Name, err, want)
		}
		if want == "" && (!errors.Is(err, ErrUnknownImage) || !strings.Contains(err.Error(), "erjosito/whereami, ")) {
			t.Errorf("%q: %v", image, err)
		}
	}
}

func TestCatalogIsUnique(t *testing.T) {
	seen := map[string]string{}
	see := func(kind, key, owner string) {
		if other, ok := seen[kind+key]; ok {
			t.Errorf("%s %q is of %s and of %s", kind, key, other, owner)
		}
		seen[kind+key] = owner
	}
	for _, a := range catalog {
		see("name", a.Name, a.Name)
		for _, image := range a.Images {
			see("image", image, a.Name)
			if got, err := Resolve(image); err != nil || got.Name != a.Name {
				t.Errorf("%s: %s, %v", image, got.Name, err)
			}
		}
		for _, p := range a.Programs {
			see("program", path.Base(p.Path), a.Name)
		}
		if len(a.Argv(nil, nil)) == 0 {
			t.Errorf("%s has nothing to run", a.Name)
		}
	}
	if len(nginxWelcome) != 612 {
		t.Errorf("nginx's page has %d bytes", len(nginxWelcome))
	}
	if !slices.IsSorted(Images()) || !slices.IsSorted(Names()) {
		t.Error("not sorted")
	}
}

func TestArgv(t *testing.T) {
	curl, _ := ByName("curl")
	agnhost, _ := ByName("agnhost")
	for _, tt := range []struct {
		app           App
		command, args []string
		want          string
	}{
		{agnhost, nil, nil, "/agnhost pause"},
		{agnhost, nil, []string{"netexec"}, "/agnhost netexec"},
		{agnhost, []string{"sh"}, nil, "sh"},
		{agnhost, []string{"sh", "-c"}, []string{"x"}, "sh -c x"},
		{curl, nil, []string{"-s", "x"}, "curl -s x"},
	} {
		if got := strings.Join(tt.app.Argv(tt.command, tt.args), " "); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
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

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// freePort is a TCP port that nobody has on the loopback.
func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

// launch runs a program until the test ends and returns its URL and its output; %d in args is its port.
func launch(t *testing.T, name string, args ...string) (url string, out *syncBuffer) {
	t.Helper()
	program, ok := FindProgram(name)
	if !ok {
		t.Fatal("no program", name)
	}
	port := freePort(t)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "%d", fmt.Sprint(port))
	}
	out = &syncBuffer{}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan int, 1)
	go func() {
		done <- program.Run(ctx, &Process{Args: append([]string{name}, args...), Env: []string{"A=b"}, Stdout: out, Stderr: out,
			Ready: sync.OnceFunc(func() { close(ready) })})
	}()
	select {
	case <-ready:
	case code := <-done:
		t.Fatalf("exit status %d: %s", code, out)
	}
	t.Cleanup(func() {
		cancel()
		select {
		case code := <-done:
			if code != 0 {
				t.Errorf("exit status %d: %s", code, out)
			}
		case <-time.After(10 * time.Second):
			t.Error("does not end")
		}
	})
	return fmt.Sprintf("http://127.0.0.1:%d", port), out
}

func get(t *testing.T, url string, fields ...string) (int, string) {
	t.Helper()
	return do(t, "GET", url, nil, fields...)
}

func do(t *testing.T, method, url string, body io.Reader, fields ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("User-Agent", "test/1.0")
	for i := 0; i < len(fields); i += 2 {
		req.Header.Add(fields[i], fields[i+1])
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestWhereami(t *testing.T) {
	url, out := launch(t, "whereami", "--port=%d")
	status, body := get(t, url+"/some?path", "X-Forwarded-For", "198.51.100.7", "X-Forwarded-For", "10.0.0.1")
	var got whereamiAnswer
	if err := json.Unmarshal([]byte(body), &got); err != nil || status != 200 {
		t.Fatal(status, err, body)
	}
	name, _ := os.Hostname()
	if got.YourPort == 0 || got.YourPort == got.MyPort {
		t.Errorf("ports %+v", got)
	}
	want := whereamiAnswer{Hostname: name, MyAddress: "127.0.0.1", MyPort: got.MyPort, YourAddress: "127.0.0.1", YourPort: got.YourPort,
		Host: strings.TrimPrefix(url, "http://"), ForwardedFor: "198.51.100.7, 10.0.0.1", Method: "GET", Path: "/some?path", Browser: "test/1.0"}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if !strings.Contains(out.String(), `"GET /some?path HTTP/1.1" 200 `) {
		t.Errorf("log %q", out)
	}
}

func TestIfconfig(t *testing.T) {
	url, _ := launch(t, "echoip", "--port=%d")
	for path, want := range map[string]string{"/": "127.0.0.1\n", "/ip": "127.0.0.1\n", "/health": `{"status":"OK"}`} {
		if status, got := get(t, url+path); status != 200 || got != want {
			t.Errorf("%s: %d %q", path, status, got)
		}
	}
	_, body := get(t, url+"/json")
	var got struct {
		IP        string
		IPDecimal uint64 `json:"ip_decimal"`
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || got.IP != "127.0.0.1" || got.IPDecimal != 2130706433 {
		t.Error(err, body)
	}
	if status, _ := get(t, url+"/nosuch"); status != 404 {
		t.Error(status)
	}
	port := url[strings.LastIndexByte(url, ':')+1:]
	if _, body := get(t, url+"/port/"+port); !strings.Contains(body, `"reachable": true`) {
		t.Error(body)
	}
	if got := decimal(netip.MustParseAddr("2001:db8::1")); got != "42540766411282592856903984951653826561" {
		t.Error(got)
	}
}

func TestKuard(t *testing.T) {
	url, out := launch(t, "kuard", "--address=:%d")
	_, body := get(t, url+"/", "X-Probe", `</script>"`)
	address := ""
	for line := range strings.Lines(body) {
		if data, ok := strings.CutPrefix(line, "var pageContext = "); ok {
			var c kuardContext
			if err := json.Unmarshal([]byte(data), &c); err != nil {
				t.Fatal(err)
			}
			address = c.RequestAddr
			if !strings.HasSuffix(strings.TrimSpace(data), `"requestAddr":"`+address+`"}`) ||
				!strings.HasPrefix(c.RequestDump, "GET / HTTP/1.1\r\nHost: ") {
				t.Errorf("context %s", data)
			}
		}
	}
	if ap, err := netip.ParseAddrPort(address); err != nil || ap.Addr().String() != "127.0.0.1" {
		t.Errorf("requestAddr %q", address)
	}
	if strings.Count(body, "</script>") != 1 {
		t.Error("a header field's value gets into the page")
	}
	if !strings.Contains(out.String(), address+" GET /\n") {
		t.Errorf("log %q", out)
	}
	check := func(path string, status int, want string) {
		t.Helper()
		if got, body := get(t, url+path); got != status || !strings.Contains(body, want) {
			t.Errorf("%s: %d %q", path, got, body)
		}
	}
	check("/healthy", 200, "ok")
	do(t, "PUT", url+"/healthy/api", strings.NewReader(`{"failNext":1}`))
	check("/healthy", 500, "fail, 0 left")
	check("/healthy", 200, "ok")
	check("/ready", 200, "ok")
	do(t, "PUT", url+"/ready/api", strings.NewReader(`{"failNext":-1}`))
	check("/ready", 500, "fail, permanent")
	check("/healthy/api", 200, `"code": 500`)
	check("/env/api", 200, `"A": "b"`)
	check("/nosuch", 404, "")
}

func TestWebServer(t *testing.T) {
	root := t.TempDir()
	for name, data := range map[string]string{"index.html": nginxWelcome, "a.css": "x", "sub/index.html": "sub"} {
		os.MkdirAll(path.Dir(path.Join(root, name)), 0o755)
		if err := os.WriteFile(path.Join(root, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := webServer{root: root, server: nginxVersion}
	for _, tt := range []struct {
		method, target string
		status         int
		kind, body     string
	}{
		{"GET", "/", 0, "text/html", nginxWelcome},
		{"GET", "/a.css", 0, "text/css", "x"},
		{"GET", "/sub", 301, "text/html", "301 Moved Permanently"},
		{"GET", "/sub/", 0, "text/html", "sub"},
		{"GET", "/nosuch", 404, "text/html", "<center>nginx/"},
		{"GET", "/../../../../etc/passwd", 404, "text/html", "404 Not Found"},
		{"GET", "/a.css/x", 404, "text/html", "404 Not Found"},
		{"POST", "/", 405, "text/html", "405 Not Allowed"},
	} {
		resp := s.answer(&request{method: tt.method, path: tt.target, host: "h"})
		if resp.file != nil {
			resp.body, _ = io.ReadAll(resp.file)
			resp.file.Close()
		}
		if resp.status != tt.status || resp.header.get("Content-Type") != tt.kind || !strings.Contains(string(resp.body), tt.body) {
			t.Errorf("%s %s: %d %v %s", tt.method, tt.target, resp.status, resp.header, resp.body)
		}
	}
}

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

func TestNetexec(t *testing.T) {
	url, _ := launch(t, "agnhost", "netexec", "--http-port=%d", "--udp-port", "-1")
	name, _ := os.Hostname()
	for target, want := range map[string]string{"/hostname": name, "/echo?msg=a+b": "a b", "/clientip": "127.0.0.1:",
		"/shell?cmd=echo+hi": `"output": "hi\n"`} {
		if status, body := get(t, url+target); status != 200 || !strings.HasPrefix(body, want) && !strings.Contains(body, want) {
			t.Errorf("%s: %d %q", target, status, body)
		}
	}
	if status, _ := get(t, url+"/redirect?location=/echo&code=307"); status != 307 {
		t.Error(status)
	}
	if got := answerUDP("clientip", "1.2.3.4:5"); got != "1.2.3.4:5" {
		t.Error(got)
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

func TestFollowLog(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.RequestURI() {
		case "/ip-masq-agent/log?after=0":
			fmt.Fprint(w, "7 one line\n8 another\n")
		case "/ip-masq-agent/log?after=8": // nothing came
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	var out bytes.Buffer
	last, err := followLog(t.Context(), address, &out, "0")
	if err != nil || last != "8" || out.String() != "one line\nanother\n" {
		t.Errorf("printed %q, last %s, %v", out.String(), last, err)
	}
	if last, err := followLog(t.Context(), address, &out, "8"); err != nil || last != "8" {
		t.Errorf("no new line: last %s, %v", last, err)
	}
	if _, err := followLog(t.Context(), address, &out, "9"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("no log: %v", err)
	}
}
