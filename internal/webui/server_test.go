package webui

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/answer/picture"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
)

// fakeSubject answers with its question.
type fakeSubject struct{}

func (fakeSubject) Network(_ context.Context, open []string) (*Network, error) {
	n := NewNetwork(&picture.Picture{})
	n.Subject = strings.Join(open, " ")
	return n, nil
}

func (fakeSubject) Answer(_ context.Context, q Question, _ []string) (*Answer, error) {
	switch q.From {
	case "bad":
		return nil, &QuestionError{errors.New("--from bad: no such end\nuse another")}
	case "broken":
		return nil, errors.New("read node n: connection refused")
	}
	return &Answer{Kind: "Answer", Question: q, Picture: &picture.Picture{}, Walk: json.RawMessage("{}")}, nil
}

func (fakeSubject) Machine(_ context.Context, id string, r Reading) (*Machine, error) {
	if id != "node/n" {
		return &Machine{Version: 1}, nil
	}
	if !r.Start {
		return &Machine{Unread: "node/n is not read", Readable: true}, nil
	}
	table := &netfilter.Table{Name: "nat", Dialect: netfilter.IPTablesNFT}
	chain := &netfilter.Chain{Table: table, Name: "KUBE-SVC-X", Rules: []netfilter.Rule{
		{Number: 1, Text: "-j KUBE-MARK-MASQ", Counters: &netfilter.Counters{Packets: 3, Bytes: 180}},
		{Number: 2, Text: "-m comment --comment <script>alert(1)</script> -j ACCEPT"},
	}}
	table.Chains = []*netfilter.Chain{chain}
	return &Machine{
		Host:   &snapshot.Host{Name: id, FIB: &fib.State{}, Rules: &netfilter.Ruleset{Tables: []*netfilter.Table{table}}},
		Owners: explain.NewOwners(snapshot.Objects{}, nil), Version: 7,
	}, nil
}

func newTestServer(t *testing.T) *Server {
	t.Helper()
	return NewServer(fakeSubject{}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4321})
}

// TestRequests: data needs the token, and requests that another site could cause are refused.
func TestRequests(t *testing.T) {
	s := newTestServer(t)
	const own = "127.0.0.1:4321"
	for _, c := range []struct {
		name, method, path, host, origin, token string
		status                                  int
		body                                    string
	}{
		{"page", "GET", "/", own, "", "", 200, "page.js"},
		{"script", "GET", "/page.js", own, "", "", 200, ""},
		{"network", "GET", "/api/v1/network?open=a&open=b", own, "", s.token, 200, `"subject":"a b"`},
		{"same origin", "GET", "/api/v1/network", own, "http://" + own, s.token, 200, ""},
		{"answer", "GET", "/api/v1/answer?from=a&to=b&proto=udp", own, "", s.token, 200, `"question":{"from":"a","to":"b","proto":"udp"}`},
		{"no token", "GET", "/api/v1/network", own, "", "", 401, "token is missing"},
		{"wrong token", "GET", "/api/v1/answer?from=a&to=b", own, "", s.token + "x", 401, "token is missing"},
		{"token in the query", "GET", "/api/v1/network?token=" + s.token, own, "", "", 401, ""},
		{"DNS rebinding", "GET", "/api/v1/network", "evil.example:4321", "", s.token, 421, "unknown host"},
		{"DNS rebinding of the page", "GET", "/", "evil.example:4321", "", "", 421, ""},
		{"localhost", "GET", "/", "localhost:4321", "", "", 421, ""},
		{"other port", "GET", "/", "127.0.0.1:80", "", "", 421, ""},
		{"other origin", "GET", "/api/v1/network", own, "https://evil.example", s.token, 403, ""},
		{"origin null", "GET", "/api/v1/network", own, "null", s.token, 403, ""},
		{"post", "POST", "/api/v1/answer?from=a&to=b", own, "", s.token, 405, ""},
		{"delete", "DELETE", "/api/v1/network", own, "", s.token, 405, ""},
		{"unknown path", "GET", "/api/v1/delete", own, "", s.token, 404, ""},
		{"send by a link", "GET", "/api/v1/send?from=a&to=b", own, "", s.token, 405, ""},
		{"send without the token", "POST", "/api/v1/send?from=a&to=b", own, "", "", 401, ""},
		{"send of another site", "POST", "/api/v1/send?from=a&to=b", own, "https://evil.example", s.token, 403, ""},
		{"send", "POST", "/api/v1/send?from=a&to=b", own, "http://" + own, s.token, 200, `"question":{"from":"a","to":"b","live":true}`},
		{"not sent by a walk", "GET", "/api/v1/answer?from=a&to=b&live=true", own, "", s.token, 200, `"question":{"from":"a","to":"b"}`},
		{"stream of what does not change", "GET", "/api/v1/network?stream=1&open=a", own, "", s.token, 200, `"subject":"a"`},
		{"bundle's directory", "GET", "/bundle/page.js", own, "", "", 404, ""},
		{"long question", "GET", "/api/v1/answer?from=" + strings.Repeat("a", 20<<10), own, "", s.token, 414, ""},
		{"bad question", "GET", "/api/v1/answer?from=bad", own, "", s.token, 400, `["--from bad: no such end","use another"]`},
		{"rules", "GET", "/api/v1/rules?host=node/n&start=1", own, "", s.token, 200, `"chains":[{"name":"KUBE-SVC-X","rules":2}]`},
		{"rules unread", "GET", "/api/v1/rules?host=node/n", own, "", s.token, 200, `"unread":"node/n is not read","readable":true`},
		{"chain", "GET", "/api/v1/rules/chain?host=node/n&start=1&version=7&table=0&chain=0", own, "", s.token, 200, `"counted":{"packets":3,"bytes":180}`},
		{"chain without a table", "GET", "/api/v1/rules/chain?host=node/n&start=1&version=7&table=9", own, "", s.token, 404, "no such chain"},
		{"chain before the first", "GET", "/api/v1/rules/chain?host=node/n&start=1&version=7&chain=-1&table=-5", own, "", s.token, 404, "no such chain"},
		{"chain of an old state", "GET", "/api/v1/rules/chain?host=node/n&start=1&version=6&table=9", own, "", s.token, 200, `"version":7`},
		{"find", "GET", "/api/v1/rules/find?host=node/n&start=1&text=mark-masq", own, "", s.token, 200, `"hits":[{"table":0,"chain":0,"number":1,"text":"-j KUBE-MARK-MASQ"}]`},
		{"details", "GET", "/api/v1/details?id=node/n&start=1", own, "", s.token, 200, `"rows":[["ip nat","1","2"]]`},
		{"details without the token", "GET", "/api/v1/details?id=node/n", own, "", "", 401, ""},
		{"failure", "GET", "/api/v1/answer?from=broken", own, "", s.token, 500, "connection refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(c.method, "http://"+own+c.path, nil)
			r.Host = c.host
			if c.origin != "" {
				r.Header.Set("Origin", c.origin)
			}
			if c.token != "" {
				r.Header.Set(tokenHeader, c.token)
			}
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.body) {
				t.Errorf("status %d, body %.200q; want status %d and %q", w.Code, w.Body, c.status, c.body)
			}
			h := w.Header()
			const want = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
			if h.Get("Content-Security-Policy") != want || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("headers %v", h)
			}
		})
	}
}

