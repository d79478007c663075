package claims

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/internal/testing/listing"
	"packetwalk.dev/test/world"
)

// nginxService is the chain of default/nginx, whose name follows from the service's own.
const nginxService = "KUBE-SVC-4N57TFCL4MD7ZTDA"

// iptablesWorld is a world of "Iptables in AKS": three nodes, an nginx on each.
type iptablesWorld struct {
	*world.World
	podRange string
	nodes    []string
	pods     []corev1.Pod // by address
}

// azureIPTables returns the world with Azure CNI, kubenetIPTables the one with kubenet.
func azureIPTables(t *testing.T) *iptablesWorld {
	t.Helper()
	return (&iptablesWorld{World: world.Up(t, "iptables", "nginx.yaml"), podRange: "10.220.2.0/24"}).complete(t)
}

func kubenetIPTables(t *testing.T) *iptablesWorld {
	t.Helper()
	return (&iptablesWorld{World: world.UpFile(t, "iptables", "kubenet.yaml", "nginx.yaml"), podRange: "10.100.0.0/16"}).complete(t)
}

// complete waits for the nginx on each node.
func (w *iptablesWorld) complete(t *testing.T) *iptablesWorld {
	t.Helper()
	w.WaitService(t, "kube-system", "kube-dns") // the cluster's DNS comes up after the cluster
	var nodes corev1.NodeList
	w.Get(t, &nodes, "nodes")
	for _, n := range nodes.Items {
		w.nodes = append(w.nodes, n.Name)
	}
	if len(w.nodes) != 3 {
		t.Fatalf("nodes %v, want 3", w.nodes)
	}
	w.endpoints(t, 3)
	return w
}

// endpoints waits until n pods are ready and the rules of every node lead to these pods only.
func (w *iptablesWorld) endpoints(t *testing.T, n int) {
	t.Helper()
	w.Kubectl(t, "rollout", "status", "deployment/nginx", "--timeout=120s")
	w.WaitService(t, "default", "nginx")
	if w.pods = w.Pods(t, "-l", "run=nginx"); len(w.pods) != n {
		t.Fatalf("%d pods, want %d", len(w.pods), n)
	}
	slices.SortFunc(w.pods, func(a, b corev1.Pod) int {
		return netip.MustParseAddr(a.Status.PodIP).Compare(netip.MustParseAddr(b.Status.PodIP))
	})
}

// natListing returns a chain as the article looks at it, without the two lines of head.
func (w *iptablesWorld) natListing(t *testing.T, node, chain string) []string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(w.SSH(t, node, "iptables", "-t", "nat", "-nvL", chain)), "\n")
	return lines[2:]
}

// balanced returns the rules of nginx's chain that choose an endpoint.
func (w *iptablesWorld) balanced(t *testing.T, node string) []string {
	t.Helper()
	var rules []string
	for line := range strings.Lines(w.SSH(t, node, "iptables", "-t", "nat", "-S", nginxService)) {
		if strings.HasPrefix(line, "-A ") {
			rules = append(rules, strings.TrimSpace(line))
		}
	}
	return rules
}

