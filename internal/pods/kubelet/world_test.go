package kubelet

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/utils/exec"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/pods/source"
	"packetwalk.dev/internal/testing/kerneltest"
)

// programs builds what runs in the world: a container's first process and the CNI plugin.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "kubelet-bin")
	if err != nil {
		return "", err
	}
	for _, path := range []string{"packetwalk.dev/cmd/packetwalk-app", "packetwalk.dev/cmd/packetwalk-cni",
		"github.com/containernetworking/plugins/plugins/meta/portmap"} {
		cmd := exec.Command("go", "build", "-o", dir, path)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("build %s: %w: %s", path, err, out)
		}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built {
		dir, _ := programs()
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// built tells that programs was called.
var built bool

// A world is a node on the real kernel: a namespace with eth0 10.13.76.4, the real CNI plugin and runtime, and a fake API server.
type world struct {
	*bench
	node   *kernel.Namespace
	admin  tls.Certificate // what the API server shows to kubelets
	nobody tls.Certificate // signed as well, but somebody else
	pool   *x509.CertPool
	relay  string // an address on the host's loopback that leads to the kubelet's port
}

func newWorld(t *testing.T) *world {
	t.Helper()
	kerneltest.NeedRoot(t)
	built = true
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w := &world{bench: &bench{t: t, client: fake.NewClientset(), dir: dir}}
	w.node = makeNode(t, dir)
	ca := newCA(t)
	w.pool = ca.pool
	w.admin, w.nobody = ca.issue(t, "kube-apiserver-kubelet-client"), ca.issue(t, "system:node:node-1")
	w.client.PrependReactor("update", "pods", w.conflict)
	w.client.PrependReactor("delete", "pods", w.gracefulDelete)

	conf := filepath.Join(dir, "net.d")
	if err := os.MkdirAll(conf, 0o700); err != nil {
		t.Fatal(err)
	}
	list := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"azure","plugins":[{"type":"packetwalk-cni","mode":"bridge","master":"eth0","stateDir":%q,
		"ipam":{"type":"azure-vnet-ipam","addresses":["10.13.76.5-10.13.76.9"],"subnet":"10.13.76.0/24","gateway":"10.13.76.1"}},
		{"type":"portmap","capabilities":{"portMappings":true},"snat":true}]}`,
		filepath.Join(dir, "cni"))
	if err := os.WriteFile(filepath.Join(conf, "10-azure.conflist"), []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	shared := NewShared(w.client)
	library := sync.OnceValues(func() (*images.Store, error) { return images.Open(filepath.Join(bin, "images")) })
	found := &source.Finder{Own: func(string) bool { return true },
		Ensure: func(context.Context, source.Request) (*images.Store, bool, error) {
			s, err := library()
			return s, false, err
		},
		BuiltIn: &source.BuiltIn{Program: filepath.Join(bin, "packetwalk-app"), Select: source.Machine(func([]string) {}), Open: library}}
	if _, err := found.BuiltIn.Root(t.Context()); err != nil { // which takes longer than a pod may
		t.Fatal(err)
	}
	k, err := New(Config{
		Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode}, Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.13.76.4"}}}},
		Client: w.client, Shared: shared,
		Runtime: FromRuntime(&container.Runtime{Binary: filepath.Join(bin, "packetwalk-app")}), Distribution: found.BuiltIn.Root,
		Resolve: found.Image, Sandbox: func(ctx context.Context) (source.Image, error) { return found.BuiltIn.Image(ctx, "pause") },
		NodeNS: w.node, PodNetNSDir: filepath.Join(dir, "netns", "pods"), Dir: filepath.Join(dir, "node"),
		CNIConfDir: conf, CNIBinDirs: []string{bin}, CNICacheDir: filepath.Join(dir, "cache"),
		ClusterDNS: netip.MustParseAddr("10.0.0.10"), TLSCert: ca.issue(t, "node-0"), ClientCA: ca.pool, Log: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	wait := w.begin(ctx, shared, k)
	t.Cleanup(func() { w.end(); cancel(); wait() })
	w.awaitReady()
	w.forward()
	return w
}

// makeNode makes the node's namespace, with a network on which nobody else is.
func makeNode(t *testing.T, dir string) *kernel.Namespace {
	t.Helper()
	ns, err := kernel.CreateNamespace(filepath.Join(dir, "netns", "node"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Remove(); err != nil {
			t.Error(err)
		}
	})
	for _, args := range []string{
		"link add wire type veth peer name eth0", "link set wire up", "addr add 10.13.76.4/24 dev eth0", "link set eth0 up",
		"route add default via 10.13.76.1",
	} {
		if out, err := runIn(ns, "ip", strings.Fields(args)...); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
	return ns
}

func runIn(ns *kernel.Namespace, name string, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := ns.Do(cmd.Run)
	return out.String(), err
}

// end deletes every pod and checks that nothing of them is left.
func (w *world) end() {
	w.t.Helper()
	pods, _ := w.client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
	for _, p := range pods.Items {
		_ = w.client.CoreV1().Pods("default").Delete(context.Background(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	}
	for limit := time.Now().Add(20 * time.Second); w.k.Status().Pods > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			w.t.Error("pods are left")
			return
		}
	}
	if err := w.k.processes.end(); err != nil {
		w.t.Error(err)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, w.dir) && !strings.Contains(line, "/netns/node") {
			w.t.Errorf("mount left: %s", line)
		}
	}
	for _, dir := range []string{filepath.Join(w.dir, "netns", "pods"), filepath.Join(w.dir, "node", "pods")} {
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			w.t.Errorf("%s has %v", dir, left)
		}
	}
	if links, _ := runIn(w.node, "ip", "-br", "link"); strings.Contains(links, "azv") {
		w.t.Errorf("links left: %s", links)
	}
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		if b, _ := os.ReadFile(p); bytes.Contains(b, []byte(w.dir)) {
			w.t.Errorf("process left: %s %q", p, b)
		}
	}
}

func nginxPod(p *corev1.Pod) {
	p.Spec.Containers[0].Image = "nginx"
	p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/",
		Port: intstr.FromInt32(80)}}}
}

func TestRealPod(t *testing.T) {
	w := newWorld(t)
	w.create(testPod("web", nginxPod))
	p := w.await("web", "ready", ready) // so the probe's request went from the node through the bridge to the pod
	if p.Status.PodIP != "10.13.76.5" {
		t.Errorf("address %s", p.Status.PodIP)
	}

	var out, errs bytes.Buffer
	query := url.Values{"command": {"sh", "-c", "cat; hostname; echo oops >&2; exit 3"}, "input": {"1"}, "output": {"1"}, "error": {"1"}}
	err := w.stream("/exec/default/web/app", query, remotecommand.StreamOptions{Stdin: strings.NewReader("in\n"), Stdout: &out, Stderr: &errs})
	var status utilexec.ExitError
	if !errors.As(err, &status) || status.ExitStatus() != 3 || out.String() != "in\nweb\n" || errs.String() != "oops\n" {
		t.Errorf("exec: %v, %q, %q", err, out.String(), errs.String())
	}
	out.Reset()
	query = url.Values{"command": {"sh", "-c", "stty size; tty"}, "input": {"1"}, "output": {"1"}, "tty": {"1"}}
	err = w.stream("/exec/default/web/app", query, remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: &out, Tty: true,
		TerminalSizeQueue: &oneSize{}})
	if err != nil || !strings.Contains(out.String(), "/dev/pts/") {
		t.Errorf("exec with a terminal: %v, %q", err, out.String())
	}
	if code, body := w.get(w.admin, "/containerLogs/default/web/app?tailLines=1"); code != 200 || !strings.Contains(body, "kube-probe/") ||
		!strings.HasPrefix(body, "10.13.76.4 ") {
		t.Errorf("logs: %d %q", code, body)
	}
	if got := w.portForward("web", 80, "GET / HTTP/1.0\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.") {
		t.Errorf("port-forward: %q", got)
	}
}

// TestRealNodeTree: a pod with the node's root (kubectl debug node/…) can work in it, with the programs that are there anyway; the
// machine's own files are not in it, and what one pod writes is for the others of the node.
func TestRealNodeTree(t *testing.T) {
	w := newWorld(t)
	tree := func(readOnly bool) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Image = "ubuntu"
			p.Spec.Containers[0].Command = []string{"sleep", "1000"}
			p.Spec.Volumes = []corev1.Volume{{Name: "node", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "node", MountPath: "/host", ReadOnly: readOnly}}
		}
	}
	run := func(pod, script string) string {
		t.Helper()
		var out bytes.Buffer
		query := url.Values{"command": {"sh", "-c", script}, "output": {"1"}}
		if err := w.stream("/exec/default/"+pod+"/app", query, remotecommand.StreamOptions{Stdout: &out}); err != nil {
			t.Errorf("%s: %s: %v", pod, script, err)
		}
		return out.String()
	}
	w.create(testPod("reader", tree(true)))
	w.create(testPod("writer", tree(false)))
	w.await("writer", "ready", ready)
	w.await("reader", "ready", ready)
	script := "mkdir -p /var/lib/agent; echo x > /var/lib/agent/id; touch /usr/x || ls / | grep -vxE \"bin|etc|lib.*|sbin|usr|var\"; exit 0"
	if got := run("writer", "chroot /host sh -c '"+script+"'"); got != "" {
		t.Errorf("the node's root has %q", got)
	}
	script = "cat /host/var/lib/agent/id; ls /host/etc | grep -E 'shadow|passwd|ssh'; ls /host/etc/ssl; touch /host/x || test -e /host/usr/bin/env && echo read-only"
	if got := run("reader", script); got != "x\ncerts\nread-only\n" {
		t.Errorf("got %q", got)
	}
}

type oneSize struct{ done bool }

func (o *oneSize) Next() *remotecommand.TerminalSize {
	if o.done {
		return nil
	}
	o.done = true
	return &remotecommand.TerminalSize{Width: 100, Height: 30}
}

// portForward sends a request to a port of the pod and gives the answer.
func (w *world) portForward(pod string, port int, request string) string {
	w.t.Helper()
	transport, upgrader, err := spdy.RoundTripperFor(w.config(w.admin))
	if err != nil {
		w.t.Fatal(err)
	}
	u := &url.URL{Scheme: "https", Host: w.relay, Path: "/portForward/default/" + pod}
	stop, up := make(chan struct{}), make(chan struct{})
	fw, err := portforward.New(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, u),
		[]string{fmt.Sprintf(":%d", port)}, stop, up, io.Discard, io.Discard)
	if err != nil {
		w.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- fw.ForwardPorts() }()
	select {
	case <-up:
	case err := <-ended:
		w.t.Fatalf("port-forward: %v", err)
	}
	defer func() { close(stop); <-ended }()
	ports, err := fw.GetPorts()
	if err != nil {
		w.t.Fatal(err)
	}
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.WriteString(conn, request)
	b, _ := io.ReadAll(conn)
	return string(b)
}

func TestServerWantsTheAPIServer(t *testing.T) {
	w := newWorld(t)
	if code, _ := w.get(w.admin, "/healthz"); code != http.StatusOK {
		t.Errorf("the API server gets %d", code)
	}
	for _, path := range []string{"/pods", "/logs/"} {
		if code, _ := w.get(w.nobody, path); code != http.StatusForbidden {
			t.Errorf("another client gets %d", code)
		}
	}
	if code, msg := w.get(tls.Certificate{}, "/pods"); code != 0 {
		t.Errorf("a client without a certificate gets %d %s", code, msg)
	}
	for path, want := range map[string]int{"/containerLogs/default/nosuch/c": 404, "/containerLogs/default/web/c?tailLines=x": 400,
		"/pods": 200, "/stats/summary": 200, "/nosuch": 404, "/logs/": 200, "/logs/x": 404} {
		if code, body := w.get(w.admin, path); code != want {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

// The pool has five addresses: the sixth pod waits, with an event, until one is given back.
func TestRealPoolExhausted(t *testing.T) {
	w := newWorld(t)
	for i := range 6 {
		w.create(testPod(fmt.Sprintf("p%d", i), func(p *corev1.Pod) { p.Spec.Containers[0].Image = "nginx" }))
	}
	count := func() (n int) {
		pods, _ := w.client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
		for i := range pods.Items {
			if ready(&pods.Items[i]) {
				n++
			}
		}
		return n
	}
	wait := func(what string, ok func() bool) {
		t.Helper()
		for limit := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(limit) {
				t.Fatal(what)
			}
		}
	}
	wait("five pods do not run", func() bool { return count() == 5 })
	wait("no event", func() bool {
		list, _ := w.client.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{})
		for _, e := range list.Items {
			if e.Reason == "FailedCreatePodSandBox" {
				return true
			}
		}
		return false
	})
	pods, _ := w.client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
	for i := range pods.Items {
		if ready(&pods.Items[i]) {
			if err := w.client.CoreV1().Pods("default").Delete(context.Background(), pods.Items[i].Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	wait("the sixth does not run", func() bool { return count() == 5 && w.k.Status().Pods == 5 })
}

type testCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newCA(t *testing.T) testCA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return testCA{cert, key, pool}
}

func (ca testCA) issue(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
