package controlplane

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"packetwalk.dev/internal/base/supervise"
)

// realBinary returns the built multi-call program. Where it is missing the test is skipped, and fails in CI, which builds it first.
func realBinary(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "..", "bin", "packetwalk-controlplane"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		message := fmt.Sprintf("%v; build it with: go run ./tools/controlplane build", err)
		if os.Getenv("CI") != "" {
			t.Fatal(message)
		}
		t.Skip(message)
	}
	return path
}

// cluster is a control plane that runs in a namespace of its own until the test's end.
type cluster struct {
	t         *testing.T
	config    Config
	namespace *namespace
	authority *Authority

	mu          sync.Mutex
	supervisors map[string]*supervise.Supervisor
}

func startCluster(ctx context.Context, t *testing.T) *cluster {
	t.Helper()
	binary := realBinary(t)
	address := netip.MustParseAddr("203.0.113.1")
	space := newNamespace(t, address)
	// Not t.TempDir: with the test's name in it a socket's path gets too long.
	dir, err := os.MkdirTemp("", "controlplane")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	config := testConfig(dir)
	config.Binary, config.Address, config.EgressSocket = binary, address, filepath.Join(dir, "egress.sock")
	authority, err := Prepare(config, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, config: config, namespace: space, authority: authority, supervisors: make(map[string]*supervise.Supervisor)}
	t.Cleanup(c.stop)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		all := config.Components()
		if err := authority.Launch(ctx, all, all, space.dial, c.launch); err != nil {
			return err
		}
		return authority.WaitReady(ctx, space.dial, all...)
	})
	group.Go(func() error { return c.applyBootstrap(ctx) })
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cluster) launch(component Component) error {
	process := supervise.Process{Name: component.Name, Path: component.Path, Args: component.Args, LogFile: component.LogFile,
		PidFile: component.PidFile}
	s, err := supervise.Run(process, c.namespace.start, supervise.Options{})
	if err == nil {
		c.mu.Lock()
		c.supervisors[component.Name] = s
		c.mu.Unlock()
	}
	return err
}

// stop ends all, clients before their servers, and shows the logs' ends when the test failed.
func (c *cluster) stop() {
	for _, name := range []string{Scheduler, ControllerManager, APIServer, Etcd} {
		s := c.supervisors[name]
		if s == nil {
			continue
		}
		if err := s.Stop(); err != nil {
			c.t.Error(err)
		}
		if c.t.Failed() {
			text, _ := os.ReadFile(c.config.LogFile(name))
			c.t.Logf("end of %s's log:\n%s", name, text[max(0, len(text)-3000):])
		}
	}
}

// kubectl runs kubectl inside the namespace as user, input as its standard input.
func (c *cluster) kubectl(ctx context.Context, user User, input string, args ...string) (string, error) {
	flags := []string{"kubectl", "--kubeconfig=" + c.config.KubeconfigPath(user), "--cache-dir=" + filepath.Join(c.config.Dir, "cache")}
	command := exec.CommandContext(ctx, c.config.Binary, append(flags, args...)...)
	command.Stdin = strings.NewReader(input)
	var output strings.Builder
	command.Stdout, command.Stderr = &output, &output
	if err := c.namespace.start(command); err != nil {
		return "", err
	}
	err := command.Wait()
	return strings.TrimSpace(output.String()), err
}

func (c *cluster) mustKubectl(ctx context.Context, input string, args ...string) string {
	c.t.Helper()
	output, err := c.kubectl(ctx, Admin, input, args...)
	if err != nil {
		c.t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, output)
	}
	return output
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: app}]}
`

// node registers as a kubelet does: Ready, with an address and a port for the API server to call back.
const node = `
apiVersion: v1
kind: Node
metadata: {name: node-0}
status:
  addresses: [{type: InternalIP, address: 10.13.76.4}, {type: Hostname, address: node-0}]
  daemonEndpoints: {kubeletEndpoint: {Port: 10250}}
  capacity: {cpu: "8", memory: 8Gi, pods: "30"}
  allocatable: {cpu: "8", memory: 8Gi, pods: "30"}
  conditions: [{type: Ready, status: "True", reason: KubeletReady}]
