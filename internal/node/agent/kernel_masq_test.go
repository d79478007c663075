package agent

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/node/agent/masq"
	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/testing/eventually"
)

// fileConfigs gives the ip-masq agent its ConfigMaps from the file that a fileSource reads.
type fileConfigs struct{ fileSource }

func (s *fileConfigs) Run(ctx context.Context) {
	s.changed <- struct{}{}
	s.fileSource.Run(ctx)
}

func (s *fileConfigs) Snapshot() ([]*corev1.ConfigMap, bool) { return s.read().ConfigMaps, true }
func (s *fileConfigs) Read(context.Context) ([]*corev1.ConfigMap, error) {
	return s.read().ConfigMaps, nil
}

func (s *fileConfigs) Warn(_ context.Context, about *corev1.ConfigMap, component, host, reason, message string) error {
	fmt.Fprintf(os.Stderr, "EVENT %s %s %s/%s %s: %s\n", component, host, about.Namespace, about.Name, reason, message)
	return nil
}

// playFlows opens UDP flows to an address, one after the other, until it is told to end: then it says how many were answered, and who the
// other end took for the sender when that was not the one it should have been.
func playFlows(address, sender string) {
	end := make(chan struct{})
	go func() { _, _ = os.Stdin.Read(make([]byte, 1)); close(end) }()
	fmt.Println("ready")
	answered, wrong := 0, map[string]int{}
	buffer := make([]byte, 2048)
	for {
		select {
		case <-end:
			fmt.Printf("%d %v\n", answered, wrong)
			return
		default:
		}
		c, err := net.Dial("udp", address)
		if err != nil {
			log.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(200 * time.Millisecond))
		if _, err := c.Write([]byte("x")); err != nil {
			wrong[err.Error()]++
		}
		if n, err := c.Read(buffer); err == nil {
			answered++
			if _, host, _ := strings.Cut(string(buffer[:n]), " "); host != sender {
				wrong[host]++
			}
		}
		_ = c.Close()
	}
}

// flows opens flows from a pod until the function that it gives is called; that tells how many there were, and who else the other end saw.
func (w *world) flows(from, to, sender string) (end func() (answered int, wrong string)) {
	w.Helper()
	h := w.roleHeld(from, "flows", to, sender)
	if line, err := h.out.ReadString('\n'); err != nil {
		w.Fatalf("flows: %q, %v", line, err)
	}
	return func() (n int, wrong string) {
		w.Helper()
		line := h.say()
		if _, err := fmt.Sscanf(line, "%d", &n); err != nil {
			w.Fatalf("flows: %q", line)
		}
		_, wrong, _ = strings.Cut(line, " ")
		return n, strings.TrimSuffix(strings.TrimPrefix(wrong, "map["), "]")
	}
}

// config puts one data key into a ConfigMap of the state; an empty text takes the ConfigMap away.
func (w *world) config(name, key, text string) {
	w.Helper()
	w.state.ConfigMaps = slices.DeleteFunc(w.state.ConfigMaps, func(c *corev1.ConfigMap) bool { return c.Name == name })
	if text != "" {
		w.state.ConfigMaps = append(w.state.ConfigMaps, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, Data: map[string]string{key: text},
		})
	}
	w.save()
}

// masqRules returns POSTROUTING's and the agent's rules of a family without comments.
func (w *world) masqRules(save string) string {
	w.Helper()
	var b strings.Builder
	for line := range strings.Lines(w.sh("ip netns exec %s %s -t nat", w.node, save)) {
		if strings.HasPrefix(line, "-A POSTROUTING ") || strings.HasPrefix(line, "-A IP-MASQ-AGENT ") {
			b.WriteString(commentOption.ReplaceAllString(line, ""))
		}
	}
	return b.String()
}

func (w *world) expectMasq(save, want string) {
	w.Helper()
	want = strings.TrimPrefix(want, "\n")
	eventually.Succeeds(w, time.Minute, func() error {
		if diff := cmp.Diff(want, w.masqRules(save)); diff != "" {
			return fmt.Errorf("%s (-want +got):\n%s", save, diff)
		}
		return nil
	})
}

