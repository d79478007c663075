package agent

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/service"
)

func TestServicesOnTheRealKernel(t *testing.T) {
	for _, rules := range iptables.RuleSetVersions() {
		t.Run(rules, func(t *testing.T) { services(t, service.IPv4, rules) })
	}
	t.Run("IPv6", func(t *testing.T) { services(t, service.IPv6, iptables.RulesCurrent) })
}

func services(t *testing.T, family service.Family, rules string) {
	t.Parallel()
	w := newWorldOf(t, family, rules, options.BackendIPTables)
	w.services()
	agent := w.agent()

	w.Run("LoadBalancerCluster", func(*testing.T) { w.cluster(vip + ":80") })
	w.Run("NodePortCluster", func(*testing.T) { w.cluster(nodeIPs + ":30001") })
	w.Run("ClusterIP", func(*testing.T) { w.clusterIP() })
	w.Run("LoadBalancerLocal", func(*testing.T) { w.local(localVIP + ":80") })
	w.Run("NodePortLocal", func(*testing.T) { w.local(nodeIPs + ":30002") })
	w.Run("Reject", func(t *testing.T) {
		// From the node itself: until 1.14 nothing refused what only passes through.
		if got := w.ask("node", "tcp", "10.0.0.4:80"); !strings.Contains(got, "refused") {
			t.Errorf("service without endpoints: %s", got)
		}
	})
	w.Run("NodeMasquerade", func(*testing.T) { w.nodeMasquerade() })
	w.Run("Repair", func(*testing.T) { w.repair() })
	w.Run("UDP", func(t *testing.T) { w.udp(dns) })
	w.Run("Restart", func(*testing.T) { agent = w.restart(agent) })
	w.Run("HealthCheck", func(*testing.T) { w.healthCheck(tcp(30002)) })
	agent.stop()
	if got := w.ask("client", "tcp", vip+":80"); !strings.HasPrefix(got, "p") {
		t.Errorf("after the agent's end: %s", got)
	}
	w.Run("KeepDamage", func(*testing.T) {
		w.keepDamage("-t nat -F KUBE-MARK-MASQ", func() string {
			return w.sh("ip netns exec %s %s -t nat -S KUBE-MARK-MASQ", w.node, w.tool("iptables"))
		}, func() { w.sh("ip netns exec %s %s -t nat -F KUBE-MARK-MASQ", w.node, w.tool("iptables")) })
	})
}

// keepDamage: without RepairRules a deleted rule stays away, Services that change are written all the same, and a new agent repairs.
func (w *world) keepDamage(what string, list func() string, damage func()) {
	w.Helper()
	w.state.Options.RepairRules, w.state.Options.SyncPeriod = false, 100*time.Millisecond
	w.save()
	agent := w.agent()
	whole := list()
	damage()
	broken := list()
	if broken == whole {
		w.Fatalf("%s changed nothing:\n%s", what, whole)
	}
	w.service("later", "10.0.0.77", "203.0.113.77", false, tcp(30077), "10.13.1.5")
	w.save()
	w.eventually("a Service that comes", func() bool { return strings.HasPrefix(w.ask("client", "tcp", "203.0.113.77:80"), "p1") })
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if now := list(); now != broken {
			w.Fatalf("after %s:\n%s\nthe agent has put back:\n%s", what, broken, now)
		}
	}
	agent.stop()
	w.state.Options.RepairRules = true
	w.save()
	agent = w.agent()
	if now := list(); now != whole {
		w.Errorf("a new agent with RepairRules left:\n%s\nwant:\n%s", now, whole)
	}
	agent.stop()
}

// cluster: both pods answer, and see the node.
func (w *world) cluster(address string) {
	w.Helper()
	got := w.answers(40, "client", "tcp", address)
	if len(got) != 2 || got["p1 "+w.at("10.13.1.1")] == 0 || got["p2 "+w.at("10.13.2.1")] == 0 {
		w.Errorf("%s: %v", address, got)
	}
}