`

// TestControlPlane runs the real thing: everything starts, a Deployment's pods are made and bound, the API server reaches a kubelet through
// the egress proxy, and etcd may die.
func TestControlPlane(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	c := startCluster(ctx, t)
	c.serveEgress(t)

	if version := c.mustKubectl(ctx, "", "version", "-o", "json"); strings.Count(version, `"gitVersion": "v1.35.8"`) != 2 {
		t.Errorf("client or server is not v1.35.8:\n%s", version)
	}
	c.testRoles(ctx)

	if output, err := c.kubectl(ctx, Admin, node, "create", "-f", "-"); err != nil {
		t.Fatalf("register a node: %v: %s", err, output)
	}
	c.mustKubectl(ctx, deployment, "create", "-f", "-")
	c.eventually(ctx, "three pods bound to the node", "node-0 node-0 node-0", "get", "pods", "-l", "app=web", "-o",
		"jsonpath={.items[*].spec.nodeName}")

	pod := c.mustKubectl(ctx, "", "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}")
	if logs := c.mustKubectl(ctx, "", "logs", pod); logs != "GET /containerLogs/default/"+pod+"/c by kube-apiserver-kubelet-client" {
		t.Errorf("logs through the egress proxy are %q", logs)
	}
	if endpoint := c.mustKubectl(ctx, "", "get", "endpoints", "kubernetes", "-o",
		"jsonpath={.subsets[*].addresses[*].ip}:{.subsets[*].ports[*].port}"); !strings.HasSuffix(endpoint, "203.0.113.1:443") {
		t.Errorf("the Service kubernetes leads to %q", endpoint)
	}
	c.testEtcdDies(ctx)
}

// applyBootstrap does as a lab does: it applies the roles as soon as the API server serves, before it is ready.
func (c *cluster) applyBootstrap(ctx context.Context) error {
	for _, component := range c.config.Components() {
		if err := c.authority.WaitServing(ctx, component, c.namespace.dial); err != nil {
			return err
		}
	}
	rest, err := clientcmd.BuildConfigFromFlags("", c.config.KubeconfigPath(Admin))
	if err != nil {
		return err
	}
	rest.Dial = c.namespace.dial
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	for range 2 { // a lab that starts again applies them again
		if err := ApplyBootstrap(ctx, client.RbacV1()); err != nil {
			return err
		}
	}
	return nil
}

// testRoles asks the API server itself what the identities may do.
func (c *cluster) testRoles(ctx context.Context) {
	tests := []struct {
		user           User
		verb, resource string
		allowed        bool
	}{
		{NodeAgentUser, "watch", "endpointslices.discovery.k8s.io", true},
		{NodeAgentUser, "get", "secrets", false},
		{Admin, "delete", "clusterroles", true},
	}
	for _, test := range tests {
		resource, subresource, _ := strings.Cut(test.resource, "/") // kubectl takes what follows a slash for a name
		answer, err := c.kubectl(ctx, test.user, "", "auth", "can-i", test.verb, resource, "--subresource="+subresource, "-A")
		if (err == nil) != test.allowed {
			c.t.Errorf("may %s %s %s: %q, want %v", test.user.Name, test.verb, test.resource, answer, test.allowed)
		}
	}
}

// testEtcdDies kills etcd outright: it is started again and the API server writes again, with what it had.
func (c *cluster) testEtcdDies(ctx context.Context) {
	c.t.Helper()
	before := c.supervisors[Etcd].State()
	server := c.supervisors[APIServer].State()
	if err := syscall.Kill(before.Pid, syscall.SIGKILL); err != nil {
		c.t.Fatal(err)
	}
	for state := c.supervisors[Etcd].State(); state.Restarts == 0 || state.Pid == 0; state = c.supervisors[Etcd].State() {
		if ctx.Err() != nil {
			c.t.Fatal("etcd was not started again")
		}
		time.Sleep(probeInterval)
	}
	if state := c.supervisors[Etcd].State(); state.LastExit != "signal: killed" {
		c.t.Errorf("etcd ended with %q", state.LastExit)
	}
	for _, component := range c.config.Components() {
		if err := c.authority.WaitReady(ctx, c.namespace.dial, component); err != nil {
			c.t.Fatal(err)
		}
	}
	c.mustKubectl(ctx, "", "scale", "deployment", "web", "--replicas=4")
	c.eventually(ctx, "a fourth pod after etcd's death", "node-0 node-0 node-0 node-0", "get", "pods", "-l", "app=web", "-o",
		"jsonpath={.items[*].spec.nodeName}")
	if after := c.supervisors[APIServer].State(); after.Pid != server.Pid {
		c.t.Errorf("the API server did not outlive etcd: %+v", after)
	}
}

// eventually asks kubectl until the answer is want.
func (c *cluster) eventually(ctx context.Context, what, want string, args ...string) {
	c.t.Helper()
	for {
		answer, err := c.kubectl(ctx, Admin, "", args...)
		if err == nil && answer == want {
			return
		}
		if ctx.Err() != nil {
			c.t.Fatalf("waited in vain for %s; last answer: %s", what, answer)
		}
	}
}

// serveEgress serves the other end of the egress selector: HTTP CONNECT on the unix socket, with a kubelet behind it that tells who asked
// for what.
func (c *cluster) serveEgress(t *testing.T) {
	t.Helper()
	certificate, err := c.authority.Kubelet("node-0", netip.MustParseAddr("10.13.76.4"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(c.authority.certificate)
	kubelet := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s by %s", r.Method, r.URL.Path, r.TLS.PeerCertificates[0].Subject.CommonName)
	})}
	tunnels := &tunnelListener{conns: make(chan net.Conn), done: make(chan struct{})}
	secure := tls.NewListener(tunnels,
		&tls.Config{Certificates: []tls.Certificate{certificate}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert})
	go kubelet.Serve(secure)
	socket, err := net.Listen("unix", c.config.EgressSocket)
	if err != nil {
		t.Fatal(err)
	}
	go tunnels.acceptConnect(socket, "10.13.76.4:10250")
	t.Cleanup(func() { socket.Close(); kubelet.Close() })
}

// tunnelListener hands out the connections that came by HTTP CONNECT.
type tunnelListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// acceptConnect answers CONNECT requests for target and refuses all others.
func (l *tunnelListener) acceptConnect(socket net.Listener, target string) {
	for {
		conn, err := socket.Accept()
		if err != nil {
			return
		}
		request, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil || request.Method != http.MethodConnect || request.Host != target {
			fmt.Fprint(conn, "HTTP/1.1 502 Bad Gateway\r\n\r\n")
			conn.Close()
			continue
		}
		fmt.Fprint(conn, "HTTP/1.1 200 OK\r\n\r\n")
		select {
		case l.conns <- conn:
		case <-l.done:
			conn.Close()
			return
		}
	}
}

func (l *tunnelListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *tunnelListener) Close() error { l.once.Do(func() { close(l.done) }); return nil }

func (l *tunnelListener) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }
