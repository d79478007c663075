package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"packetwalk.dev/internal/base/serve"
)

const ingressWorld = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: erjosito/whereami}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec:
  ingressClassName: addon-http-application-routing
  rules:
  - host: web.example.org
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
`

const (
	loadSeconds = 3
	loadClients = 16 // connections that are asked over one request after another
	plainProxy  = "192.168.204.2"
)

// benchIngress measures requests per second of a host on the internet to two pods: by the cluster's load balancer and ingress controller,
// and by Go's own reverse proxy in a namespace that is joined to the very same client and pods by nothing but veth pairs, in turns.
func benchIngress(n int) (err error) {
	l, err := makeLab("ingress", oneNode+"spec: {addons: [http_application_routing]}\n", ingressWorld)
	defer l.end(&err)
	if err != nil {
		return err
	}
	if _, err := l.kubectl("rollout", "status", "deployment/web", "--timeout=60s"); err != nil {
		return err
	}
	address, err := l.waitIngress("web")
	if err != nil {
		return err
	}
	stop, err := l.startPlainProxy()
	defer l.unjoin()
	if err != nil {
		return err
	}
	defer stop()
	return beside(n, "1/s",
		figure{"requests, load balancer and ingress controller", func() (float64, error) { return l.load(address) }},
		figure{"requests, Go's reverse proxy in a plain namespace", func() (float64, error) { return l.load(plainProxy) }})
}

// waitIngress waits until requests for the Ingress's host are answered by its pods, and gives its address.
func (l *lab) waitIngress(name string) (string, error) {
	var out string
	for range 300 {
		address, err := l.kubectl("get", "ingress", name, "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
		if err != nil {
			return "", err
		}
		if address != "" {
			out, _ = l.ssh(internetHost, "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "2", "-H", "Host: web.example.org",
				"http://"+address)
			if out == "200" {
				return address, nil
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return "", fmt.Errorf("ingress %s answers with %q", name, out)
}

// startPlainProxy makes a namespace with a link to the client and to each pod, and runs a reverse proxy in it.
func (l *lab) startPlainProxy() (stop func(), err error) {
	pods, err := filepath.Glob(filepath.Join("/run/packetwalk", l.name, "netns/pods/*/default_web-*"))
	if err != nil || len(pods) != 2 {
		return nil, fmt.Errorf("network namespaces of the pods: found %v", pods)
	}
	script := "set -e\nip netns add MID\nip -n MID link set lo up\n"
	for i, space := range append([]string{filepath.Join("/run/packetwalk", l.name, "netns", internetHost)}, pods...) {
		script += strings.NewReplacer("LINK", fmt.Sprint("p", i), "NET", fmt.Sprint("192.168.", 204+i), "SPACE", space).Replace(`
ip -n MID link add LINK type veth peer name plain netns "SPACE"
ip -n MID addr add NET.2/24 dev LINK
ip -n MID link set LINK up
nsenter --net="SPACE" sh -ec "ip addr add NET.1/24 dev plain; ip link set plain up"
`)
	}
	if _, err := run(time.Minute, "", "sh", "-c", strings.ReplaceAll(script, "MID", l.name)); err != nil {
		return nil, err
	}
	cmd := exec.Command("ip", "netns", "exec", l.name, self(), "http", "proxy", "192.168.205.1:80", "192.168.206.1:80")
	cmd.Env = append(os.Environ(), "GOGC=50") // as the ingress controller has it
	// And a session of its own, as a container has: the kernel shares the processors out among sessions (CONFIG_SCHED_AUTOGROUP).
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return startTool(cmd)
}

// load gives the requests per second that the client on the internet makes.
func (l *lab) load(address string) (float64, error) {
	out, err := l.ssh(internetHost, self(), "http", "load", address, "web.example.org")
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(out), 64)
}

// httpTools is what this program does in namespaces: "proxy BACKEND…", or "load ADDRESS HOST".
func httpTools(args []string) error {
	switch {
	case len(args) > 1 && args[0] == "proxy":
		return serveProxy(args[1:])
	case len(args) == 3 && args[0] == "load":
		return makeLoad(args[1], args[2])
	}
	return errors.New("http: want proxy BACKEND..., or load ADDRESS HOST")
}

// serveProxy is Go's reverse proxy as it comes, with as many idle connections as the ingress controller keeps, and ends with its input.
func serveProxy(backends []string) error {
	var turn atomic.Uint64
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", backends[turn.Add(1)%uint64(len(backends))]
			r.SetXForwarded()
		},
		Transport: &http.Transport{MaxIdleConnsPerHost: 320, DisableCompression: true},
	}
	listener, err := net.Listen("tcp", ":80")
	if err != nil {
		return err
	}
	go func() { _ = serve.New(proxy, nil).Serve(context.Background(), listener) }()
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// makeLoad asks over connections that stay, for some seconds, and prints how many answers a second came. An answer that is not 200 is an
// error.
func makeLoad(address, host string) error {
	var answers atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	begin := time.Now()
	for range loadClients {
		wg.Go(func() {
			if err := askInTurn(address, host, begin.Add(loadSeconds*time.Second), &answers); err != nil {
				failed.Store(&err)
			}
		})
	}
	wg.Wait()
	seconds := time.Since(begin).Seconds()
	if err := failed.Load(); err != nil {
		return *err
	}
	fmt.Printf("%.0f\n", float64(answers.Load())/seconds)
	return nil
}

// askInTurn asks over one connection: net/http's own client would take more of the machine than what is measured.
func askInTurn(address, host string, end time.Time, answers *atomic.Int64) error {
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(address, "80"), 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	request := []byte("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
	reader := bufio.NewReader(conn)
	for time.Now().Before(end) {
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Write(request); err != nil {
			return err
		}
		resp, err := http.ReadResponse(reader, nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("answer %s", resp.Status)
		}
		answers.Add(1)
	}
	return nil
}
