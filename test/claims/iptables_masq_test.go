package claims

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// masqReturns returns the ranges of the chain's RETURN rules; the rules themselves are checked to the letter.
func (w *iptablesWorld) masqReturns(node string) (ranges []string, err error) {
	out, err := w.Try(time.Minute, "ssh", "--name", w.Name, node, "--", "iptables", "-t", "nat", "-nvL", "IP-MASQ-AGENT")
	if err != nil {
		return nil, err
	}
	rules := strings.Split(strings.TrimSpace(out), "\n")[2:]
	if len(rules) == 0 {
		return nil, fmt.Errorf("%s: IP-MASQ-AGENT is empty", node)
	}
	for _, r := range rules[:len(rules)-1] {
		m := regexp.MustCompile(`^ *\d+ +\d+ RETURN +(?:all|0) +-- +\* +\* +0\.0\.0\.0/0 +(\S+) +/\* ip-masq-agent: local traffic is not subject to MASQUERADE \*/$`).
			FindStringSubmatch(strings.TrimRight(r, " "))
		if m == nil {
			return nil, fmt.Errorf("%s: %s", node, r)
		}
		ranges = append(ranges, m[1])
	}
	last := regexp.MustCompile(`^ *\d+ +\d+ MASQUERADE +(?:all|0) +-- +\* +\* +0\.0\.0\.0/0 +0\.0\.0\.0/0 +` +
		`/\* ip-masq-agent: outbound traffic is subject to MASQUERADE \(must be last in chain\) \*/$`).MatchString(strings.TrimRight(rules[len(rules)-1], " "))
	if !last {
		return nil, fmt.Errorf("%s: %s", node, rules[len(rules)-1])
	}
	return ranges, nil
}

var seedRanges = []string{"10.220.0.0/16", "10.220.2.0/24", "10.200.0.0/16"}

// get has a pod fetch the server's page, and gives the address that the server's log then shows.
func (w *iptablesWorld) get(t *testing.T, pod corev1.Pod, server, address string) string {
	t.Helper()
	before := w.Run(t, "logs", "--name", w.Name, server)
	w.Kubectl(t, "exec", pod.Name, "--", "curl", "-sS", "-o", "/dev/null", "--max-time", "3", "http://"+address)
	var line string
	eventually.Succeeds(t, 30*time.Second, func() error {
		line = strings.TrimPrefix(w.Run(t, "logs", "--name", w.Name, server), before)
		if !strings.HasSuffix(line, "\n") {
			return errors.New("no line in the server's log")
		}
		return nil
	})
	return strings.Fields(line)[0]
}

func TestD6(t *testing.T) {
	t.Parallel()
	w := azureIPTables(t)
	w.masqIs(t, seedRanges...)
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
		// Each from a port of its own: of ports by chance some come twice, and are one flow. A range has an odd and an even end.
		w.SSH(t, "pod/default/"+pod.Name, "bash", "-c", `range=/proc/sys/net/ipv4/ip_local_port_range; before=$(cat $range)
			for i in $(seq $1); do echo $(($3 + 2*i)) $(($3 + 2*i + 1)) > $range && echo > /dev/udp/$2/9; done; echo $before > $range`,
			"flows", strconv.Itoa(flows), c.to, strconv.Itoa(flowPorts))
		flowPorts += 2 * flows
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

// flowPorts is where the source ports of the next flows begin.
var flowPorts = 40000

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
	t.Parallel()
	w := azureIPTables(t)
	eventually.Succeeds(t, 30*time.Second, func() error {
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
	got := w.Kubectl(t, "get", "configmap", "azure-ip-masq-agent-config", "-n", "kube-system", "-o", "yaml")
	if !strings.HasPrefix(got, want) {
		t.Errorf("the ConfigMap differs from the article's (-article +cluster):\n%s", cmp.Diff(want, got))
	}
	eventually.Succeeds(t, 30*time.Second, func() error {
		return matches(w.Kubectl(t, "logs", "-n", "kube-system", "daemonset/azure-ip-masq-agent"),
			`using config: .*"10\.220\.0\.0/16","10\.220\.2\.0/24","10\.200\.0\.0/16"`)
	})
}

func TestD8(t *testing.T) {
	t.Parallel()
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
	w.masqIs(t, seedRanges...)
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
		eventually.Succeeds(t, 30*time.Second, func() error {
			text := w.Kubectl(t, "describe", "configmap", "azure-ip-masq-agent-config", "-n", "kube-system")
			if !regexp.MustCompile(`Warning +InvalidIPMasqConfig .* ip-masq-agent +` + bad.event).MatchString(text) {
				return errors.New(text)
			}
			return nil
		})
		for _, n := range w.nodes {
			if ranges, err := w.masqReturns(n); err != nil || !slices.Equal(ranges, seedRanges) {
				t.Errorf("%s: a configuration with an error made RETURN rules for %v, %v", n, ranges, err)
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
	eventually.Succeeds(t, 30*time.Second, func() error {
		for _, n := range w.nodes {
			if got, err := w.masqReturns(n); err != nil || !slices.Equal(got, want) {
				return fmt.Errorf("%s: RETURN for %v, want %v, %w", n, got, want, err)
			}
		}
		return nil
	})
}
