package claims

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/test/world"
)

// queryOf walks to a name, sends the query and the packet, too, and returns the query that the walk begins with. err is that of the walk.
func queryOf(t *testing.T, w *world.World, from, to string) (q *explain.QueryDoc, d explain.Document, err error) {
	t.Helper()
	out, err := w.Try(walkLimit, "walk", "--name", w.Name, "--live", "-o", "json", "--from", from, "--to", to)
	if e := json.Unmarshal([]byte(out), &d); e != nil {
		t.Fatalf("from %s to %s: %v, %v", from, to, err, e)
	}
	return d.Query, d, err
}

// expectQuery shows that a sender's query for a name goes to a server, that a host answers it, and that the kernel does the same.
func expectQuery(t *testing.T, w *world.World, from, to, server, answerer string) {
	t.Helper()
	q, _, err := queryOf(t, w, from, to)
	if err != nil || q == nil {
		t.Errorf("from %s to %s: %v, query %+v", from, to, err, q)
		return
	}
	proved := slices.ContainsFunc(q.Walk.Notes, func(n string) bool { m := agreed.FindStringSubmatch(n); return m != nil && m[1] == m[2] })
	end := q.Walk.Outcomes[0].End
	if q.Server != server || q.Fate != explain.QueryAnswered || !q.Resolved || !regexp.MustCompile(answerer).MatchString(end.Node) || !proved {
		t.Errorf("from %s to %s: %s %s by %s, notes %q; want %s answered by %s, proved", from, to, q.Server, q.Fate, end.Node, q.Walk.Notes, server, answerer)
	}
}

// TestNames shows the way of the query before a walk to a name, for each kind of sender: with LocalDNS, and without.
func TestNames(t *testing.T) {
	t.Parallel()
	coreDNS := func(w *world.World) {
		w.WaitService(t, "kube-system", "kube-dns")
	}
	t.Run("LocalDNS", func(t *testing.T) {
		w := world.Up(t, "todays-nodes", "client.yaml")
		w.Kubectl(t, "wait", "--for=condition=Ready", "pod/client", "--timeout=120s")
		coreDNS(w)
		node := strings.TrimSpace(w.Kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"))
		expectQuery(t, w, "pod/client", "ifconfig.co", "169.254.10.11", "^node/"+node+"$")
		expectQuery(t, w, "pod/client", "kubernetes.default.svc:443", "169.254.10.11", "^node/"+node+"$")
		expectQuery(t, w, "node/"+node, "ifconfig.co", "169.254.10.10", "^node/"+node+"$")
		expectQuery(t, w, "vm/vm", "ifconfig.co", "168.63.129.16", "^fabric$")
		expectQuery(t, w, "internet/client", "ifconfig.co", "198.51.100.1", "^internet$")

		rule := []string{"INPUT", "-d", "169.254.10.11/32", "-p", "udp", "--dport", "53", "-j", "DROP"}
		w.SSH(t, node, append([]string{"iptables", "-I"}, rule...)...)
		defer w.SSH(t, node, append([]string{"iptables", "-D"}, rule...)...)
		for _, name := range []string{"ifconfig.co", "other.example"} { // one that the lab knows without a resolver, and one that it does not
			q, d, err := queryOf(t, w, "pod/client", name)
			if err == nil || !strings.Contains(err.Error(), "exit status 1") {
				t.Errorf("a query for %s that is dropped: %v, want exit status 1", name, err)
			}
			if q == nil || q.Fate != explain.QueryLost || q.Resolved || len(d.Outcomes) > 0 || !strings.Contains(q.Text, "dropped on node "+node+" by filter INPUT 1: DROP") ||
				!slices.ContainsFunc(q.Walk.Notes, agreed.MatchString) {
				t.Errorf("a query for %s that is dropped: %+v", name, q)
			}
		}
	})
	t.Run("kube-dns", func(t *testing.T) {
		n := worldA(t, "whereami.yaml")
		coreDNS(n.World)
		expectQuery(t, n.World, "pod/"+n.pod, "ifconfig.co", "10.0.0.10", "^pod/kube-system/coredns-")
		expectQuery(t, n.World, "pod/"+n.pod, "whereami.default.svc.cluster.local", "10.0.0.10", "^pod/kube-system/coredns-")
		expectQuery(t, n.World, "node/"+n.node, "ifconfig.co", "168.63.129.16", "^fabric$")
		out, err := n.Try(walkLimit, "walk", "--name", n.Name, "--from", "node/"+n.node, "--to", "whereami.default.svc.cluster.local")
		if err == nil || !strings.Contains(err.Error(), "168.63.129.16 has no address for it") {
			t.Errorf("a node that asks for a name of the cluster: %v\n%s", err, out)
		}
	})
}