// services checks claim D1 (and with Azure CNI D5): for each port of a cluster IP the mark for senders outside the pods' range, then the
// service's chain; node ports at the end; the same on every node.
func (w *iptablesWorld) services(t *testing.T) {
	t.Helper()
	var list corev1.ServiceList
	w.Get(t, &list, "services", "-A")
	var ports []string
	for _, s := range list.Items {
		if s.Spec.Selector != nil {
			w.WaitService(t, s.Namespace, s.Name)
		}
		for _, p := range s.Spec.Ports {
			to := fmt.Sprintf("/* %s/%s:%s cluster IP */ %s dpt:%d", s.Namespace, s.Name, p.Name, strings.ToLower(string(p.Protocol)), p.Port)
			ports = append(ports, regexp.QuoteMeta(s.Spec.ClusterIP)+` +`+regexp.QuoteMeta(to)+`$`)
		}
	}
	same := map[string]bool{}
	for _, node := range w.nodes {
		rules := w.natListing(t, node, "KUBE-SERVICES")
		for _, port := range ports {
			mark := regexp.MustCompile(`^ *\d+ +\d+ KUBE-MARK-MASQ +\S+ +-- +\* +\* +` + regexp.QuoteMeta("!"+w.podRange) + ` +` + port)
			jump := regexp.MustCompile(`^ *\d+ +\d+ KUBE-SVC-[A-Z2-7]{16} +\S+ +-- +\* +\* +0\.0\.0\.0/0 +` + port)
			i := slices.IndexFunc(rules, mark.MatchString)
			if i < 0 || i+1 == len(rules) || !jump.MatchString(rules[i+1]) {
				t.Errorf("%s: no KUBE-MARK-MASQ and then KUBE-SVC for %s in\n%s", node, port, strings.Join(rules, "\n"))
			}
		}
		if len(rules) != 2*len(ports)+1 {
			t.Errorf("%s: %d rules for %d ports:\n%s", node, len(rules), len(ports), strings.Join(rules, "\n"))
		}
		expect(t, rules[len(rules)-1],
			`^ *\d+ +\d+ KUBE-NODEPORTS .* /\* kubernetes service nodeports; NOTE: this must be the last rule in this chain \*/ ADDRTYPE match dst-type LOCAL$`)
		same[sortedLines(w.SSH(t, node, "iptables", "-t", "nat", "-S", "KUBE-SERVICES"))] = true
	}
	if len(same) != 1 {
		t.Errorf("the nodes' rules differ: %v", same)
	}
}

func sortedLines(text string) string {
	return strings.Join(slices.Sorted(strings.Lines(text)), "")
}

// probabilities checks claims D2 and D3: how nginx's endpoints are chosen, in order, as the article prints it.
func (w *iptablesWorld) probabilities(t *testing.T, want ...string) {
	t.Helper()
	for _, node := range w.nodes {
		rules := w.natListing(t, node, nginxService)
		if len(rules) != len(want) {
			t.Fatalf("%s: %d rules, want %d:\n%s", node, len(rules), len(want), strings.Join(rules, "\n"))
		}
		for i, p := range want {
			pattern := `^ *\d+ +\d+ KUBE-SEP-[A-Z2-7]{16} +(all|0) +-- +\* +\* +0\.0\.0\.0/0 +0\.0\.0\.0/0`
			if p != "" {
				pattern += ` +statistic mode random probability ` + regexp.QuoteMeta(p)
			}
			expect(t, rules[i], pattern+` *$`)
		}
	}
}