// TestServe: the server is reached on this machine's own address, and by the printed address's token.
func TestServe(t *testing.T) {
	l, err := Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	if !l.Addr().(*net.TCPAddr).IP.IsLoopback() {
		t.Fatalf("listens on %s", l.Addr())
	}
	s := NewServer(fakeSubject{}, l.Addr())
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	address, token, ok := strings.Cut(s.URL(), "#token=")
	if !ok || len(token) < 20 {
		t.Fatalf("address %q", s.URL())
	}
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"api/v1/network", nil)
	request.Header.Set(tokenHeader, token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || !strings.Contains(string(body), `"kind":"Network"`) {
		t.Errorf("%s: %s, %v", response.Status, body, err)
	}
	if NewServer(fakeSubject{}, l.Addr()).token == token {
		t.Error("two servers have one token")
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestPage: the page has no inline script, style or handler, which the policy would refuse.
func TestPage(t *testing.T) {
	page := string(mustRead("index.html"))
	for _, word := range []string{"<style", "style=", "onload", "javascript:", "http:", "https:"} {
		if strings.Contains(page, word) {
			t.Errorf("the page has %q", word)
		}
	}
	for _, word := range []string{"innerHTML", "eval(", "document.write"} {
		if word != "innerHTML" && strings.Contains(string(mustRead("page.js")), word) {
			t.Errorf("the script has %q", word)
		}
	}
}

// changingSubject is a network that changes at each look, until it fails.
type changingSubject struct {
	fakeSubject
	looks int
}

func (c *changingSubject) Network(_ context.Context, _ []string) (*Network, error) {
	if c.looks++; c.looks > 3 {
		return nil, errors.New("read lab: gone\x1b")
	}
	n := NewNetwork(&picture.Picture{})
	n.Live, n.Subject = true, strings.Repeat("x", c.looks/2) // the first look differs from the next ones
	return n, nil
}

// TestStream: a stream has a document for each change and none in between, and ends with the error.
func TestStream(t *testing.T) {
	s := NewServer(&changingSubject{}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4321})
	s.pace = time.Millisecond
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:4321/api/v1/network?stream=1", nil)
	r.Host = "127.0.0.1:4321"
	r.Header.Set(tokenHeader, s.token)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	lines := strings.Split(strings.TrimSpace(w.Body.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[1], `"subject":"x"`) || lines[2] != `{"errors":["read lab: gone\\u001b"]}` {
		t.Errorf("%d lines:\n%s", len(lines), w.Body)
	}
}
