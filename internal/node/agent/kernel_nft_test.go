package agent

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
)

// TestServicesByNFTables: connections through a table of maps land as through iptables' rules; and both leave nothing to the other.
func TestServicesByNFTables(t *testing.T) {
	for _, family := range []service.Family{service.IPv4, service.IPv6} {
		t.Run(family.String(), func(t *testing.T) { servicesByNFTables(t, family) })
	}
}

func servicesByNFTables(t *testing.T, family service.Family) {
	t.Parallel()
	w := newWorldOf(t, family, iptables.RulesCurrent, options.BackendNFTables)
	w.state.ServiceCIDRs = []*networkingv1.ServiceCIDR{{Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{w.at("10.0.0.0/16")}}}}
	w.services()
	agent := w.agent()

	w.Run("LoadBalancerCluster", func(*testing.T) { w.cluster(vip + ":80") })
	w.Run("NodePortCluster", func(*testing.T) { w.cluster(nodeIPs + ":30001") })
	w.Run("ClusterIP", func(*testing.T) { w.clusterIP() })
	w.Run("LoadBalancerLocal", func(*testing.T) { w.local(localVIP + ":80") })
	w.Run("NodePortLocal", func(*testing.T) { w.local(nodeIPs + ":30002") })
	w.Run("Reject", func(*testing.T) {
		// Not from the client: a packet that leaves by the link it came by is answered with a redirect, and the kernel then holds errors back.
		for _, from := range []string{"node", "p1"} {
			for _, to := range []string{"10.0.0.4:80", "10.0.0.2:81"} { // without endpoints, and an unused port
				w.eventually(from+" refused at "+to, func() bool { return strings.Contains(w.ask(from, "tcp", to), "refused") })
			}
		}
	})
	w.Run("Unallocated", func(*testing.T) {
		// Of what it drops on its way out the kernel tells the sender.
		w.eventually("an unallocated cluster IP", func() bool { return strings.Contains(w.ask("node", "udp", "10.0.99.99:53"), "not permitted") })
	})
	w.Run("NodeMasquerade", func(*testing.T) { w.nodeMasquerade() })
	w.Run("Affinity", func(*testing.T) { w.affinity(tcp(30003)) })
	w.Run("Repair", func(*testing.T) { w.repairTable() })
	w.Run("UDP", func(*testing.T) { w.udp(dns) })
	w.Run("Restart", func(*testing.T) { agent = w.restart(agent) })
	w.Run("HealthCheck", func(*testing.T) { w.healthCheck(tcp(30002)) })
	w.Run("Switch", func(*testing.T) { agent = w.switchBackends(agent) })
	agent.stop()
	if got := w.ask("client", "tcp", vip+":80"); !strings.HasPrefix(got, "p") {
		t.Errorf("after the agent's end: %s", got)
	}
	w.Run("KeepDamage", func(*testing.T) {
		chain := w.tool("ip") + " " + nftables.TableName + " mark-for-masquerade"
		w.keepDamage("flush chain "+chain, func() string { return w.nft("list chain %s", chain) }, func() { w.nft("flush chain %s", chain) })
	})
	w.nft("add table ip %s", nftables.TableName) // as of an agent that served both families
	w.nft("add table ip6 %s", nftables.TableName)
	if out, err := w.role("node", "cleanup", w.path).CombinedOutput(); err != nil {
		t.Errorf("clean up: %v: %s", err, out)
	}
	if tables := w.nft("list tables"); strings.Contains(tables, nftables.TableName) {
		t.Errorf("after a clean-up there are\n%s", tables)
	}
}

func (w *world) nft(format string, args ...any) string {
	w.Helper()
	return w.sh("ip netns exec "+w.node+" nft "+format, args...)
}

