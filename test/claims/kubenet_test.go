package claims

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/test/world"
)

// kubenet is the kubenet world of the Part 3 article: two nodes, an application on both, a VM in the nodes' VNet.
type kubenet struct {
	*world.World
	pods  []corev1.Pod // of whereami, on two nodes, and of kube-system
	front string
}

// kubenetNodes are the nodes and the article's addresses of them.
var kubenetNodes = map[string]string{"aks-nodepool1-35377101-0": "10.13.77.4", "aks-nodepool1-35377101-1": "10.13.77.5"}

func kubenetWorld(t *testing.T) *kubenet {
	t.Helper()
	k := &kubenet{World: world.UpFile(t, "outbound", "kubenet.yaml", "whereami.yaml")}
	k.Kubectl(t, "rollout", "status", "deployment/whereami", "--timeout=120s")
	k.front = k.WaitService(t, "default", "whereami").Status.LoadBalancer.Ingress[0].IP
	k.pods = k.Pods(t, "-l", "app=whereami")
	if len(k.pods) != 2 || k.pods[0].Spec.NodeName == k.pods[1].Spec.NodeName {
		t.Fatalf("pods %v, want one on each node", k.pods)
	}
	return k
}

func TestB5(t *testing.T) {
	t.Parallel()
	k := kubenetWorld(t)
	for _, pod := range k.pods {
		node := kubenetNodes[pod.Spec.NodeName]
		var ping string
		seen := k.Capture(t, "testvm", "eth0", "icmp", func() { ping = k.Kubectl(t, "exec", pod.Name, "--", "ping", "-c", "1", outboundVM) })
		expect(t, ping, `^64 bytes from 10\.13\.1\.4: icmp_seq=1 ttl=63 `)
		expect(t, seen, `IP `+regexp.QuoteMeta(node)+` > 10\.13\.1\.4: ICMP echo request`,
			`IP 10\.13\.1\.4 > `+regexp.QuoteMeta(node)+`: ICMP echo reply`)
		expect(t, agrees(t, k.World, "pod/"+pod.Name, "vm/testvm:80"),
			`^the destination sees `+regexp.QuoteMeta(node)+
				`:\d+, because nat POSTROUTING 3: MASQUERADE \(kubenet: SNAT for destinations outside 192\.168\.0\.0/16\)$`)
	}
}

func TestB6(t *testing.T) {
	t.Parallel()
	k := kubenetWorld(t)
	from, to := k.pods[0], k.pods[1]
	ranges := map[string]bool{}
	routes := k.Az(t, "network", "route-table", "route", "list", "-g", "akstest", "--route-table-name", "pods", "--query",
		"[].[name,addressPrefix,nextHopType,nextHopIpAddress]", "-o", "tsv")
	for _, pod := range k.pods { // each node has its part of the range, and a route to it
		var node corev1.Node
		k.Get(t, &node, "node", pod.Spec.NodeName)
		part := netip.MustParsePrefix(node.Spec.PodCIDR)
		if part.Bits() != 24 || !part.Contains(netip.MustParseAddr(pod.Status.PodIP)) ||
			!netip.MustParsePrefix("192.168.0.0/16").Contains(part.Addr()) || ranges[part.String()] {
			t.Errorf("node %s has %s, its pod %s", node.Name, part, pod.Status.PodIP)
		}
		ranges[part.String()] = true
		expect(t, routes, `^`+podRoute(node)+`\t`+regexp.QuoteMeta(part.String())+`\tVirtualAppliance\t`+regexp.QuoteMeta(kubenetNodes[node.Name])+`$`)
		if !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeNetworkUnavailable && c.Reason == "RouteCreated"
		}) {
			t.Errorf("node %s: conditions %v", node.Name, node.Status.Conditions)
		}
	}
	var ping string
	seen := k.Capture(t, "pod/default/"+to.Name, "eth0", "icmp",
		func() { ping = k.Kubectl(t, "exec", from.Name, "--", "ping", "-c", "2", to.Status.PodIP) })
	expect(t, ping, `^64 bytes from `+regexp.QuoteMeta(to.Status.PodIP)+`: icmp_seq=2 ttl=62 `)
	a, b := regexp.QuoteMeta(from.Status.PodIP), regexp.QuoteMeta(to.Status.PodIP)
	expect(t, seen, `IP `+a+` > `+b+`: ICMP echo request`, `IP `+b+` > `+a+`: ICMP echo reply`)
	out := agrees(t, k.World, "pod/"+from.Name, "pod/"+to.Name+":80")
	expect(t, out, `Azure: a user-defined route to a virtual appliance`, `Azure: to `+regexp.QuoteMeta(strings.Replace(to.Spec.NodeName,
		"-35377101-", "-35377101-nic-", 1)), `^the destination sees the sender's own address, `+a+`:\d+, because no rule translates it`)
}

