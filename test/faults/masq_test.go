package faults

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/node/ipmasq"
	"packetwalk.dev/test/world"
)

// masqWorld is the world of examples/iptables: three nodes with the ip-masq-agent, an nginx on each, a server in the VNet that logs who
// calls.
type masqWorld struct {
	*world.World
	nodes []string
	pod   corev1.Pod
}

// Two configurations that both have the VNet; as the world begins, and another.
const (
	masqAsMade = "nonMasqueradeCIDRs: [10.220.0.0/16, 10.220.2.0/24, 10.200.0.0/16]\nmasqLinkLocal: true\nresyncInterval: 60s\n"
	masqOther  = "nonMasqueradeCIDRs: [10.1.0.0/16, 192.168.0.0/16, 10.220.0.0/16]\n"
)

func newMasqWorld(t *testing.T) *masqWorld {
	w := &masqWorld{World: freshOf(t, "masq", "iptables")}
	w.Kubectl(t, "apply", "-f", w.Example("iptables", "nginx.yaml"))
	w.Kubectl(t, "rollout", "status", "deployment/nginx", "--timeout=60s")
	for _, n := range status(t, w.World).Nodes {
		w.nodes = append(w.nodes, n.Name)
	}
	systemInPlace(t, w.World, w.nodes)
	var pods corev1.PodList
	w.Get(t, &pods, "pods", "-l", "run=nginx")
	w.pod = pods.Items[0]
	eventually.Succeeds(t, time.Minute, func() error { // no later dump differs by an endpoint that came late
		for _, n := range w.nodes {
			rules := w.SSH(t, n, "iptables-save", "-t", "nat")
			for _, p := range pods.Items {
				if !strings.Contains(rules, "--to-destination "+p.Status.PodIP+":80") {
					return fmt.Errorf("%s does not lead to pod %s:\n%s", n, p.Name, rules)
				}
			}
		}
		return nil
	})
	return w
}