// affinity: a client stays with its endpoint, by each of the service's addresses, while others come and go; and leaves it when it is gone.
func (w *world) affinity(port corev1.ServicePort) {
	w.Helper()
	const address = "203.0.113.13"
	set := func(endpoints ...string) {
		w.service("sticky", "10.0.0.5", address, false, port, endpoints...)
		w.sticky("sticky")
		w.save()
		w.eventually("the endpoints", func() bool {
			var got []string
			for element := range strings.SplitSeq(w.nft("list map %s %s cluster-endpoints", w.tool("ip"), nftables.TableName), ",") {
				if key, endpoint, _ := strings.Cut(element, " : "); strings.Contains(key, w.at("10.0.0.5")+" . ") {
					ip, _, _ := strings.Cut(endpoint, " . ")
					got = append(got, ip)
				}
			}
			var want []string
			for _, e := range endpoints {
				want = append(want, w.at(e))
			}
			slices.Sort(got)
			slices.Sort(want)
			return slices.Equal(got, want)
		})
	}
	set("10.13.1.5", "10.13.2.5", "10.13.3.5")
	pod := func(to string) string {
		name, _, _ := strings.Cut(w.ask("client", "tcp", to), " ")
		return name
	}
	first := pod(address + ":80")
	for range 5 {
		for _, to := range []string{address + ":80", nodeIPs + ":30003", "10.0.0.5:80"} {
			if got := pod(to); got != first {
				w.Fatalf("%s: %s after %s", to, got, first)
			}
		}
	}
	all := map[string]string{"p1": "10.13.1.5", "p2": "10.13.2.5", "p3": "10.13.3.5"}
	var others []string
	for name, endpoint := range all {
		if name != first {
			others = append(others, endpoint)
		}
	}
	set(all[first], others[0])
	if got := pod(address + ":80"); got != first {
		w.Errorf("another endpoint went: %s, before %s", got, first)
	}
	set(others...)
	second := pod(address + ":80")
	if second == first {
		w.Errorf("the endpoint went, and the client is still with %s", first)
	}
	set(others[0], others[1], all[first])
	for range 5 {
		if got := pod(address + ":80"); got != second {
			w.Errorf("another endpoint came: %s, before %s", got, second)
		}
	}
}

// repairTable: what others delete and change of the table comes back.
func (w *world) repairTable() {
	w.Helper()
	table := w.tool("ip") + " " + nftables.TableName
	before := w.nft("list table " + table)
	for _, damage := range []string{
		"flush chain " + table + " nat-prerouting",
		"add rule " + table + " services accept",
		"flush map " + table + " cluster-endpoints",
		"delete table " + table,
		"flush ruleset",
	} {
		w.nft("%s", damage)
		w.eventually("repair after "+damage, func() bool {
			now := w.sh("ip netns exec %s nft list table %s 2>/dev/null || true", w.node, table)
			return sameLines(now, before, damage == "flush ruleset" || strings.HasPrefix(damage, "delete table"))
		})
	}
	w.eventually("traffic after a flush", func() bool { return strings.HasPrefix(w.ask("client", "tcp", vip+":80"), "p") })
}

// slot is that of an endpoint: after all was gone, which one has which depends on who noticed first, a look at changes or one for a flush.
var slot = regexp.MustCompile(`^(.* )(\d+) : ([0-9a-f.:]+ \. \d+)$`)

// sameLines compares all but clients that are remembered, whose time differs, and the order of elements; of slots,
// where anew says so, which endpoint has which.
func sameLines(a, b string, anew bool) bool {
	count := map[string]int{}
	for i, text := range []string{a, b} {
		for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == ',' || r == '{' || r == '}' }) {
			word, _, _ = strings.Cut(word, "\t# count ") // of clients that are remembered, in nft 1.1.7
			word = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(word), "elements ="))
			if word != "" && !strings.Contains(word, "expires") {
				if m := slot.FindStringSubmatch(word); m != nil && anew {
					count[m[1]+m[2]] += 1 - 2*i // each slot is there, and each endpoint
					word = m[1] + m[3]
				}
				count[word] += 1 - 2*i
			}
		}
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

// switchBackends: to iptables and back, a connection that is open lives on, and nothing of the backend before is left.
func (w *world) switchBackends(agent *agentProcess) *agentProcess {
	w.Helper()
	c := w.hold("client", "tcp", vip+":80")
	first := c.say()
	for _, backend := range []string{options.BackendIPTables, options.BackendNFTables} {
		agent.stop()
		w.nft("add table %s kube-proxy", w.tool("ip"))
		unserved := map[service.Family]string{service.IPv4: "ip6tables", service.IPv6: "iptables"}[w.family]
		w.sh("ip netns exec %s %s -t nat -N KUBE-SERVICES", w.node, unserved) // kube-proxy serves both families, this agent one
		w.state.Options.Backend = backend
		w.save()
		agent = w.agent()
		w.eventually("nothing of the other backend", func() bool {
			tables := w.nft("list tables")
			table := strings.Contains(tables, nftables.TableName)
			has := func(tool string) bool {
				return strings.Contains(w.sh("ip netns exec %s %s-save", w.node, tool), ":KUBE-SERVICES ")
			}
			chains, left := has(w.tool("iptables")), has(unserved) || strings.Contains(tables, "kube-proxy")
			return !left && table == (backend == options.BackendNFTables) && chains == (backend == options.BackendIPTables)
		})
		if got := c.say(); got != first {
			w.Errorf("an open connection, with %s: %s, before %s", backend, got, first)
		}
		w.cluster(vip + ":80")
	}
	return agent
}