// clusterIP: pods see each other's address, and the node's when one reaches itself.
func (w *world) clusterIP() {
	w.Helper()
	got := w.answers(40, "p1", "tcp", "10.0.0.2:80")
	if len(got) != 2 || got["p1 "+w.at("10.13.1.1")] == 0 || got["p2 "+w.at("10.13.1.5")] == 0 {
		w.Errorf("from a pod: %v", got)
	}
	if got := w.ask("client", "tcp", "10.0.0.2:80"); got != "p1 "+w.at("10.13.1.1") && got != "p2 "+w.at("10.13.2.1") {
		w.Errorf("from outside: %s; want the node's address", got)
	}
}

// local: only this node's endpoint answers, and sees the client.
func (w *world) local(address string) {
	w.Helper()
	got := w.answers(10, "client", "tcp", address)
	if len(got) != 1 || got["p1 "+w.at(clientIP)] != 10 {
		w.Errorf("%s: %v", address, got)
	}
	if got := w.ask("p2", "tcp", localVIP+":80"); !strings.HasSuffix(got, " "+w.at("10.13.2.5")) {
		w.Errorf("from a pod to the load balancer's address: %s", got)
	}
}

// nodeMasquerade: a pod's traffic out of the cluster leaves with the node's address.
func (w *world) nodeMasquerade() {
	w.Helper()
	if w.family == service.IPv6 {
		return // there is no such rule
	}
	rules := w.sh("ip netns exec %s iptables-save -t nat", w.node)
	for _, line := range []string{
		"-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\n",
		"-A POSTROUTING ! -d 10.0.0.0/8 -m iprange ! --dst-range 168.63.129.16-168.63.129.16 -m addrtype ! --dst-type LOCAL -j MASQUERADE\n",
	} {
		if strings.Count(rules, line) != 1 {
			w.Errorf("%d times: %s", strings.Count(rules, line), line)
		}
	}
	w.start("client", "endpoint", "outside")
	if got := w.ask("p1", "tcp", clientIP+":80"); got != "outside "+nodeIPs {
		w.Errorf("pod to the internet: %s", got)
	}
}

// repair: deleted rules come back, a foreign chain stays, a flush heals.
func (w *world) repair() {
	w.Helper()
	run := func(tool, format string, args ...any) string {
		return w.sh("ip netns exec "+w.node+" "+w.tool(tool)+" "+format, args...)
	}
	someone := w.at("192.0.2.1")
	run("iptables", "-t nat -N FOREIGN")
	run("iptables", "-t nat -A FOREIGN -s %s -j RETURN", someone)
	run("iptables", "-t nat -A PREROUTING -j FOREIGN")
	before := w.chains()
	for _, damage := range []string{
		`-t nat -D PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`,
		"-t nat -D KUBE-MARK-MASQ 1",
		"-t nat -F KUBE-SERVICES",
		"-t filter -F KUBE-FORWARD",
		"-t nat -F POSTROUTING",
		"-t nat -I KUBE-POSTROUTING -s " + someone + " -j RETURN",
	} {
		run("iptables", "%s", damage)
		w.eventually("repair after "+damage, func() bool { return sameRules(w.chains(), before) })
	}
	// Both tables at once: of a flush in steps the agent has put half back before the last one.
	w.sh(`printf '*nat\nCOMMIT\n*filter\nCOMMIT\n' | ip netns exec %s %s`, w.node, w.tool("iptables-restore"))
	run("iptables", "-t nat -A PREROUTING -j RETURN -s %s", someone)
	w.eventually("traffic after a flush", func() bool { return strings.HasPrefix(w.ask("client", "tcp", vip+":80"), "p") })
	if !strings.Contains(run("iptables-save", "-t nat"), "-A PREROUTING -s "+someone+"/") {
		w.Error("foreign rule lost")
	}
}

// chains counts all rules by their text, which leaves out the order of the jumps in built-in chains.
func (w *world) chains() map[string]int {
	lines := map[string]int{}
	for line := range strings.Lines(w.sh("ip netns exec %s %s", w.node, w.tool("iptables-save"))) {
		if strings.HasPrefix(line, "-A") {
			lines[line]++
		}
	}
	return lines
}

func sameRules(a, b map[string]int) bool {
	if len(a) != len(b) {
		return false
	}
	for line, n := range a {
		if b[line] != n {
			return false
		}
	}
	return true
}

