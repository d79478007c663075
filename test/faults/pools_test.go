package faults

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"packetwalk.dev/test/world"
)

// poolWorld is the world of examples/calico: two nodes, a pod, a server in the cluster's VNet and one in a VNet that is a pool, too.
type poolWorld struct {
	*world.World
	api   rest.Interface
	nodes []string
	pod   corev1.Pod
}

const poolPath = "/apis/crd.projectcalico.org/v1/ippools"

func newPoolWorld(t *testing.T) *poolWorld {
	w := &poolWorld{World: freshOf(t, "pools", "calico")}
	w.Kubectl(t, "apply", "-f", w.Example("calico", "ubuntu.yaml"), "-f", w.Example("calico", "othervnet.yaml"))
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/ubuntu", "--timeout=60s")
	w.Get(t, &w.pod, "pod", "ubuntu")
	for _, n := range status(t, w.World).Nodes {
		w.nodes = append(w.nodes, n.Name)
	}
	w.api = apiClient(t, w.World).CoreV1().RESTClient()
	systemInPlace(t, w.World, w.nodes)
	world.Eventually(t, 5*time.Second, func() error {
		for node, dump := range w.dumps(t) {
			if strings.Count(dump, "\nadd ") != 4 {
				return fmt.Errorf("%s does not have both pools in both sets:\n%s", node, dump)
			}
		}
		return nil
	})
	return w
}

// systemInPlace waits until the nodes have the cluster's DNS and metrics-server, which come some seconds after up, so that no later dump
// differs by them.
func systemInPlace(t *testing.T, w *world.World, nodes []string) {
	t.Helper()
	world.Eventually(t, time.Minute, func() error {
		for _, n := range nodes {
			to := regexp.MustCompile(`(?m)^-A KUBE-SEP-.* -j DNAT --to-destination \S+:(53|4443)$`)
			if rules := w.SSH(t, n, "iptables-save", "-t", "nat"); len(to.FindAllString(rules, -1)) != 3 {
				return fmt.Errorf("%s does not lead to the cluster's DNS by UDP and TCP, and to metrics-server:\n%s", n, rules)
			}
		}
		return nil
	})
}

// change makes or deletes a pool.
func (w *poolWorld) change(ctx context.Context, t *testing.T, name, cidr string) {
	t.Helper()
	request := w.api.Delete().AbsPath(poolPath + "/" + name)
	if cidr != "" {
		request = w.api.Post().AbsPath(poolPath).SetHeader("Content-Type", "application/json").Body(fmt.Appendf(nil,
			`{"apiVersion":"crd.projectcalico.org/v1","kind":"IPPool","metadata":{"name":%q},"spec":{"cidr":%q,"natOutgoing":true,"disabled":true}}`,
			name, cidr))
	}
	if err := request.Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
}

// turns changes the pools that hold the other VNet n times four; at every time one of them does. Nothing is different in the end.
func (w *poolWorld) turns(t *testing.T, n int) {
	t.Helper()
	for range n {
		w.change(t.Context(), t, "narrow", "172.17.0.0/24")
		w.change(t.Context(), t, "othervnet", "")
		w.change(t.Context(), t, "othervnet", "172.17.0.0/16")
		w.change(t.Context(), t, "narrow", "")
	}
}

var poolNoise = regexp.MustCompile(`(?m) (hashsize|bucketsize|initval) \S+| \[\d+:\d+\]$|^(#|:KUBE-KUBELET-CANARY ).*\n`)

// dumps are the nodes' sets, sorted, and their tables nat, without what differs between any two of them.
func (w *poolWorld) dumps(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, n := range w.nodes {
		sets := slices.Sorted(strings.Lines(w.SSH(t, n, "ipset", "save")))
		all[n] = poolNoise.ReplaceAllString("\n"+strings.Join(sets, "")+w.SSH(t, n, "iptables-save", "-t", "nat"), "")
	}
	return all
}

func (w *poolWorld) settles(t *testing.T, after string, fresh map[string]string) {
	t.Helper()
	settles(t, after, fresh, w.dumps)
}

// requests has the pod call both servers, a connection each time, until stop is called. That gives how many calls the servers logged from
// the pod, and the lines of calls that came from elsewhere.
func (w *poolWorld) requests(t *testing.T) (stop func() (n int, wrong []string)) {
	t.Helper()
	script := `while ! [ -e /tmp/stop ]; do curl -s -o /dev/null --max-time 5 -H 'Connection: close' 'http://172.17.0.4/?[1-10]' 'http://10.240.0.97/?[1-10]'; sleep 0.05; done; rm /tmp/stop`
	cmd := w.Command("kubectl", "--name", w.Name, "exec", "ubuntu", "--", "sh", "-c", script)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() (n int, wrong []string) {
		t.Helper()
		w.Kubectl(t, "exec", "ubuntu", "--", "touch", "/tmp/stop")
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		for _, server := range []string{"vm/server-a", "vm/server-b"} {
			for line := range strings.Lines(w.Run(t, "logs", "--name", w.Name, server)) {
				if strings.HasPrefix(line, w.pod.Status.PodIP+" ") {
					n++
				} else {
					wrong = append(wrong, server+": "+line)
				}
			}
		}
		return n, wrong
	}
}

// TestCalicoPools: however pools change and whatever happens to agents, sets and rules, in the end each node is as after a fresh start; and
// on the way no call to a place that always is in a pool gets the node's address.
func TestCalicoPools(t *testing.T) {
	w := newPoolWorld(t)
	fresh := w.dumps(t)

	stop := w.requests(t)
	w.turns(t, 25)
	w.settles(t, "100 changes", fresh)
	for range 3 {
		w.change(t.Context(), t, "narrow", "172.17.0.0/24")
		for _, n := range status(t, w.World).Nodes {
			kill(t, n.Agent.Pid) // at whatever step it is
		}
		w.change(t.Context(), t, "narrow", "")
		well(t, w.World)
		w.settles(t, "kill -9", fresh)
	}
	n, wrong := stop()
	if n < 200 || len(wrong) > 0 {
		t.Errorf("%d calls as they should be; with another sender:\n%s", n, strings.Join(wrong, ""))
	}
	t.Logf("%d calls", n)

	// A start on a node with nothing of an agent's, and on one that holds half.
	const empty = "echo '*nat\nCOMMIT' | iptables-restore; ipset destroy; "
	w.SSH(t, w.nodes[0], "sh", "-c", empty)
	w.SSH(t, w.nodes[1], "sh", "-c",
		empty+"ipset create cali40all-ipam-pools hash:net maxelem 1048576; ipset create cali40all-ipam-pools-tmp hash:net")
	for _, n := range status(t, w.World).Nodes {
		kill(t, n.Agent.Pid)
	}
	well(t, w.World)
	w.settles(t, "a start without rules", fresh)
}