// apiClient returns a client of a lab's API that nothing slows down.
func apiClient(t *testing.T, w *world.World) *kubernetes.Clientset {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", lab.DirOf(w.Name).Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// configure writes configurations of the ip-masq-agent, one after the other, 20 ms apart.
func (w *masqWorld) configure(t *testing.T, texts ...string) {
	t.Helper()
	client := apiClient(t, w.World)
	for _, text := range texts {
		c := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: ipmasq.UserConfigMap},
			Data:       map[string]string{ipmasq.FileV1: text},
		}
		if _, err := client.CoreV1().ConfigMaps(c.Namespace).Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

var chainCounters = regexp.MustCompile(` \[\d+:\d+\]|(?m)^#.*\n`)

// dump returns a node's table nat without counters, and without the chain by which kubelet looks once a minute whether its rules still
// exist.
func (w *masqWorld) dump(t *testing.T, node string) string {
	t.Helper()
	return strings.Replace(chainCounters.ReplaceAllString(w.SSH(t, node, "iptables-save", "-t", "nat"), ""), ":KUBE-KUBELET-CANARY -\n", "", 1)
}

func (w *masqWorld) dumps(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, n := range w.nodes {
		all[n] = w.dump(t, n)
	}
	return all
}

func (w *masqWorld) settles(t *testing.T, after string, fresh map[string]string) {
	t.Helper()
	settles(t, after, fresh, w.dumps)
}

// settles waits until the nodes' dumps are as they were at a fresh start.
func settles(t *testing.T, after string, fresh map[string]string, dumps func(*testing.T) map[string]string) {
	t.Helper()
	eventually.Succeeds(t, time.Minute, func() error {
		if diff := cmp.Diff(fresh, dumps(t)); diff != "" {
			return fmt.Errorf("after %s (-fresh +now):\n%s", after, diff)
		}
		return nil
	})
}

// requests has the pod call the server in the VNet, a connection each time, until stop is called. That gives how many calls the server
// logged from the pod, and the lines of calls that came from elsewhere.
func (w *masqWorld) requests(t *testing.T) (stop func() (n int, wrong []string)) {
	t.Helper()
	before := w.Run(t, "logs", "--name", w.Name, "neighbour")
	cmd := exec.Command(filepath.Join(w.Root, "bin", "packetwalk"), "kubectl", "--name", w.Name, "exec", w.pod.Name, "--", "sh", "-c",
		`while ! [ -e /tmp/stop ]; do curl -s -o /dev/null --max-time 5 -H 'Connection: close' 'http://10.220.1.4/?[1-20]'; sleep 0.05; done; rm /tmp/stop`)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() (n int, wrong []string) {
		t.Helper()
		w.Kubectl(t, "exec", w.pod.Name, "--", "touch", "/tmp/stop")
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(strings.TrimPrefix(w.Run(t, "logs", "--name", w.Name, "neighbour"), before)) {
			if strings.HasPrefix(line, w.pod.Status.PodIP+" ") {
				n++
			} else {
				wrong = append(wrong, line)
			}
		}
		return n, wrong
	}
}

// TestIPMasqAgent: whatever happens to the ConfigMap, the agents and the rules, in the end each node is as after a fresh start; and while
// configurations change and agents die, no call within the VNet, which all of the configurations name, gets the node's address.
func TestIPMasqAgent(t *testing.T) {
	t.Parallel()
	w := newMasqWorld(t)
	w.configure(t, masqAsMade)
	fresh := w.dumps(t)

	start := time.Now()
	stop := w.requests(t)
	flaps := slices.Repeat([]string{masqOther, masqAsMade}, 50)
	w.configure(t, flaps...)
	w.settles(t, "100 changes", fresh)
	t.Logf("100 changes: %v", time.Since(start).Round(time.Millisecond))

	for range 2 {
		w.configure(t, masqOther)
		for _, n := range status(t, w.World).Nodes {
			kill(t, n.Agent.Pid) // at whatever step it is
		}
		w.configure(t, masqAsMade)
		well(t, w.World)
		w.settles(t, "kill -9", fresh)
	}
	n, wrong := stop()
	if n < 200 || len(wrong) > 0 {
		t.Errorf("%d calls as they should be; with another sender:\n%s", n, strings.Join(wrong, ""))
	}
	t.Logf("%d calls", n)

	for _, damage := range []string{"-D IP-MASQ-AGENT 2", "-F IP-MASQ-AGENT", "-D POSTROUTING 3", "-F POSTROUTING",
		"-I IP-MASQ-AGENT -j ACCEPT; iptables -t nat -D IP-MASQ-AGENT 2"} {
		w.SSH(t, w.nodes[0], "sh", "-c", "iptables -t nat "+damage)
		w.settles(t, "iptables -t nat "+damage, fresh)
	}

	// A start on a node without any rule gives the same.
	for _, node := range w.nodes {
		w.SSH(t, node, "sh", "-c", "echo '*nat\nCOMMIT' | iptables-restore")
	}
	for _, n := range status(t, w.World).Nodes {
		kill(t, n.Agent.Pid)
	}
	well(t, w.World)
	w.settles(t, "a start without rules", fresh)
}

// systemInPlace waits until the nodes have the cluster's DNS and metrics-server, which come some seconds after up, so that no later dump
// differs by them.
func systemInPlace(t *testing.T, w *world.World, nodes []string) {
	t.Helper()
	eventually.Succeeds(t, time.Minute, func() error {
		for _, n := range nodes {
			to := regexp.MustCompile(`(?m)^-A KUBE-SEP-.* -j DNAT --to-destination \S+:(53|4443)$`)
			if rules := w.SSH(t, n, "iptables-save", "-t", "nat"); len(to.FindAllString(rules, -1)) != 3 {
				return fmt.Errorf("%s does not lead to the cluster's DNS by UDP and TCP, and to metrics-server:\n%s", n, rules)
			}
		}
		return nil
	})
}