// udp: a flow whose endpoint is gone moves to another, with the same ports.
func (w *world) udp(dns corev1.ServicePort) {
	w.Helper()
	c := w.hold("client", "udp", "203.0.113.12:53")
	if got := c.say(); !strings.HasPrefix(got, "p1 ") {
		w.Fatalf("before: %s", got)
	}
	w.service("dns", "10.0.0.10", "203.0.113.12", false, dns, "10.13.2.5")
	w.save()
	w.eventually("the rule of the new endpoint", func() bool {
		if w.state.Options.Backend == options.BackendNFTables {
			return strings.Contains(w.nft("list ruleset"), " : "+w.at("10.13.2.5")+" . 53")
		}
		return strings.Contains(w.sh("ip netns exec %s %s -t nat", w.node, w.tool("iptables-save")), w.at("10.13.2.5:53"))
	})
	w.eventually("no entry of the old endpoint", func() bool {
		return !strings.Contains(w.sh("ip netns exec %s conntrack -L -f %s -p udp 2>/dev/null", w.node, strings.ToLower(w.family.String())),
			"src="+w.at("10.13.1.5")+" ")
	})
	if got := c.say(); !strings.HasPrefix(got, "p2 ") {
		w.Errorf("after: %s", got)
	}
}

// openConnection is a client whose connection stays.
type openConnection struct {
	*world
	in  io.Writer
	out *bufio.Reader
}

func (w *world) hold(from, network, address string) *openConnection {
	w.Helper()
	return w.roleHeld(from, "client", network, w.at(address))
}

// roleHeld starts a part that goes on until its standard input says otherwise.
func (w *world) roleHeld(from, role string, args ...string) *openConnection {
	w.Helper()
	cmd := w.role(from, role, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		w.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return &openConnection{w, in, bufio.NewReader(out)}
}

func (h *openConnection) say() string {
	h.Helper()
	if _, err := fmt.Fprintln(h.in, "x"); err != nil {
		h.Fatal(err)
	}
	line, err := h.out.ReadString('\n')
	if err != nil {
		h.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// restart: connections that go through the service live through the agent's end, its absence and its start, also by kill -9.
func (w *world) restart(agent *agentProcess) *agentProcess {
	w.Helper()
	connections := []*openConnection{w.hold("client", "tcp", vip+":80"), w.hold("client", "tcp", localVIP+":80"), w.hold("p1", "tcp", "10.0.0.2:80")}
	var first []string
	for _, c := range connections {
		first = append(first, c.say())
	}
	alive := func(when string) {
		w.Helper()
		for i, c := range connections {
			if got := c.say(); got != first[i] {
				w.Errorf("connection %d %s: %s, before %s", i, when, got, first[i])
			}
		}
	}
	agent.stop()
	alive("without an agent")
	agent = w.agent()
	alive("after a restart")
	_ = agent.cmd.Process.Kill()
	<-agent.end
	alive("after kill -9")
	agent = w.agent()
	alive("after the second restart")
	return agent
}

// healthCheck checks that the health check node port answers 200 with local endpoints and 503 without. Without them, a client outside gets
// no answer from the service, and a pod reaches any endpoint.
func (w *world) healthCheck(port corev1.ServicePort) {
	w.Helper()
	code := func() string {
		return w.sh("ip netns exec %s-client curl -s -m 2 -o /dev/null -w '%%{http_code}' http://%s/healthz || true", w.id, w.at(nodeIPs+":32364"))
	}
	w.eventually("200 with local endpoints", func() bool { return code() == "200" }) // the port opens right after the first sync
	w.service("local", "10.0.0.3", localVIP, true, port, "10.13.3.5")
	w.save()
	w.eventually("503 without local endpoints", func() bool { return code() == "503" })
	if !w.hasNoAnswer("client", "tcp", localVIP+":80") {
		w.Error("without local endpoints there is an answer; want it dropped")
	}
	if got := w.ask("p1", "tcp", localVIP+":80"); !strings.HasPrefix(got, "p3 ") {
		w.Errorf("a pod, without local endpoints: %s; want any endpoint", got)
	}
}