// separate checks claim D4: the chains of nginx's endpoints, one for each pod.
func (w *iptablesWorld) separate(t *testing.T) {
	t.Helper()
	var got []string
	for _, rule := range w.balanced(t, w.nodes[0]) {
		chain := rule[strings.LastIndex(rule, " ")+1:]
		rules := w.natListing(t, w.nodes[0], chain)
		if len(rules) != 2 {
			t.Fatalf("%s has %d rules:\n%s", chain, len(rules), strings.Join(rules, "\n"))
		}
		m := regexp.MustCompile(` tcp to:(.*):80$`).FindStringSubmatch(rules[1])
		if m == nil {
			t.Fatalf("%s: %s", chain, rules[1])
		}
		expect(t, rules[0], `^ *\d+ +\d+ KUBE-MARK-MASQ +(all|0) +-- +\* +\* +`+regexp.QuoteMeta(m[1])+` +0\.0\.0\.0/0 *$`)
		expect(t, rules[1], `^ *\d+ +\d+ DNAT +(tcp|6) +-- +\* +\* +0\.0\.0\.0/0 +0\.0\.0\.0/0 +tcp to:`)
		got = append(got, m[1])
	}
	var want []string
	for _, p := range w.pods {
		want = append(want, p.Status.PodIP)
		if !netip.MustParsePrefix(w.podRange).Contains(netip.MustParseAddr(p.Status.PodIP)) {
			t.Errorf("pod %s has %s, outside %s", p.Name, p.Status.PodIP, w.podRange)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("endpoints %v, want the pods %v", got, want)
	}
}

// scaled runs f with two pods in place of three.
func (w *iptablesWorld) scaled(t *testing.T, f func()) {
	t.Helper()
	w.Kubectl(t, "scale", "deployment/nginx", "--replicas=2")
	defer func() {
		w.Kubectl(t, "scale", "deployment/nginx", "--replicas=3")
		w.endpoints(t, 3)
	}()
	w.endpoints(t, 2)
	f()
}

// sameListing brings the objects of a scenario into the kernel and compares chains with the article's listing of them.
func sameListing(t *testing.T, scenario string, match string) {
	t.Helper()
	saved, archive := generated(t, scenario)
	article, assumed, err := listing.Parse(iptables.NAT, section(t, archive, "listing"))
	if err != nil || len(assumed) > 0 {
		t.Fatalf("the article's listing: %v, assumed %v", err, assumed)
	}
	tables, err := iptables.Parse([]byte(saved))
	if err != nil {
		t.Fatal(err)
	}
	nat := tables[slices.IndexFunc(tables, func(t iptables.Table) bool { return t.Name == iptables.NAT })]
	compared := 0
	for _, want := range article.Chains {
		if !strings.HasPrefix(want.Name, match) {
			continue
		}
		compared++
		got := nat.Chain(want.Name)
		if got == nil {
			t.Errorf("no chain %s", want.Name)
			continue
		}
		if diff := cmp.Diff(specs(&want), specs(got)); diff != "" {
			t.Errorf("%s differs from the article's (-article +kernel):\n%s", want.Name, diff)
		}
	}
	if compared == 0 {
		t.Errorf("the article has no chain %s", match)
	}
}

// specs returns a chain's rules, sorted where their order is no part of a claim.
func specs(c *iptables.Chain) []string {
	var specs []string
	for _, r := range c.Rules {
		specs = append(specs, r.Spec())
	}
	if !inOrder.MatchString(c.Name) {
		slices.Sort(specs)
	}
	return specs
}

func TestD1(t *testing.T) {
	t.Parallel()
	sameListing(t, "d1-kubenet-1.19.txtar", "KUBE-SERVICES")
	t.Run("kubenet", func(t *testing.T) { kubenetIPTables(t).services(t) })
	t.Run("azure", func(t *testing.T) { azureIPTables(t).services(t) })
}

func TestD2(t *testing.T) {
	t.Parallel()
	sameListing(t, "d1-kubenet-1.19.txtar", "KUBE-SVC-")
	kubenetIPTables(t).probabilities(t, "0.33333333349", "0.50000000000", "")
}

func TestD3(t *testing.T) {
	t.Parallel()
	sameListing(t, "d3-scaled-1.19.txtar", "KUBE-SVC-")
	w := kubenetIPTables(t)
	w.scaled(t, func() { w.probabilities(t, "0.50000000000", "") })
}

func TestD4(t *testing.T) {
	t.Parallel()
	sameListing(t, "d1-kubenet-1.19.txtar", "KUBE-SEP-66QNMC7FITAI6UHV")
	kubenetIPTables(t).separate(t)
}

func TestD5(t *testing.T) {
	t.Parallel()
	sameListing(t, "d5-azure-cni-1.19.txtar", "KUBE-")
	w := azureIPTables(t)
	w.services(t)
	w.probabilities(t, "0.33333333349", "0.50000000000", "")
	w.separate(t)
	w.scaled(t, func() { w.probabilities(t, "0.50000000000", "") })
}
