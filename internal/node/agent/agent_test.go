package agent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/agent/report"
	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/testing/eventually"
	"packetwalk.dev/internal/testing/kerneltest"
)

// discard is a logger without output.
var discard = report.Logger{Logger: slog.New(slog.DiscardHandler)}

// unaskedAPI is an API that reports a request for Services.
type unaskedAPI struct {
	apiClient
	t *testing.T
}

func (unaskedAPI) Run(context.Context) {}

func (unaskedAPI) WaitForSync(context.Context) bool { return true }

func (a unaskedAPI) Changed() <-chan struct{} { return nil }

func (a unaskedAPI) Delta(bool) kube.Delta {
	a.t.Error("it asks for Services")
	return kube.Delta{}
}

// TestWithoutServiceProxy: beside another service proxy the agent has none of its ports, settings and rules, and still what is beside it.
func TestWithoutServiceProxy(t *testing.T) {
	o := options.Defaults()
	o.ServiceProxy, o.Families, o.MetricsAddress = false, []service.Family{service.IPv4, service.IPv6}, ""
	o.NodeName, o.HealthzAddress, o.WatchKernel, o.PodUID = "node0", "in use", false, rand.Text()
	a := newAgent(o, slog.New(slog.DiscardHandler))
	a.setSource(unaskedAPI{t: t})
	if a.addMasqAgent(nil); len(a.programs) != 2 || a.masq == nil {
		t.Errorf("%d families, ip-masq-agent %v", len(a.programs), a.masq)
	}
	a.masq = nil // it has no API here
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.run(ctx) }()
	eventually.Succeeds(t, time.Minute, func() error { return Livez(ctx, o.PodUID) })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if fault := a.faults.Of("--healthz-bind-address"); fault != "" {
		t.Error(fault)
	}
}

// TestAsksForNothing: who is not the service proxy asks the API server for nothing of it, and is healthy without.
func TestAsksForNothing(t *testing.T) {
	asked := make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		http.NotFound(w, r)
	}))
	defer server.Close()
	o := options.Defaults()
	o.Server, o.NodeName, o.ServiceProxy, o.WatchKernel, o.MetricsAddress, o.PodUID = server.URL, "node0", false, false, "", rand.Text()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- Run(ctx, o, slog.New(slog.NewTextHandler(os.Stderr, nil))) }()
	select {
	case path := <-asked:
		t.Errorf("it asks for %s", path)
	case err := <-done:
		t.Fatal(err)
	case <-time.After(500 * time.Millisecond):
	}
	if err := Livez(ctx, o.PodUID); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestStopsWhileItWrites: told to stop, the agent ends although a program that it runs does not, and the program ends with it.
func TestStopsWhileItWrites(t *testing.T) {
	kerneltest.NeedRoot(t)
	const programs = 2 // of the loops of the service proxy and the ip-masq-agent
	dir := t.TempDir()
	pids := filepath.Join(dir, "pids")
	slow := "#!/bin/sh\n[ \"$1\" = -w ] || exit 1\necho $$ >> " + pids + "\nsleep 1000\n"
	if err := os.WriteFile(filepath.Join(dir, "iptables-restore"), []byte(slow), 0o700); err != nil {
		t.Fatal(err)
	}
	st := state{Options: options.Defaults()}
	st.Options.NodeName, st.Options.MasqForm, st.Options.IPMasqAgent, st.Options.DockerBridge = "node0", "v2", true, netip.Prefix{}
	st.ConfigMaps = []*corev1.ConfigMap{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: userMap},
		Data:       map[string]string{"ip-masq-agent": "nonMasqueradeCIDRs: [10.0.0.0/8]\n"},
	}}
	text, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "state.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], path)
	cmd.Env = append(os.Environ(), "PACKETWALK_TEST_ROLE=agent", "PATH="+dir+":"+os.Getenv("PATH"))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	running := func() (alive []string) {
		text, _ := os.ReadFile(pids)
		for _, pid := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(pid); err == nil && !errors.Is(syscall.Kill(n, 0), syscall.ESRCH) {
				alive = append(alive, pid)
			}
		}
		return alive
	}
	for len(running()) < programs {
		select {
		case err := <-ended:
			t.Fatalf("ended before it was told to: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	const limit = 30 * time.Second // 2 s, and what a busy machine takes; the program sleeps for 1000 s
	start := time.Now()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		t.Logf("ended after %v: %v", time.Since(start).Round(time.Millisecond), err)
	case <-time.After(limit):
		_ = cmd.Process.Kill()
		t.Fatalf("goes on %v after it was told to stop", limit)
	}
	for left := running(); len(left) > 0; left = running() {
		time.Sleep(10 * time.Millisecond) // init reaps them
		if time.Since(start) > time.Minute {
			t.Fatalf("left behind: %v", left)
		}
	}
}

// TestServerComesBack: a server that ends by itself is a fault until it answers again.
func TestServerComesBack(t *testing.T) {
	a := &agent{faults: report.NewFaults(discard, 0), timing: timing{listen: 100 * time.Millisecond}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(report.FaultsPath, a.faults)
	health := func() string {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, report.FaultsPath, nil))
		return strings.Join(strings.Fields(w.Body.String()), "")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		listen := func() (net.Listener, error) { return net.Listen("tcp", l.Addr().String()) }
		a.keepServing(ctx, "--metrics-bind-address", listen, l, mux)
	}()
	defer func() { cancel(); <-done }()
	until := func(what string) {
		t.Helper()
		eventually.Succeeds(t, time.Minute, func() error {
			if got := health(); !strings.Contains(got, what) {
				return fmt.Errorf("%s, want %s", got, what)
			}
			return nil
		})
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	until(`{"unhealthy":["--metrics-bind-address:`)
	until(`{"unhealthy":[]}`)
	resp, err := http.Get("http://" + l.Addr().String() + report.FaultsPath)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
}
