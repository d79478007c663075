package claims

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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

// azureIPTables is the world with Azure CNI, kubenetIPTables the one with kubenet.
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
	w.Kubectl(t, "rollout", "status", "deployment/nginx", "--timeout=60s")
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

// endpoints waits until so many pods run and every node's rules lead to them and nobody else.
func (w *iptablesWorld) endpoints(t *testing.T, n int) {
	t.Helper()
	world.Eventually(t, 30*time.Second, func() error {
		var pods corev1.PodList
		w.Get(t, &pods, "pods", "-l", "run=nginx")
		w.pods = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || p.Status.PodIP == "" })
		slices.SortFunc(w.pods, func(a, b corev1.Pod) int {
			return netip.MustParseAddr(a.Status.PodIP).Compare(netip.MustParseAddr(b.Status.PodIP))
		})
		if len(w.pods) != n {
			return fmt.Errorf("%d pods, want %d", len(w.pods), n)
		}
		for _, node := range w.nodes {
			if got := w.balanced(t, node); len(got) != n {
				return fmt.Errorf("%s: %s has %d rules, want %d", node, nginxService, len(got), n)
			}
		}
		return nil
	})
}

// natListing is a chain as the article looks at it, the two lines of head left out.
func (w *iptablesWorld) natListing(t *testing.T, node, chain string) []string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(w.SSH(t, node, "iptables", "-t", "nat", "-nvL", chain)), "\n")
	return lines[2:]
}

