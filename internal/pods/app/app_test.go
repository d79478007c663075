package app

import (
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
		if want == "" && (!errors.Is(err, errUnknownImage) || !strings.Contains(err.Error(), "erjosito/whereami, ")) {
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
		if len(a.Entrypoint)+len(a.Cmd) == 0 {
			t.Errorf("%s has nothing to run", a.Name)
		}
	}
	if len(nginxWelcome) != 612 {
		t.Errorf("nginx's page has %d bytes", len(nginxWelcome))
	}
	if !slices.IsSorted(Images()) || !slices.IsSorted(Servers()) {
		t.Error("not sorted")
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

// freePort returns a TCP port that no process uses.
func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", ":0") // programs listen at all addresses
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
		if resp.status != tt.status || resp.header["Content-Type"] != tt.kind || !strings.Contains(string(resp.body), tt.body) {
			t.Errorf("%s %s: %d %v %s", tt.method, tt.target, resp.status, resp.header, resp.body)
		}
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
	// What never ends and prints without end is cut off; what stays behind holds nothing up.
	for command, want := range map[string]string{"exec cat /dev/zero": `"error"`, "sleep 300 & echo hi": `"output": "hi\n"`} {
		body := string(shell(t.Context(), command).body)
		if len(body) > 10*shellOutput || !strings.Contains(body, want) {
			t.Errorf("%s: %d bytes, %.200q", command, len(body), body)
		}
	}
	if status, _ := get(t, url+"/redirect?location=/echo&code=307"); status != 307 {
		t.Error(status)
	}
	if got := answerUDP("clientip", "1.2.3.4:5"); got != "1.2.3.4:5" {
		t.Error(got)
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
