package claims

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/testing/eventually"
	"packetwalk.dev/test/world"
)

// nodeOptionsWorld brings up a cluster with LocalDNS and IMDS restriction, a pod, and a pod of the node's network.
func nodeOptionsWorld(t *testing.T) *world.World {
	t.Helper()
	w := world.Up(t, "todays-nodes", "client.yaml")
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/client", "pod/on-node", "--timeout=120s")
	return w
}

// untracked are the rules for LocalDNS's queries, in a chain's order.
var untracked = []string{
	`-d 169.254.10.10/32 -p tcp -m comment --comment "localdns: skip conntrack" -m tcp --dport 53 -j NOTRACK`,
	`-d 169.254.10.10/32 -p udp -m comment --comment "localdns: skip conntrack" -m udp --dport 53 -j NOTRACK`,
	`-d 169.254.10.11/32 -p tcp -m comment --comment "localdns: skip conntrack" -m tcp --dport 53 -j NOTRACK`,
	`-d 169.254.10.11/32 -p udp -m comment --comment "localdns: skip conntrack" -m udp --dport 53 -j NOTRACK`,
}

func TestL1(t *testing.T) {
	t.Parallel()
	w := nodeOptionsWorld(t)
	expect(t, w.SSH(t, part1Node, "ip", "-4", "-o", "address", "show", "dev", "localdns"), `inet 169\.254\.10\.10/32 `, `inet 169\.254\.10\.11/32 `)
	for _, chain := range []string{"OUTPUT", "PREROUTING"} {
		var got []string
		for line := range strings.Lines(w.SSH(t, part1Node, "iptables", "-t", "raw", "-S", chain)) {
			if rule, ok := strings.CutPrefix(strings.TrimSpace(line), "-A "+chain+" "); ok {
				got = append(got, rule)
			}
		}
		if diff := cmp.Diff(untracked, got); diff != "" {
			t.Errorf("raw %s (-want +got):\n%s", chain, diff)
		}
	}
	w.WaitService(t, "kube-system", "kube-dns")

	const name = "kubernetes.default.svc.cluster.local"
	ask := func() (string, error) {
		return w.Try(20*time.Second, "kubectl", "--name", w.Name, "exec", "client", "--", "nslookup", name)
	}
	eventually.Succeeds(t, 30*time.Second, func() error { _, err := ask(); return err })
	answer, err := ask()
	if err != nil {
		t.Fatal(err)
	}
	expect(t, answer, `^Server:\s+169\.254\.10\.11$`, `^Address: 10\.0\.0\.1$`)
	pod := strings.TrimSpace(w.Kubectl(t, "get", "pod", "client", "-o", "jsonpath={.status.podIP}"))
	if tracked := w.SSH(t, part1Node, "conntrack", "-L", "-p", "udp", "-s", pod, "--dport", "53"); strings.Contains(tracked, pod) {
		t.Errorf("queries of the pod are tracked:\n%s", tracked)
	}
	expect(t, w.SSH(t, part1Node, "nslookup", "ifconfig.co"), `^Server:\s+169\.254\.10\.10$`, `^Address: 198\.51\.100\.80$`)

	w.Kubectl(t, "scale", "-n", "kube-system", "deployment/coredns", "--replicas=0")
	defer w.Kubectl(t, "scale", "-n", "kube-system", "deployment/coredns", "--replicas=1")
	eventually.Succeeds(t, time.Minute, func() error {
		if pods := w.Kubectl(t, "get", "pods", "-n", "kube-system", "-l", "k8s-app=kube-dns", "-o", "name"); pods != "" {
			return fmt.Errorf("there still are %q", pods)
		}
		return nil
	})
	if answer, err = ask(); err != nil {
		t.Errorf("without CoreDNS: %v", err)
	}
	expect(t, answer, `^Server:\s+169\.254\.10\.11$`, `^Address: 10\.0\.0\.1$`)
	if out, err := w.Try(30*time.Second, "kubectl", "--name", w.Name, "exec", "client", "--", "nslookup", "kube-dns.kube-system.svc.cluster.local"); err == nil {
		t.Errorf("without CoreDNS, a name that was not asked before is answered: %s", out)
	}
}