// balanced are the rules of nginx's chain that choose an endpoint; empty while there is no such chain.
func (w *iptablesWorld) balanced(t *testing.T, node string) []string {
	t.Helper()
	out, err := w.Try(10*time.Second, "ssh", "--name", w.Name, node, "--", "iptables", "-t", "nat", "-S", nginxService)
	if err != nil {
		return nil
	}
	var rules []string
	for line := range strings.Lines(out) {
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
	for _, node := range w.nodes {
		world.Eventually(t, time.Minute, func() error { // the cluster's DNS comes up after the cluster
			out, err := w.Try(10*time.Second, "ssh", "--name", w.Name, node, "--", "iptables", "-t", "nat", "-S", "KUBE-SERVICES")
			if err == nil && strings.Count(out, "kube-system/kube-dns:") != 4 { // two ports, a mark and a jump each
				err = fmt.Errorf("kube-dns is not among the services of %s:\n%s", node, out)
			}
			return err
		})
	}
	var list corev1.ServiceList
	w.Get(t, &list, "services", "-A")
	var ports []string
	for _, s := range list.Items {
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

// specs are a chain's rules, sorted where their order is no part of a claim.
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
	sameListing(t, "d1-kubenet-1.19.txtar", "KUBE-SERVICES")
	kubenetIPTables(t).services(t)
	azureIPTables(t).services(t)
}

func TestD2(t *testing.T) {
	sameListing(t, "d1-kubenet-1.19.txtar", "KUBE-SVC-")
	kubenetIPTables(t).probabilities(t, "0.33333333349", "0.50000000000", "")
}

func TestD3(t *testing.T) {
	sameListing(t, "d3-scaled-1.19.txtar", "KUBE-SVC-")
	w := kubenetIPTables(t)
	w.scaled(t, func() { w.probabilities(t, "0.50000000000", "") })
}

func TestD4(t *testing.T) {
	sameListing(t, "d1-kubenet-1.19.txtar", "KUBE-SEP-66QNMC7FITAI6UHV")
	kubenetIPTables(t).separate(t)
}

func TestD5(t *testing.T) {
	sameListing(t, "d5-azure-cni-1.19.txtar", "KUBE-")
	w := azureIPTables(t)
	w.services(t)
	w.probabilities(t, "0.33333333349", "0.50000000000", "")
	w.separate(t)
	w.scaled(t, func() { w.probabilities(t, "0.50000000000", "") })
}

// masqReturns are the ranges of the chain's RETURN rules; the rules themselves are checked to the letter.
func (w *iptablesWorld) masqReturns(t *testing.T, node string) (ranges []string) {
	t.Helper()
	rules := w.natListing(t, node, "IP-MASQ-AGENT")
	for _, r := range rules[:len(rules)-1] {
		m := regexp.MustCompile(`^ *\d+ +\d+ RETURN +(?:all|0) +-- +\* +\* +0\.0\.0\.0/0 +(\S+) +/\* ip-masq-agent: local traffic is not subject to MASQUERADE \*/$`).
			FindStringSubmatch(strings.TrimRight(r, " "))
		if m == nil {
			t.Fatalf("%s: %s", node, r)
		}
		ranges = append(ranges, m[1])
	}
	last := regexp.MustCompile(`^ *\d+ +\d+ MASQUERADE +(?:all|0) +-- +\* +\* +0\.0\.0\.0/0 +0\.0\.0\.0/0 +` +
		`/\* ip-masq-agent: outbound traffic is subject to MASQUERADE \(must be last in chain\) \*/$`).MatchString(strings.TrimRight(rules[len(rules)-1], " "))
	if !last {
		t.Fatalf("%s: %s", node, rules[len(rules)-1])
	}
	return ranges
}

var seedRanges = []string{"10.220.0.0/16", "10.220.2.0/24", "10.200.0.0/16"}

// get has a pod fetch the server's page, and gives the address that the server's log then shows.
func (w *iptablesWorld) get(t *testing.T, pod corev1.Pod, server, address string) string {
	t.Helper()
	before := w.Run(t, "logs", "--name", w.Name, server)
	w.Kubectl(t, "exec", pod.Name, "--", "curl", "-sS", "-o", "/dev/null", "--max-time", "3", "http://"+address)
	var line string
	world.Eventually(t, 5*time.Second, func() error {
		line = strings.TrimPrefix(w.Run(t, "logs", "--name", w.Name, server), before)
		if !strings.HasSuffix(line, "\n") {
			return errors.New("no line in the server's log")
		}
		return nil
	})
	return strings.Fields(line)[0]
}

func TestD6(t *testing.T) {
	w := azureIPTables(t)
	for _, node := range w.nodes {
		rules := w.natListing(t, node, "POSTROUTING")
		if len(rules) != 3 {
			t.Fatalf("%s: %d rules:\n%s", node, len(rules), strings.Join(rules, "\n"))
		}
		for i, pattern := range []string{
			`^ *\d+ +\S+ KUBE-POSTROUTING +(all|0) +-- +\* +\* +0\.0\.0\.0/0 +0\.0\.0\.0/0 +/\* kubernetes postrouting rules \*/ *$`,
			`^ *\d+ +\S+ MASQUERADE +(all|0) +-- +\* +!docker0 +172\.17\.0\.0/16 +0\.0\.0\.0/0 *$`,
			`^ *\d+ +\S+ IP-MASQ-AGENT +(all|0) +-- +\* +\* +0\.0\.0\.0/0 +0\.0\.0\.0/0 +/\* ip-masq-agent: ensure nat POSTROUTING directs all non-LOCAL ` +
				`destination traffic to our custom IP-MASQ-AGENT chain \*/ ADDRTYPE match dst-type !LOCAL *$`,
		} {
			expect(t, rules[i], pattern)
		}
		if ranges := w.masqReturns(t, node); !slices.Equal(ranges, seedRanges) {
			t.Errorf("%s: RETURN for %v, want %v", node, ranges, seedRanges)
		}
	}
	// Each counter counts what is its rule's, one packet a flow: 10.220.2.0/24 is in the range before it, so nothing is left to it.
	pod := w.pods[0]
	for _, c := range []struct {
		what, to string
		rule     int // of IP-MASQ-AGENT; the others count less
	}{{"a VM in the VNet", "10.220.1.4", 0}, {"a node's subnet", "10.220.2.200", 0}, {"an address of no service", "10.200.255.254", 2},
		{"beyond", "10.1.1.4", 3}} {
		const flows = 60
		before := w.counters(t, pod.Spec.NodeName)
		w.SSH(t, "pod/default/"+pod.Name, "bash", "-c", `for i in $(seq $1); do echo > /dev/udp/$2/9; done`, "flows", strconv.Itoa(flows), c.to)
		after := w.counters(t, pod.Spec.NodeName)
		for i := range after.agent {
			if n := after.agent[i] - before.agent[i]; (n >= flows) != (i == c.rule) {
				t.Errorf("%d flows to %s: counter %d of IP-MASQ-AGENT rises by %d", flows, c.what, i+1, n)
			}
		}
		for i, want := range []bool{true, false, true} { // all pass the jumps; no container of Docker sends
			if n := after.postrouting[i] - before.postrouting[i]; (n >= flows) != want {
				t.Errorf("%d flows to %s: counter %d of POSTROUTING rises by %d", flows, c.what, i+1, n)
			}
		}
	}
}

// masqCounters are the packets that each rule has counted.
type masqCounters struct{ postrouting, agent []int }

func (w *iptablesWorld) counters(t *testing.T, node string) masqCounters {
	t.Helper()
	of := func(chain string) (counts []int) {
		for _, r := range strings.Split(strings.TrimSpace(w.SSH(t, node, "iptables", "-t", "nat", "-nvxL", chain)), "\n")[2:] {
			n, err := strconv.Atoi(strings.Fields(r)[0])
			if err != nil {
				t.Fatalf("%s: %s", chain, r)
			}
			counts = append(counts, n)
		}
		return counts
	}
	return masqCounters{of("POSTROUTING"), of("IP-MASQ-AGENT")}
}

func TestD7(t *testing.T) {
	w := azureIPTables(t)
	world.Eventually(t, 30*time.Second, func() error {
		pods := w.Kubectl(t, "get", "pods", "-n", "kube-system", "-o", "wide")
		for i, node := range w.nodes {
			address := fmt.Sprintf("10.220.2.%d", 4+31*i)
			if !regexp.MustCompile(`(?m)^azure-ip-masq-agent-[a-z0-9]{5} +1/1 +Running +0 +\S+ +` + regexp.QuoteMeta(address) + ` +` + node +
				` `).MatchString(pods) {
				return fmt.Errorf("no azure-ip-masq-agent on %s, %s:\n%s", node, address, pods)
			}
		}
		return nil
	})
	expect(t, w.Kubectl(t, "get", "configmaps", "-n", "kube-system"), `^azure-ip-masq-agent-config +1 `)
	const want = `apiVersion: v1
data:
  ip-masq-agent: |-
    nonMasqueradeCIDRs:
      - 10.220.0.0/16
      - 10.220.2.0/24
      - 10.200.0.0/16
    masqLinkLocal: true
    resyncInterval: 60s
kind: ConfigMap
`
	if got := w.Kubectl(t, "get", "configmap", "azure-ip-masq-agent-config", "-n", "kube-system", "-o", "yaml"); !strings.HasPrefix(got, want) {
		t.Errorf("the ConfigMap differs from the article's (-article +cluster):\n%s", cmp.Diff(want, got))
	}
	expect(t, w.Kubectl(t, "logs", "-n", "kube-system", "daemonset/azure-ip-masq-agent"),
		`using config: .*"10\.220\.0\.0/16","10\.220\.2\.0/24","10\.200\.0\.0/16"`)
}

func TestD8(t *testing.T) {
	w := azureIPTables(t)
	pod := w.pods[0]
	var node corev1.Node
	w.Get(t, &node, "node", pod.Spec.NodeName)
	expectSeen := func(when, want string) {
		t.Helper()
		if got := w.get(t, pod, "server", "10.1.1.4"); got != want {
			t.Errorf("%s the server saw %s, want %s", when, got, want)
		}
	}
	expectWalk := func(want string) {
		t.Helper()
		expect(t, w.Run(t, "walk", "--name", w.Name, "--from", "pod/"+pod.Name, "--to", "vm/server:80", "--live"),
			`^kernel: (\d+) of (\d+) steps agree$`, want)
	}
	expectSeen("before", node.Status.Addresses[0].Address)
	expectWalk(`^the destination sees ` + regexp.QuoteMeta(node.Status.Addresses[0].Address) +
		`:\d+, because nat IP-MASQ-AGENT 4: MASQUERADE \(ip-masq-agent: outside nonMasqueradeCIDRs`)

	// What does not parse, or has an error, changes nothing, and is reported.
	original := w.Kubectl(t, "get", "configmap", "azure-ip-masq-agent-config", "-n", "kube-system", "-o", "jsonpath={.data.ip-masq-agent}")
	for _, bad := range []struct{ config, event string }{
		{"nonMasqueradeCIDRs: [10.1.0.0/16\nmasqLinkLocal: {", `key ip-masq-agent: `},
		{strings.Replace(original, "10.200.0.0/16", "10.1.0.0/16\n  - 10.200.0.1/16", 1),
			`key ip-masq-agent, nonMasqueradeCIDRs\[3\]: 10\.200\.0\.1/16 is not aligned`},
	} {
		w.setMasqConfig(t, bad.config)
		world.Eventually(t, 10*time.Second, func() error {
			text := w.Kubectl(t, "describe", "configmap", "azure-ip-masq-agent-config", "-n", "kube-system")
			if !regexp.MustCompile(`Warning +InvalidIPMasqConfig .* ip-masq-agent +` + bad.event).MatchString(text) {
				return errors.New(text)
			}
			return nil
		})
		for _, n := range w.nodes {
			if ranges := w.masqReturns(t, n); !slices.Equal(ranges, seedRanges) {
				t.Errorf("%s: a configuration with an error made RETURN rules for %v", n, ranges)
			}
		}
	}

	// The range of the article, at once on every node.
	defer w.masqIs(t, seedRanges...)
	defer w.setMasqConfig(t, original)
	w.Kubectl(t, "apply", "-f", w.Example("iptables", "ip-masq-agent-config.yaml"))
	w.masqIs(t, append(slices.Clone(seedRanges), "10.1.0.0/16")...)
	expectSeen("after", pod.Status.PodIP)
	w.resyncs(t, original)
	w.Kubectl(t, "apply", "-f", w.Example("iptables", "ip-masq-agent-config.yaml"))
	w.masqIs(t, append(slices.Clone(seedRanges), "10.1.0.0/16")...)
	expectWalk(`nat IP-MASQ-AGENT 4: -d 10\.1\.0\.0/16 -j RETURN \(ip-masq-agent: .*10\.1\.0\.0/16 .*azure-ip-masq-agent-config`)
}

// resyncs: without a watch a change is in force after the resyncInterval.
func (w *iptablesWorld) resyncs(t *testing.T, config string) {
	t.Helper()
	w.setMasqConfig(t, strings.Replace(config, "resyncInterval: 60s", "resyncInterval: 3s", 1))
	w.masqIs(t, seedRanges...)
	role := w.Kubectl(t, "get", "clusterrole", "packetwalk:node-agent", "-o", "json")
	rule := strings.TrimSpace(w.Kubectl(t, "get", "clusterrole", "packetwalk:node-agent", "-o",
		"jsonpath={.rules[0].resources[0]} {.rules[0].verbs[2]}"))
	if rule != "configmaps watch" {
		t.Fatalf("the agent's role begins with %q: %s", rule, role)
	}
	w.Kubectl(t, "patch", "clusterrole", "packetwalk:node-agent", "--type=json", "-p", `[{"op":"remove","path":"/rules/0/verbs/2"}]`)
	defer w.Kubectl(t, "patch", "clusterrole", "packetwalk:node-agent", "--type=json", "-p",
		`[{"op":"add","path":"/rules/0/verbs/2","value":"watch"}]`)
	for _, n := range w.nodes {
		w.SSH(t, n, "ss", "-K", "-tn", "dport", "=", ":443") // ends the watches that there are; others are refused
	}
	w.setMasqConfig(t, strings.NewReplacer("resyncInterval: 60s", "resyncInterval: 3s", "- 10.200.0.0/16",
		"- 10.200.0.0/16\n  - 10.2.0.0/16").Replace(config))
	w.masqIs(t, append(slices.Clone(seedRanges), "10.2.0.0/16")...)
}

func (w *iptablesWorld) setMasqConfig(t *testing.T, text string) {
	t.Helper()
	w.Kubectl(t, "patch", "configmap", "azure-ip-masq-agent-config", "-n", "kube-system", "--type=merge", "-p",
		fmt.Sprintf(`{"data":{"ip-masq-agent":%q}}`, text))
}

// masqIs waits, for much less than the resyncInterval of 60 s, until every node has RETURN rules for the ranges.
func (w *iptablesWorld) masqIs(t *testing.T, want ...string) {
	t.Helper()
	world.Eventually(t, 10*time.Second, func() error {
		for _, n := range w.nodes {
			if got := w.masqReturns(t, n); !slices.Equal(got, want) {
				return fmt.Errorf("%s: RETURN for %v, want %v", n, got, want)
			}
		}
		return nil
	})
}