// TestB7: the article's listing, in order, on both nodes.
func TestB7(t *testing.T) {
	t.Parallel()
	k := kubenetWorld(t)
	want := []*regexp.Regexp{
		regexp.MustCompile(`^ *\d+ +\d+ KUBE-POSTROUTING +(?:all|0) +-- +\* +\* +0\.0\.0\.0/0 +0\.0\.0\.0/0 +/\* kubernetes postrouting rules \*/ *$`),
		regexp.MustCompile(`^ *\d+ +\d+ MASQUERADE +(?:all|0) +-- +\* +!docker0 +172\.17\.0\.0/16 +0\.0\.0\.0/0 *$`),
		regexp.MustCompile(`^ *\d+ +\d+ MASQUERADE +(?:all|0) +-- +\* +\* +0\.0\.0\.0/0 +!192\.168\.0\.0/16 +/\* kubenet: SNAT for outbound traffic from cluster \*/ ADDRTYPE match dst-type !LOCAL *$`),
	}
	for node := range kubenetNodes {
		lines := strings.Split(strings.TrimSpace(k.SSH(t, node, "iptables", "-t", "nat", "-vxnL", "POSTROUTING")), "\n")
		if len(lines) != 2+len(want) {
			t.Fatalf("%d lines on %s:\n%s", len(lines), node, strings.Join(lines, "\n"))
		}
		for i, pattern := range want {
			if line := lines[2+i]; !pattern.MatchString(line) {
				t.Errorf("line %d on %s is %q, want %s", i, node, line, pattern)
			}
		}
	}
	// The bridge that the rule is for.
	for node := range kubenetNodes {
		expect(t, k.SSH(t, node, "ip", "addr", "show", "cbr0"), `cbr0: <[^>]*PROMISC`, `inet 192\.168\.\d+\.1/24 `)
		expect(t, k.SSH(t, node, "ebtables", "-L", "KUBE-DEDUP"),
			`^-p IPv4 -s 0?a:58:c0:a8:0?\d:0?1 -o veth\+ --ip-src 192\.168\.\d+\.1 -j ACCEPT`, `--ip-src 192\.168\.\d+\.0/24 -j DROP`)
	}
}

// TestB8: every destination sees the pod's own address when the range is every address, and the node's again when it is the pods' own.
func TestB8(t *testing.T) {
	t.Parallel()
	k := kubenetWorld(t)
	original := k.Example("outbound", "kubenet.yaml")
	text, err := os.ReadFile(original)
	if err != nil {
		t.Fatal(err)
	}
	changed := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(changed, regexp.MustCompile(`(nonMasqueradeCIDRs:\n *- )\S+`).ReplaceAll(text, []byte("${1}0.0.0.0/0")),
		0o600); err != nil {
		t.Fatal(err)
	}
	pod := k.pods[0]
	t.Cleanup(func() {
		k.Run(t, "up", "--name", k.Name, "-f", original)
		k.sees(t, pod, kubenetNodes[pod.Spec.NodeName])
	})
	k.Run(t, "up", "--name", k.Name, "-f", changed)
	k.sees(t, pod, pod.Status.PodIP)
	if rules := k.SSH(t, pod.Spec.NodeName, "iptables-save", "-t", "nat"); strings.Contains(rules, "kubenet") {
		t.Errorf("a rule is left:\n%s", rules)
	}
	expect(t, agrees(t, k.World, "pod/"+pod.Name, "vm/testvm:80"),
		`^the destination sees the sender's own address, `+regexp.QuoteMeta(pod.Status.PodIP)+`:`)
}

// sees waits until the VM logs the pod's requests as from an address.
func (k *kubenet) sees(t *testing.T, pod corev1.Pod, address string) {
	t.Helper()
	n := 0
	eventually.Succeeds(t, 30*time.Second, func() error {
		n++
		path := fmt.Sprintf("/b8-%d-%d", time.Now().UnixNano(), n)
		if _, err := k.Try(10*time.Second, "kubectl", "--name", k.Name, "exec", pod.Name, "--", "curl", "-sS", "--max-time", "3", "-o",
			"/dev/null", "http://"+outboundVM+path); err != nil {
			return err
		}
		line := regexp.MustCompile(`(?m)^(\S+) - - .*"GET ` + path + ` `).FindStringSubmatch(k.Run(t, "logs", "--name", k.Name, "vm/testvm"))
		if line == nil || line[1] != address {
			return fmt.Errorf("the VM's log has %v, want %s", line, address)
		}
		return nil
	})
}

func TestB9(t *testing.T) {
	t.Parallel()
	k := kubenetWorld(t)
	for _, pod := range k.pods {
		if got := named(t, k.World, pod.Name, "curl", "-sS", "--max-time", "5", "ifconfig.co"); got != k.front {
			t.Errorf("from %s ifconfig.co sees %s, want %s", pod.Spec.NodeName, got, k.front)
		}
		expect(t, agrees(t, k.World, "pod/"+pod.Name, "internet/ifconfig.co:80"),
			`^the destination sees `+regexp.QuoteMeta(k.front)+`:\d+, after 2 translations\n- on node `+pod.Spec.NodeName+
				` nat POSTROUTING 3: MASQUERADE \(kubenet: SNAT .*\n- on fabric `)
	}
}

// podRoute returns the name that Azure's cloud provider gives to the route to a node's pods.
func podRoute(n corev1.Node) string {
	return n.Name + "____" + strings.NewReplacer(".", "", "/", "").Replace(n.Spec.PodCIDR)
}
