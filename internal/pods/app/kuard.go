package app

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path"
	"sort"
	"strings"
	"sync"
	"time"
)

// kuard is the demo application of "Kubernetes Up and Running", github.com/kubernetes-up-and-running/kuard, in what can be asked of it over
// HTTP: the page with its context, /env/api, /healthy and /ready, which fail on request, /fs/.
type kuard struct {
	healthy, ready kuardProbe
	env            []string
	args           []string
}

func runKuard(ctx context.Context, p *Process) int {
	k := &kuard{env: p.Env, args: p.Args}
	port := 8080
	for i, arg := range p.Args { // --address=:9090
		address, ok := strings.CutPrefix(arg, "--address=")
		if !ok && arg == "--address" && i+1 < len(p.Args) {
			address, ok = p.Args[i+1], true
		}
		if ok {
			port = atoiOr(address[strings.LastIndexByte(address, ':')+1:], port)
		}
	}
	fmt.Fprintf(p.Stdout, "%s Starting kuard version: %s\n", kuardTime(), kuardVersion)
	fmt.Fprintf(p.Stdout, "%s Serving on HTTP on :%d\n", kuardTime(), port)
	return listenHTTP(ctx, p, port, func(r *request) response {
		fmt.Fprintf(p.Stdout, "%s %s %s %s\n", kuardTime(), r.remote, logged(r.method), logged(r.target))
		return k.answer(r)
	})
}

const kuardVersion = "v0.10.0-blue"

func kuardTime() string { return time.Now().UTC().Format("2006/01/02 15:04:05") }

// kuardContext is the page's context, which the original puts into a script in the page.
type kuardContext struct {
	Hostname     string   `json:"hostname"`
	Addrs        []string `json:"addrs"`
	Version      string   `json:"version"`
	VersionColor string   `json:"versionColor"`
	RequestDump  string   `json:"requestDump"`
	RequestProto string   `json:"requestProto"`
	RequestAddr  string   `json:"requestAddr"`
}

func (k *kuard) answer(r *request) response {
	switch {
	case r.method != "GET" && r.method != "PUT" && r.method != "HEAD":
		return text(405, "Method Not Allowed\n")
	case r.path == "/":
		return k.page(r)
	case r.path == "/env/api" || r.path == "/env":
		return k.environment()
	case r.path == "/healthy" || r.path == "/ready":
		return k.probe(r.path).answer()
	case r.path == "/healthy/api" || r.path == "/ready/api":
		return k.probe(path.Dir(r.path)).configure(r)
	case strings.HasPrefix(r.path, "/fs/"):
		return serveFile("/", strings.TrimPrefix(r.path, "/fs"))
	}
	return text(404, "404 page not found\n")
}

func (k *kuard) page(r *request) response {
	hostname, _ := os.Hostname()
	c := kuardContext{Hostname: hostname, Addrs: ownIPv4(), Version: kuardVersion, VersionColor: "hsl(339,100%,50%)",
		RequestDump: r.dump(), RequestProto: r.proto, RequestAddr: r.remote.String()}
	data, err := json.Marshal(c)
	if err != nil {
		return text(500, err.Error())
	}
	// The original's client reads the address last on the one line, which the article's grep shows.
	const page = `<!doctype html>

<html lang="en">
<head>
  <meta charset="utf-8">

  <title>KUAR Demo</title>

  <script>
var pageContext = %s
  </script>
</head>

<body>
  <h1>%s</h1>
  <dl>
    <dt>Serving on</dt><dd>%s</dd>
    <dt>Client addr</dt><dd>%s</dd>
    <dt>Request</dt><dd><pre>%s</pre></dd>
  </dl>
</body>
</html>
`
	return content("text/html; charset=utf-8", fmt.Appendf(nil, page, data, escapeHTML(hostname), strings.Join(c.Addrs, " "), c.RequestAddr,
		escapeHTML(c.RequestDump)))
}

var escapeHTML = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;").Replace

// ownIPv4 returns the addresses of the interfaces but the loopback's.
func ownIPv4() []string {
	addresses := []string{}
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		if err == nil && prefix.Addr().Is4() && !prefix.Addr().IsLoopback() {
			addresses = append(addresses, prefix.Addr().String())
		}
	}
	return addresses
}

func (k *kuard) environment() response {
	env := map[string]string{}
	for _, pair := range k.env {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	return jsonResponse(map[string]any{"commandLine": k.args, "env": env})
}

func (k *kuard) probe(path string) *kuardProbe {
	if path == "/healthy" {
		return &k.healthy
	}
	return &k.ready
}

// A kuardProbe answers ok, or fails the next so many times: for ever if negative.
type kuardProbe struct {
	mu       sync.Mutex
	failNext int
	history  []kuardAnswer // the last twenty
}

type kuardAnswer struct {
	ID   int    `json:"id"`
	When string `json:"when"`
	Code int    `json:"code"`
}

func (p *kuardProbe) answer() response {
	p.mu.Lock()
	defer p.mu.Unlock()
	resp := text(200, "ok")
	switch {
	case p.failNext > 0:
		p.failNext--
		resp = text(500, fmt.Sprintf("fail, %d left", p.failNext))
	case p.failNext < 0:
		resp = text(500, "fail, permanent")
	}
	id := 1
	if n := len(p.history); n > 0 {
		id = p.history[n-1].ID + 1
	}
	p.history = append(p.history, kuardAnswer{id, time.Now().UTC().Format(time.RFC3339), resp.status})
	p.history = p.history[max(0, len(p.history)-20):]
	return resp
}

func (p *kuardProbe) configure(r *request) response {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.method == "PUT" {
		var c struct {
			FailNext int `json:"failNext"`
		}
		if err := json.Unmarshal(r.body, &c); err != nil {
			return text(400, err.Error()+"\n")
		}
		p.failNext = c.FailNext
	}
	newestFirst := append([]kuardAnswer{}, p.history...)
	sort.Slice(newestFirst, func(i, j int) bool { return newestFirst[i].ID > newestFirst[j].ID })
	return jsonResponse(map[string]any{"failNext": p.failNext, "history": newestFirst})
}
