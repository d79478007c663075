package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/test/world"
)

// changed is examples/azure-cni/cluster.yaml with a second VNet that is peered and has a server, without the VM, and with other settings.
const changed = `
spec:
  network: {plugin: azure, mode: bridge, nonMasqueradeCIDRs: [10.0.0.0/8, 172.17.0.0/16]}
  serviceProxy: {rules: "%s"}
  loadBalancer: {frontends: [203.0.113.40, 203.0.113.41]}
  azure:
    vnets:
    - name: aksVnet
      addressPrefixes: [10.13.0.0/16]
      subnets:
      - {name: aks, prefix: 10.13.76.0/24, routeTable: through-fw}
      - {name: vmsubnet, prefix: 10.13.1.0/24}
      peerings: [other]
    - name: other
      addressPrefixes: [172.17.0.0/16]
      subnets: [{name: servers, prefix: 172.17.0.0/24}]
      peerings: [aksVnet]
    routeTables:
    - name: through-fw
      routes:
      - {name: servers, prefix: 172.17.0.0/24, nextHopType: VirtualAppliance, nextHopAddress: 10.13.1.9}
      - {name: nowhere, prefix: 198.51.100.10/32, nextHopType: None}
    vms:
    - {name: server, subnet: other/servers, address: 172.17.0.4, app: nginx}
    - {name: fw, subnet: aksVnet/vmsubnet, address: 10.13.1.9, ipForwarding: true, publicIP: true}
`

// TestClusterChanged changes a running lab to another cluster.yaml and back, the second time after the lab process was killed: what was
// open stays open, everything new works, and in the end the fabric is what it was.
func TestClusterChanged(t *testing.T) {
	t.Parallel()
	w := fresh(t, "change")
	w.Kubectl(t, "run", "ubuntu", "--image=ubuntu", "--", "sleep", "3600")
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/ubuntu", "--timeout=60s")
	pod := w.Kubectl(t, "get", "pod", "ubuntu", "-o", "jsonpath={.status.podIP}")
	before := fabricState(t, w)
	c := open(t, w, "pod/default/ubuntu", "198.51.100.80")

	refused := writeFile(t, fmt.Sprintf(changed, "1.12"))
	out, err := w.Try(3*time.Minute, "up", "--name", w.Name, "-f", refused)
	if err == nil || !strings.Contains(out, `~ spec.serviceProxy.rules: "1.11" → "1.12"  (needs a new cluster)`) ||
		!strings.Contains(err.Error(), "nothing was done") {
		t.Errorf("a change of the rule set: %v\n%s", err, out)
	}
	if d := fabricState(t, w); d != before {
		t.Error("a change that was refused changed the fabric")
	}

	out = w.Run(t, "up", "--name", w.Name, "-f", writeFile(t, fmt.Sprintf(changed, "1.11")))
	for _, line := range []string{
		"~ spec.network.nonMasqueradeCIDRs: [10.0.0.0/8] → [10.0.0.0/8, 172.17.0.0/16]",
		"+ spec.azure.vnets[aksVnet].peerings: [other]",
		"- spec.azure.vms[testvm]: ", "+ spec.azure.vms[server]: ", "+ spec.azure.routeTables[through-fw]: ",
	} {
		if plan, done, _ := strings.Cut(out, " s  changed"); !strings.Contains(plan, "  "+line) || done == "" {
			t.Errorf("no %q before the changes in\n%s", line, out)
		}
	}
	c.ask(t, "after the change")
	eventually.Succeeds(t, time.Minute, func() error { // the agent starts again, with other ranges
		_, err := w.Try(10*time.Second, "kubectl", "--name", w.Name, "exec", "ubuntu", "--", "curl", "-sS", "-o", "/dev/null", "-m", "2",
			"http://172.17.0.4")
		if log := w.Run(t, "logs", "--name", w.Name, "vm/server"); err == nil && !strings.Contains(log, pod+" - - ") {
			return fmt.Errorf("the server's log has no line of pod %s: %s", pod, log)
		}
		return err
	})
	if walk := w.Run(t, "walk", "--name", w.Name, "--from", "pod/ubuntu", "--to", "vm/server:80", "--live"); !strings.Contains(walk, "\nvm fw\n") || !strings.Contains(walk, "steps agree") {
		t.Errorf("the packet does not go by the virtual appliance, or the walk does not agree:\n%s", walk)
	}
	if walk := w.Run(t, "walk", "--name", w.Name, "--from", "pod/ubuntu", "--to", "internet/client:80"); !strings.Contains(walk, "the route leads nowhere") {
		t.Errorf("a route of type None:\n%s", walk)
	}

	kill(t, status(t, w).Pid)
	w.Run(t, "up", "--name", w.Name, "-f", w.Example("azure-cni", "cluster.yaml"))
	c.ask(t, "after the change back")
	if after := fabricState(t, w); after != before {
		t.Errorf("changed and changed back, the fabric was\n%s\nand is\n%s", before, after)
	}
	if out, err := w.Try(time.Minute, "ssh", "--name", w.Name, "server", "--", "true"); err == nil {
		t.Errorf("the server is still there: %s", out)
	}
	w.Kubectl(t, "exec", "ubuntu", "--", "ping", "-c", "1", "-W", "20", "10.13.1.4")
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// fabricState returns the network of the fabric's namespace. The kernel lists neighbours in the order of a hash table, which differs
// between namespaces, and links and rules in the order in which they were made, which machines that start beside each other do not always
// keep.
func fabricState(t *testing.T, w *world.World) string {
	t.Helper()
	return w.SSH(t, "fabric", "sh", "-c",
		"nft -s list table ip azure; ip rule | sort; ip route show table all; ip -br link | sort | sed 's/@if[0-9]*//'; ip neigh show nud permanent | sort")
}