// metric returns the value of one metric line, or "" without such a line.
func (w *world) metric(line string) string {
	w.Helper()
	for l := range strings.Lines(w.sh("ip netns exec %s curl -s -m 20 http://127.0.0.1:10249/metrics", w.node)) {
		if value, ok := strings.CutPrefix(strings.Replace(l, `,node="node0"}`, "}", 1), line+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func (w *world) masqHealth() string {
	w.Helper()
	return w.sh(`ip netns exec %s curl -s -m 20 -w '%%{http_code}' http://127.0.0.1:10249%s`, w.node, masq.HealthPath)
}

// masqWorld returns a world whose node has the ip-masq agent; p1 sends, p3 answers as p3, and the client's host as "outside".
func masqWorld(t *testing.T, rules string, families ...service.Family) *world {
	w := newWorld(t, rules, options.BackendIPTables)
	w.state.Options.IPMasqAgent, w.state.Options.NodeMasquerade = true, nil
	w.state.Options.Families = families
	w.state.Options.MasqResync = time.Minute
	w.start("client", "endpoint", "outside")
	return w
}

var (
	commentOption = regexp.MustCompile(`-m comment --comment ("(\\.|[^"\\])*"|\S+) `)
	counted       = regexp.MustCompile(` \[\d+:\d+\]`)
)

const (
	userMap       = "azure-ip-masq-agent-config"
	reconciledMap = "azure-ip-masq-agent-config-reconciled"
	kubePost      = "-A POSTROUTING -j KUBE-POSTROUTING\n-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\n-A POSTROUTING -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT\n"
)

func TestIPMasqAgentOnTheRealKernel(t *testing.T) {
	w := masqWorld(t, "current", service.IPv4, service.IPv6)
	w.config(reconciledMap, "ip-masq-agent-reconciled", "nonMasqueradeCIDRs: [10.13.0.0/16, \"fd00:13::/48\"]\nmasqLinkLocal: true\n")
	agent := w.agent()
	const own = "-A IP-MASQ-AGENT -d 10.13.0.0/16 -j RETURN\n"
	const last = "-A IP-MASQ-AGENT -j MASQUERADE\n"
	w.expectMasq("iptables-save", kubePost+own+last)
	w.expectMasq("ip6tables-save", `
-A POSTROUTING -j KUBE-POSTROUTING
-A POSTROUTING -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT
-A IP-MASQ-AGENT -d fe80::/10 -j RETURN
-A IP-MASQ-AGENT -d fd00:13::/48 -j RETURN
-A IP-MASQ-AGENT -j MASQUERADE
`)
	w.sees("p1", clientIP+":80", "outside "+nodeIPs)
	w.sees("p1", "10.13.3.5:80", "p3 10.13.1.5")

	// A second file of the user's is united with the first.
	w.config(userMap, "ip-masq-agent", "nonMasqueradeCIDRs: [198.51.100.0/24]\n")
	const user = "-A IP-MASQ-AGENT -d 198.51.100.0/24 -j RETURN\n"
	w.expectMasq("iptables-save", kubePost+user+own+last)
	w.sees("p1", clientIP+":80", "outside 10.13.1.5")
	if got := w.masqHealth(); !strings.HasSuffix(got, "200") {
		t.Errorf("health: %s", got)
	}

	// Nothing of a bad one is applied, and it is said which entry is wrong.
	before := w.chains()
	w.config(userMap, "ip-masq-agent", "nonMasqueradeCIDRs: [10.9.0.0/16, 198.51.100.1/24]\n")
	w.eventually("503 for a configuration with an error", func() bool { return strings.HasSuffix(w.masqHealth(), "503") })
	if got := w.masqHealth(); !strings.Contains(got, "nonMasqueradeCIDRs[1]: 198.51.100.1/24 is not aligned") {
		t.Errorf("health: %s", got)
	}
	if after := w.chains(); !sameRules(before, after) {
		t.Errorf("a configuration with an error changed rules:\n%s", cmp.Diff(before, after))
	}
	if got := w.metric(`packetwalk_ip_masq_config_problems{severity="error"}`); got != "1" {
		t.Errorf("metric of problems: %q", got)
	}

	// An emptied list is applied: then only the node itself is spared.
	w.config(userMap, "", "")
	w.config(reconciledMap, "ip-masq-agent-reconciled", "nonMasqueradeCIDRs: []\nmasqLinkLocal: true\n")
	w.expectMasq("iptables-save", kubePost+last)
	w.sees("p1", "10.13.3.5:80", "p3 10.13.3.1")
	if got := w.metric(`packetwalk_ip_masq_config_problems{severity="warning"}`); got != "1" {
		t.Errorf("metric of warnings: %q", got)
	}

	// Without any there are upstream's defaults.
	w.config(reconciledMap, "", "")
	w.expectMasq("iptables-save", kubePost+
		"-A IP-MASQ-AGENT -d 169.254.0.0/16 -j RETURN\n-A IP-MASQ-AGENT -d 10.0.0.0/8 -j RETURN\n-A IP-MASQ-AGENT -d 172.16.0.0/12 -j RETURN\n"+
		"-A IP-MASQ-AGENT -d 192.168.0.0/16 -j RETURN\n"+last)
	agent.stop()
	for _, event := range []string{
		"EVENT ip-masq-agent node0 kube-system/azure-ip-masq-agent-config InvalidIPMasqConfig: key ip-masq-agent, nonMasqueradeCIDRs[1]: 198.51.100.1/24 is not aligned",
		"EVENT ip-masq-agent node0 kube-system/azure-ip-masq-agent-config-reconciled SuspectIPMasqConfig: key ip-masq-agent-reconciled, nonMasqueradeCIDRs: the list is empty",
	} {
		if strings.Count(agent.log.String(), event) != 1 {
			t.Errorf("not once: %s\n%s", event, agent.log)
		}
	}
}

// sees makes a connection and checks the server and the source address that it sees.
func (w *world) sees(from, to, want string) {
	w.Helper()
	if got := w.ask(from, "tcp", to); got != want {
		w.Errorf("%s to %s: %q, want %q", from, to, got, want)
	}
}

// Whatever happens to agent, rules and configuration, in the end the node is as one that has just started with that configuration; and at
// no time is a packet translated whose destination every configuration names.
func TestIPMasqAgentConverges(t *testing.T) {
	w := masqWorld(t, "1.19", service.IPv4)
	short := "nonMasqueradeCIDRs: [10.13.0.0/16]\nmasqLinkLocal: true\nresyncInterval: 1s\n"
	long := "nonMasqueradeCIDRs: [172.16.0.0/12, 10.13.0.0/16, 10.1.0.0/16]\nresyncInterval: 60s\n"
	w.config(userMap, "ip-masq-agent", short)
	agent := w.agent()
	const shortChain = "-A IP-MASQ-AGENT -d 10.13.0.0/16 -j RETURN\n-A IP-MASQ-AGENT -j MASQUERADE\n"
	w.expectMasq("iptables-save", kubePost+shortChain)
	fresh := w.dump()

	end := w.flows("p1", "10.13.3.5:53", "10.13.1.5")
	for i := range 100 {
		w.config(userMap, "ip-masq-agent", []string{long, short}[i%2])
		time.Sleep(20 * time.Millisecond)
	}
	w.expectMasq("iptables-save", kubePost+shortChain)
	w.expectDump("flapping", fresh)

	for i, ms := range []int{0, 3, 6, 12, 25, 50} { // at whatever step the agent is then
		w.config(userMap, "ip-masq-agent", long)
		time.Sleep(time.Duration(ms) * time.Millisecond)
		_ = agent.cmd.Process.Signal(syscall.SIGKILL)
		<-agent.end
		w.config(userMap, "ip-masq-agent", short)
		agent = w.agent()
		w.expectMasq("iptables-save", kubePost+shortChain)
		w.expectDump(fmt.Sprintf("kill %d", i), fresh)
	}

	answered, wrong := end()
	if answered < 1000 || wrong != "" {
		t.Errorf("%d flows answered; translated, or not sent: %s", answered, wrong)
	}
	t.Logf("%d flows", answered)

	for _, damage := range []string{
		"-D IP-MASQ-AGENT 1", "-F IP-MASQ-AGENT", "-D POSTROUTING 3", "-F POSTROUTING",
		"-D POSTROUTING 3\n-F IP-MASQ-AGENT\n-X IP-MASQ-AGENT",
	} {
		// At once: between two commands the agent may repair the first one's damage.
		w.sh(`printf '*nat\n%s\nCOMMIT\n' | ip netns exec %s iptables-restore --noflush`, damage, w.node)
		w.expectMasq("iptables-save", kubePost+shortChain)
		w.expectDump(damage, fresh)
	}
	agent.stop()
	w.expectDump("the agent's end", fresh)
}

// dump returns everything that iptables-save prints of table nat but counters and times.
func (w *world) dump() string {
	w.Helper()
	var b strings.Builder
	for line := range strings.Lines(w.sh("ip netns exec %s iptables-save -t nat", w.node)) {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(counted.ReplaceAllString(line, ""))
		}
	}
	return b.String()
}

// expectDump waits until table nat is as it was. The service proxy, which writes its chains, is not the masquerade agent.
func (w *world) expectDump(when, want string) {
	w.Helper()
	eventually.Succeeds(w, time.Minute, func() error {
		if diff := cmp.Diff(want, w.dump()); diff != "" {
			return fmt.Errorf("after %s (-fresh +now):\n%s", when, diff)
		}
		return nil
	})
}
