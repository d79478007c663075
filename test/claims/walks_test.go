package claims

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/test/world"
)

// The tests of the files walks*_test.go prove walks on the claims' labs: every kind of sender to every kind of destination, with the kernel's
// own trace beside them.

// A walk is sent up to three times while the world changes, and what does not agree is waited for each time: on a busy machine all that
// has taken more than 20 s.
const walkLimit = time.Minute

var agreed = regexp.MustCompile(`(?m)^kernel: (\d+) of (\d+) steps agree$`)

// live walks a packet and the real one beside it, and gives the output. Everything has to agree.
func live(t *testing.T, w *world.World, args ...string) string {
	t.Helper()
	start := time.Now()
	args = append([]string{"walk", "--name", w.Name, "--live"}, args...)
	out, err := w.Try(walkLimit, args...)
	if err != nil && strings.Contains(err.Error(), "there is no route to it") {
		time.Sleep(3 * time.Second) // routers tell a sender of few errors in a row, then of one a second (net/ipv4/route.c: ip_error)
		out, err = w.Try(walkLimit, args...)
	}
	took := time.Since(start)
	if err != nil {
		t.Error(err)
		return out
	}
	m := agreed.FindStringSubmatch(out)
	if m == nil || m[1] != m[2] || m[1] == "0" {
		t.Errorf("packetwalk %s: not proved\n%s", strings.Join(args, " "), out)
		return out
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	t.Logf("%s steps, %v: %s: %s", m[1], took.Round(time.Millisecond), strings.Join(args, " "), lines[len(lines)-1])
	return out
}

// network is world A with whereami on it, and the ends that its walks have.
type network struct {
	*world.World
	node, pod, other string
	service          corev1.Service
	vip              string
}

func worldA(t *testing.T, manifest string) *network {
	t.Helper()
	n := &network{World: world.Up(t, "azure-cni", manifest)}
	n.Kubectl(t, "rollout", "status", "deployment/whereami", "--timeout=120s")
	n.service = n.WaitService(t, "default", "whereami")
	n.vip = n.service.Status.LoadBalancer.Ingress[0].IP
	pods := n.Pods(t, "-l", "app=whereami")
	if len(pods) != 2 {
		t.Fatalf("%d pods", len(pods))
	}
	n.pod, n.other, n.node = pods[0].Name, pods[1].Name, pods[0].Spec.NodeName
	return n
}

func (n *network) senders() []string {
	return []string{"pod/" + n.pod, "node/" + n.node, "vm/testvm", "internet/client"}
}

// TestEveryPair: (pod, node, VM, internet) × (pod, cluster IP, node port, front end, VM, internet), with externalTrafficPolicy Cluster and
// Local; where it exists, the way back too.
func TestEveryPair(t *testing.T) {
	t.Parallel()
	for _, manifest := range []string{"whereami.yaml", "whereami-local.yaml"} {
		n := worldA(t, manifest)
		nodePort := n.service.Spec.Ports[0].NodePort
		for _, from := range n.senders() {
			for _, to := range []string{
				"pod/" + n.other + ":80", "svc/whereami", fmt.Sprintf("node/%s:%d", n.node, nodePort), n.vip + ":80", "vm/testvm:22",
				"internet/ifconfig.co:80",
			} {
				live(t, n.World, "--from", from, "--to", to)
			}
		}
	}
}

// TestProtocols: echo requests, datagrams, and a pod that reaches itself through its own service.
func TestProtocols(t *testing.T) {
	t.Parallel()
	n := worldA(t, "whereami.yaml")
	for _, from := range n.senders() {
		for _, to := range []string{"pod/" + n.other, "vm/testvm", "internet/ifconfig.co", "node/" + n.node} {
			live(t, n.World, "--proto", "icmp", "--from", from, "--to", to)
		}
		for _, to := range []string{"pod/" + n.other + ":5353", "vm/testvm:53", "internet/ifconfig.co:5353"} {
			live(t, n.World, "--proto", "udp", "--from", from, "--to", to)
		}
	}
	for range 4 {
		live(t, n.World, "--from", "pod/"+n.pod, "--to", "svc/whereami")
		live(t, n.World, "--from", "pod/"+n.pod, "--to", n.vip+":80")
	}
	live(t, n.World, "--from", "pod/"+n.pod, "--to", "svc/kubernetes")
	live(t, n.World, "--from", "node/"+n.node, "--to", "svc/kubernetes")
}

// TestDoesNotLast: kube-proxy's nat rules mark the first packet and have it masqueraded for the interface it leaves by. A policy route
// takes the acknowledgement, which has no mark, out by another. The prediction alone says so, as the kernel does.
func TestDoesNotLast(t *testing.T) {
	t.Parallel()
	n := worldA(t, "whereami.yaml")
	n.SSH(t, n.node, `
ip link add aside type veth peer name aside2
ip link set aside up
ip route add default dev aside table 77
ip rule add priority 77 iif azure0 to 10.13.76.0/24 fwmark 0/0x4000 table 77`)
	defer n.SSH(t, n.node, `
ip rule del priority 77
ip link del aside`)
	args := []string{"walk", "--name", n.Name, "--from", "vm/testvm", "--to",
		fmt.Sprintf("node/%s:%d", n.node, n.service.Spec.Ports[0].NodePort)}
	for _, how := range []string{"", "--live"} {
		out, err := n.Try(walkLimit, strings.Fields(strings.Join(args, " ")+" "+how)...)
		if err != nil {
			t.Error(err)
		}
		if !regexp.MustCompile(`the connection does not last: on node/\S+ the connection is masqueraded for \w+: that a packet of it leaves by aside ends it`).MatchString(out) {
			t.Errorf("%s\n%s", how, out)
		}
	}
}
