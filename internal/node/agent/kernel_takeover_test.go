package agent

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/agent/takeover"
	"packetwalk.dev/internal/node/conflict"
	"packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestWaitsForItsTurn: as long as kube-proxy is alive the agent changes nothing, and says so; then it takes over, and the rules that were
// left go. A second agent waits for the first, and begins when that one has been killed.
func TestWaitsForItsTurn(t *testing.T) {
	for _, backend := range []string{options.BackendIPTables, options.BackendNFTables} {
		t.Run(backend, func(t *testing.T) { waitsForItsTurn(t, backend) })
	}
}

func waitsForItsTurn(t *testing.T, backend string) {
	t.Parallel()
	w := newWorld(t, iptables.RulesCurrent, backend)
	w.state.Options.NodeMasquerade, w.state.Options.DockerBridge = nil, netip.Prefix{} // which are beside any service proxy's
	w.state.Options.Pod = "kube-system/pw"
	w.services()
	w.state.Options.SyncPeriod = time.Second // how often it looks for another service proxy
	w.save()
	// What a kube-proxy of this backend has, with a service that is no more.
	run := func(format string, args ...any) string {
		return w.sh("%s", "ip netns exec "+w.node+" "+fmt.Sprintf(format, args...))
	}
	if backend == options.BackendIPTables {
		run("iptables -t nat -N KUBE-SERVICES")
		run("iptables -t nat -A KUBE-SERVICES -d 10.0.9.9 -j RETURN")
	} else {
		run("nft add table ip kube-proxy")
		run("nft add chain ip kube-proxy service-10.0.9.9")
	}
	rules := func() string { return run("nft list ruleset 2>/dev/null") }
	before := rules()

	proxy := w.kubeProxy()
	first, started := w.launch()
	w.eventually("the agent waits for kube-proxy", func() bool {
		r, metrics := w.ready("10256"), w.ready("10249")
		return r.Ready && slices.Equal(r.Waiting, metrics.Waiting) && len(r.Waiting) == 1 &&
			r.Waiting[0] == fmt.Sprintf("kube-proxy (pid %d)", proxy.Process.Pid)
	})
	if mode := run("curl -s -o /dev/null -w '%%{http_code}' http://127.0.0.1:10249/proxyMode"); mode != "404" {
		t.Errorf("while it waits, /proxyMode is %s", mode)
	}
	if after := rules(); after != before {
		t.Errorf("while it waits there are\n%s\ninstead of\n%s", after, before)
	}
	select {
	case <-started:
		t.Fatal("it has begun")
	default:
	}
	_ = proxy.Process.Kill()
	_ = proxy.Wait()
	if !<-started {
		t.Fatalf("it ended\n%s", first.log)
	}
	if got := w.ask("client", "tcp", vip+":80"); !strings.HasPrefix(got, "p") {
		t.Errorf("after it took over: %s", got)
	}
	w.eventually("what was left goes", func() bool { return !strings.Contains(rules(), "10.0.9.9") })
	w.eventually("the agent is ready", func() bool { r := w.ready("10256"); return r.Ready && r.Waiting == nil })
	w.secondProxy(run)

	w.state.Options.HealthzAddress, w.state.Options.MetricsAddress = "", "127.0.0.1:10300"
	w.save()
	_, started = w.launch()
	w.eventually("the second waits for the first", func() bool {
		return slices.Equal(w.ready("10300").Waiting, []string{"another packetwalk-node (service-proxy)"})
	})
	_ = first.cmd.Process.Kill()
	<-first.end
	if !<-started {
		t.Fatal("the second ended")
	}
	if want := "CONDITION of kube-system/pw: " + takeover.ConditionType + "="; !strings.Contains(first.log.String(), want+"True") ||
		!strings.Contains(first.log.String(), want+"False") {
		t.Errorf("no conditions in\n%s", first.log)
	}
	for _, said := range []string{
		"waits for kube-proxy (pid", "EVENT WaitingForServiceProxy /node0", "runs beside packetwalk-node", "EVENT OtherServiceProxyRunning /node0",
	} {
		if n := strings.Count(first.log.String(), said); n != 1 {
			t.Errorf("said %d times: %s\n%s", n, said, first.log)
		}
	}
}

// secondProxy starts a kube-proxy beside the running agent, which writes the rules of its mode. The agent reports it, leaves its rules
// alone and takes over when it has ended.
func (w *world) secondProxy(run func(format string, args ...any) string) {
	w.Helper()
	proxy := w.kubeProxy()
	if w.state.Options.Backend == options.BackendIPTables {
		run("iptables -t nat -F KUBE-SERVICES")
	} else {
		run("nft add table ip kube-proxy")
	}
	metric := func(name, value string) bool {
		return strings.Contains(run("curl -s http://127.0.0.1:10249/metrics"), name+`{node="node0"} `+value+"\n")
	}
	w.eventually("the agent counts the other service proxy", func() bool { return metric("packetwalk_proxy_other_service_proxies", "1") })
	looked := time.Now()
	w.eventually("several looks", func() bool { return time.Since(looked) > 3*w.state.Options.SyncPeriod })
	if w.state.Options.Backend == options.BackendIPTables {
		if r := w.ready("10256"); !r.Ready || len(r.Waiting) != 1 || !metric("packetwalk_waiting", "1") {
			w.Errorf("beside another service proxy: %+v", r)
		}
		if rules := run("iptables-save -t nat"); strings.Contains(rules, "-A KUBE-SERVICES") {
			w.Errorf("it wrote while another service proxy runs:\n%s", rules)
		}
	} else {
		if r := w.ready("10256"); !r.Ready || r.Waiting != nil {
			w.Errorf("beside another service proxy: %+v", r)
		}
		if tables := run("nft list tables"); !strings.Contains(tables, "table ip kube-proxy\n") {
			w.Errorf("it removed the table of a service proxy that runs:\n%s", tables)
		}
	}
	_ = proxy.Process.Kill()
	_ = proxy.Wait()
	w.eventually("the agent takes over again", func() bool {
		return w.ready("10256").Waiting == nil && metric("packetwalk_proxy_other_service_proxies", "0") &&
			(strings.Contains(run("iptables-save -t nat"), "-A KUBE-SERVICES") == (w.state.Options.Backend == options.BackendIPTables)) &&
			!strings.Contains(run("nft list tables 2>/dev/null"), "table ip kube-proxy\n")
	})
}

// kubeProxy starts a process by that name on the node.
func (w *world) kubeProxy() *exec.Cmd {
	w.Helper()
	program := filepath.Join(w.TempDir(), "kube-proxy")
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		w.Fatal(err)
	}
	text, err := os.ReadFile(sleep)
	if err != nil {
		w.Fatal(err)
	}
	kerneltest.WriteProgram(w, program, text)
	cmd := exec.Command("ip", "netns", "exec", w.node, program, "3600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	w.eventually("kube-proxy runs", func() bool {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
		return string(comm) == "kube-proxy\n"
	})
	return cmd
}

// ready returns what the agent says at a port of the node, or the zero value where no process answers.
func (w *world) ready(port string) (r conflict.Ready) {
	w.Helper()
	text := w.sh("ip netns exec %s curl -s -m 5 http://127.0.0.1:%s%s || true", w.node, port, conflict.ReadyPath)
	_ = json.Unmarshal([]byte(text), &r)
	return r
}