func TestL2(t *testing.T) {
	t.Parallel()
	w := nodeOptionsWorld(t)
	const wireServer = "-A FORWARD -d 168.63.129.16/32 -p tcp -m tcp --dport 32526 -j DROP\n" +
		"-A FORWARD -d 168.63.129.16/32 -p tcp -m tcp --dport 80 -j DROP"
	const restriction = `-A FORWARD ! -s 10.224.0.4/32 -d 169.254.169.254/32 -p tcp -m tcp --dport 80 -m comment --comment ` +
		`"AKS managed: added by AgentBaker ensureIMDSRestriction for IMDS restriction feature" -j DROP` + "\n"
	expectDrops := func(want string) {
		t.Helper()
		var drops []string
		for line := range strings.Lines(w.SSH(t, part1Node, "iptables", "-S", "FORWARD")) {
			if line = strings.TrimSpace(line); strings.HasSuffix(line, "-j DROP") {
				drops = append(drops, line)
			}
		}
		if diff := cmp.Diff(want, strings.Join(drops, "\n")); diff != "" {
			t.Errorf("drops of filter FORWARD (-want +got):\n%s", diff)
		}
	}
	ask := func(pod string) (string, error) {
		return w.Try(20*time.Second, "kubectl", "--name", w.Name, "exec", pod, "--", "curl", "-sS", "--max-time", "3", "-H", "Metadata: true",
			"http://169.254.169.254/metadata/instance?api-version=2021-02-01")
	}
	expectDrops(restriction + wireServer)
	if out, err := ask("client"); err == nil || !strings.Contains(err.Error(), "exit code 28") {
		t.Errorf("a pod: %v %s, want a time-out (curl's 28)", err, out)
	}
	if out, err := ask("on-node"); err != nil || !strings.Contains(out, part1Node) {
		t.Errorf("a pod with hostNetwork: %v %s", err, out)
	}

	w.Run(t, "up", "--name", w.Name, "-f", w.Example("todays-nodes", "open.yaml"))
	defer w.Run(t, "up", "--name", w.Name, "-f", w.Example("todays-nodes", "cluster.yaml"))
	eventually.Succeeds(t, 30*time.Second, func() error { _, err := ask("client"); return err })
	expectDrops(wireServer)
}

func TestL3(t *testing.T) {
	t.Parallel()
	w := world.UpFile(t, "todays-nodes", "kubenet.yaml", "client.yaml")
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/client", "--timeout=120s")
	postrouting := w.SSH(t, part1Node, "iptables", "-t", "nat", "-S", "POSTROUTING")
	if strings.Contains(postrouting, "kubenet: SNAT") {
		t.Errorf("kubelet's own rule:\n%s", postrouting)
	}
	expect(t, postrouting, `-j KUBE-POSTROUTING$`, ` ! --dst-type LOCAL -j IP-MASQ-AGENT$`)
	mac := strings.TrimSpace(w.SSH(t, part1Node, "cat", "/sys/class/net/cbr0/address"))
	expect(t, w.SSH(t, part1Node, "ebtables-save"), `^:AKS-DEDUP-PROMISC ACCEPT$`, `^-A OUTPUT -j AKS-DEDUP-PROMISC$`,
		`^-A AKS-DEDUP-PROMISC -p IPv4 -s `+mac+` -o veth\+ --ip-src 10\.244\.0\.1 -j ACCEPT$\n`+
			`^-A AKS-DEDUP-PROMISC -p IPv4 -s `+mac+` -o veth\+ --ip-src 10\.244\.0\.0/24 -j DROP$`)
	w.Kubectl(t, "exec", "client", "--", "curl", "-sS", "--max-time", "5", "http://10.13.1.4")
	eventually.Succeeds(t, 30*time.Second, func() error {
		return matches(w.Run(t, "logs", "--name", w.Name, "vm/testvm"), `^`+nodeIP+` - - .*"GET / HTTP/1\.1" 200 `)
	})
}
