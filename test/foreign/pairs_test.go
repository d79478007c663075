package foreign

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/test/agree"
	"packetwalk.dev/test/world"
)

// outside is a host of the lab's internet that answers on port 80.
const outside = "198.51.100.80"

// pairs returns walks from every kind of end to every kind of end.
func pairs(t *testing.T, w *world.World, objects *snapshot.Objects) []agree.Pair {
	t.Helper()
	var senders []string
	var all []agree.Pair
	pods := podsOf(objects, "echo-")
	hosts := podsOf(objects, "host-")
	if len(pods) != nodes || len(hosts) != nodes || len(objects.Nodes) != nodes {
		t.Fatalf("there are %d nodes, %d pods, %d pods in the nodes' own network", len(objects.Nodes), len(pods), len(hosts))
	}
	names := nodeNames(objects)
	senders = append(senders, "pod/"+pods[0], "pod/"+pods[1], "pod/"+hosts[0], "node/"+names[0], "node/"+names[2])
	for _, from := range senders {
		for _, to := range targets(t, w, objects, pods) {
			// A program that does not look at which address a datagram was for answers from the one by the route back: to a pod of its own
			// node from the bridge's, and that is no answer.
			on, isPod := strings.CutPrefix(from, "pod/")
			if isPod && to.Proto == "udp" && to.To == "node/"+nodeOf(objects, on)+":7" {
				continue
			}
			all = append(all, agree.Pair{From: from, To: to.To, Proto: to.Proto})
		}
	}
	for _, service := range []string{"balanced", "balanced-local", "restricted"} { // who is outside comes by the balancer
		all = append(all, agree.Pair{From: "internet", To: "svc/" + service, Proto: "tcp"})
	}
	return all
}

func podsOf(objects *snapshot.Objects, prefix string) (names []string) {
	for _, p := range objects.Pods {
		if p.Namespace == "default" && strings.HasPrefix(p.Name, prefix) {
			names = append(names, p.Name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(nodeOf(objects, a), nodeOf(objects, b)) })
	return names
}

func nodeOf(objects *snapshot.Objects, pod string) string {
	for _, p := range objects.Pods {
		if p.Name == pod {
			return p.Node
		}
	}
	return ""
}

func nodeNames(objects *snapshot.Objects) (names []string) {
	for _, n := range objects.Nodes {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return names
}

// targets returns every kind of end that a packet can be for.
func targets(t *testing.T, w *world.World, objects *snapshot.Objects, pods []string) (all []agree.Pair) {
	t.Helper()
	add := func(proto, format string, values ...any) {
		all = append(all, agree.Pair{To: fmt.Sprintf(format, values...), Proto: proto})
	}
	for _, p := range pods {
		add("tcp", "pod/%s:80", p)
		add("udp", "pod/%s:7", p)
		add("icmp", "pod/%s", p)
	}
	add("tcp", "pod/%s:81", pods[2]) // no process listens
	add("udp", "pod/%s:81", pods[2])
	for _, n := range nodeNames(objects) {
		add("tcp", "node/%s:7", n)
		add("udp", "node/%s:7", n)
		add("icmp", "node/%s", n)
		add("tcp", "node/%s:8080", n)  // a hostPort
		add("udp", "node/%s:8007", n)  // another
		add("tcp", "node/%s:30080", n) // node ports
		add("udp", "node/%s:30007", n)
		add("tcp", "node/%s:30081", n) // of a service with policy Local
	}
	for _, s := range []string{"cluster:80", "cluster:7", "sticky", "inside", "empty", "hosts", "nodes:80", "balanced", "balanced-local",
		"restricted", "kubernetes:443", "kube-system/kube-dns:53"} {
		add("tcp", "svc/%s", s)
	}
	add("udp", "svc/cluster:7")
	add("udp", "svc/kube-system/kube-dns:53")
	add("icmp", "%s", w.Kubectl(t, "get", "service", "cluster", "-o", "jsonpath={.spec.clusterIP}"))
	add("tcp", outside+":80")
	add("icmp", outside)
	return all
}
