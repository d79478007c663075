package claims

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/test/world"
)

// seedRules checks that a chain's rules become those of the article's listing.
func (v *vnode) seedRules(t *testing.T, chain, article string) {
	t.Helper()
	want := strings.Split(strings.TrimSpace(article), "\n")
	eventually.Succeeds(t, 30*time.Second, func() error {
		var got []string
		for line := range strings.Lines(v.SSH(t, vnodeNode, "iptables", "-t", "nat", "--list-rule", chain)) {
			if strings.HasPrefix(line, "-A ") {
				got = append(got, strings.TrimSpace(line))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return errors.New("(-article +kernel):\n" + diff)
		}
		return nil
	})
}

func TestE10(t *testing.T) {
	t.Parallel()
	vnodeWorld(t).seedRules(t, "POSTROUTING", `
-A POSTROUTING -m comment --comment "cali:O3lYWMrLQYEMJtB5" -j cali-POSTROUTING
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A POSTROUTING -m comment --comment "ip-masq-agent: ensure nat POSTROUTING directs all non-LOCAL destination traffic to our custom IP-MASQ-AGENT chain" -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT
`)
}

func TestE11(t *testing.T) {
	t.Parallel()
	vnodeWorld(t).seedRules(t, "IP-MASQ-AGENT", `
-A IP-MASQ-AGENT -d 10.13.0.0/16 -m comment --comment "ip-masq-agent: cluster-local traffic should not be subject to MASQUERADE" -m addrtype ! --dst-type LOCAL -j RETURN
-A IP-MASQ-AGENT -d 168.63.129.16/32 -m comment --comment "ip-masq-agent: cluster-local traffic should not be subject to MASQUERADE" -m addrtype ! --dst-type LOCAL -j RETURN
-A IP-MASQ-AGENT -m comment --comment "ip-masq-agent: outbound traffic should be subject to MASQUERADE (this match must come after cluster-local CIDR matches)" -m addrtype ! --dst-type LOCAL -j MASQUERADE
`)
}

func TestE12(t *testing.T) {
	t.Parallel()
	v := vnodeWorld(t)
	eventually.Succeeds(t, 30*time.Second, func() error {
		_, members, _ := strings.Cut(v.SSH(t, vnodeNode, "ipset", "list", "cali40all-ipam-pools"), "Members:\n")
		if strings.TrimSpace(members) != "10.13.76.0/24" {
			return fmt.Errorf("members %q, want 10.13.76.0/24 only", members)
		}
		return nil
	})
	// Which is why a machine in the VNet, for which the ip-masq-agent alone would have let the pod's address be, sees the node's.
	v.walkAgrees(t, "pod/"+v.vm.Name, "vm/testvm:80",
		`^the destination sees 10\.13\.76\.4:.* because nat cali-nat-outgoing 1: MASQUERADE \(Calico pool default-ipv4-ippool has natOutgoing, and no pool holds the destination\)`)
}

func TestE14(t *testing.T) {
	t.Parallel()
	v := vnodeWorld(t)
	expect(t, v.SSH(t, "pod/default/"+v.vm.Name, "ip", "route"), `^default via 169\.254\.1\.1 dev eth0 *$`,
		`^169\.254\.1\.1 dev eth0 scope link *$`)
}

// TestE13 scales the pool to two nodes, deletes the pod on the machine, which is made anew on the new one, as that has less to do, and
// scales back.
func TestE13(t *testing.T) {
	t.Parallel()
	const oldNode, newNode, newNIC = "aks-nodepool1-26711606-0", "aks-nodepool1-26711606-1", "aks-nodepool1-26711606-nic-1"
	w := world.Up(t, "virtual-node", "kuard-vnode.yaml")
	ready := func() { w.Kubectl(t, "rollout", "status", "deployment/kuard-vnode", "--timeout=120s") }
	// podOn waits for the Deployment's pod on a node.
	podOn := func(node string) (pod corev1.Pod) {
		t.Helper()
		eventually.Succeeds(t, 2*time.Minute, func() error {
			pods := w.Pods(t, "-l", "app=kuard-vnode", "--field-selector", "spec.nodeName="+node)
			if len(pods) != 1 {
				return fmt.Errorf("%d pods on %s, want one", len(pods), node)
			}
			pod = pods[0]
			return nil
		})
		return pod
	}
	was := podOn(oldNode)
	az := func(args ...string) []string { return strings.Fields(w.Az(t, append(args, "-o", "tsv")...)) }
	if got := az("aks", "scale", "-g", "akstest", "-n", "azurecnicluster", "-c", "2", "--query",
		"agentPoolProfiles[0].count"); !slices.Equal(got, []string{"2"}) {
		t.Errorf("%v nodes, want 2", got)
	}
	t.Cleanup(func() {
		w.Az(t, "aks", "nodepool", "scale", "--cluster-name", "azurecnicluster", "-n", "nodepool1", "-c", "1")
		if nodes := w.Kubectl(t, "get", "nodes", "-o", "name"); strings.Contains(nodes, newNode) || !strings.Contains(nodes, oldNode) {
			t.Errorf("nodes, scaled back:\n%s", nodes)
		}
		if nics := az("network", "nic", "list", "--query", "[].name"); slices.Contains(nics, newNIC) {
			t.Errorf("NICs, scaled back: %v", nics)
		}
		ready()
	})
	expect(t, w.Kubectl(t, "get", "nodes", "-o", "wide"), newNode+` +Ready .* 10\.13\.76\.35 `)
	addresses := az("network", "nic", "show", "-g", "MC_akstest_azurecnicluster_westeurope", "-n", newNIC, "--query",
		"ipConfigurations[].privateIpAddress")
	if len(addresses) != 31 || addresses[0] != "10.13.76.35" || addresses[1] != "10.13.76.36" || addresses[30] != "10.13.76.65" {
		t.Errorf("addresses of the new node and its pods: %v", addresses)
	}

	w.Kubectl(t, "delete", "pod", was.Name)
	pod := podOn(newNode)
	if !slices.Contains(addresses[1:], pod.Status.PodIP) {
		t.Fatalf("the pod made anew has %s, want one of the addresses of %s", pod.Status.PodIP, newNode)
	}
	w.WaitFelix(t, pod)
	out := w.Run(t, "walk", "--name", w.Name, "--from", "pod/"+pod.Name, "--to", "vm/testvm:80", "--live")
	expect(t, out, `^kernel: \d+ of \d+ steps agree$`, `^the destination sees 10\.13\.76\.35:`)
}
