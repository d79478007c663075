package claims

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"packetwalk.dev/test/world"
)

// networks returns az's answers about virtual networks and NAT gateways, as far as an import keeps them.
type networks []struct {
	AddressSpace struct{ AddressPrefixes []string }
	Subnets      []struct {
		Name, AddressPrefix   string
		DefaultOutboundAccess *bool
	}
	IdleTimeoutInMinutes int
	SKU                  struct{ Name string }
}

// TestImport shows that the files of an Overlay cluster of today give a lab with the cluster's networks, rules, routes and answers: AKS's
// own NAT gateway, LocalDNS, and pods without the Instance Metadata Service.
func TestImport(t *testing.T) {
	t.Parallel()
	w := world.Own(t, "imported")
	archive, err := txtar.ParseFile(filepath.Join(w.Root, "internal/lab/aksimport/testdata/managed_nat.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files, config := filepath.Join(dir, "azure"), filepath.Join(dir, "cluster.yaml")
	if err := os.Mkdir(files, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(files, "all.json"), archive.Files[0].Data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, []byte(w.Run(t, "import", "--azure="+files)), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = w.Try(time.Minute, "down", "--name", w.Name) })
	if _, err := w.Try(3*time.Minute, "up", "--name", w.Name, "-f", config); err != nil {
		t.Fatal(err)
	}
	w.Kubectl(t, "apply", "-f", w.Example("todays-nodes", "client.yaml"))
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/client", "--timeout=120s")
	w.WaitService(t, "kube-system", "kube-dns")

	var all []json.RawMessage
	if err := json.Unmarshal(archive.Files[0].Data, &all); err != nil {
		t.Fatal(err)
	}
	for command, raw := range map[string]json.RawMessage{"vnet": all[1], "nat gateway": all[len(all)-1]} {
		var want, got networks
		if err := json.Unmarshal([]byte("["+string(raw)+"]"), &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(w.Az(t, append(strings.Fields("network "+command), "list", "-o", "json")...)), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("az network %s list (-cluster +lab):\n%s", command, diff)
		}
	}

	node := strings.TrimSpace(w.Kubectl(t, "get", "pod", "client", "-o", "jsonpath={.spec.nodeName}"))
	rules := w.SSH(t, node, "iptables -t raw -S PREROUTING; iptables -S FORWARD; iptables -t nat -S IP-MASQ-AGENT; ip route")
	for _, want := range []string{
		"-A PREROUTING -d 169.254.10.11/32 -p udp -m comment --comment \"localdns: skip conntrack\" -m udp --dport 53 -j NOTRACK",
		"-d 169.254.169.254/32 -p tcp -m tcp --dport 80 -m comment --comment \"AKS managed: added by AgentBaker ensureIMDSRestriction",
		"-A IP-MASQ-AGENT -d 10.244.0.0/16 -m comment --comment \"ip-masq-agent: local traffic is not subject to MASQUERADE\" -j RETURN",
		"default via 10.224.0.1 dev eth0", "10.224.0.0/16 dev eth0", "10.244.0.",
	} {
		if !strings.Contains(rules, want) {
			t.Errorf("node %s has no %q:\n%s", node, want, rules)
		}
	}

	expectQuery(t, w, "pod/client", "ifconfig.co", "169.254.10.11", "^node/"+node+"$")
	for to, want := range map[string]string{
		"internet/ifconfig.co": "Azure outbound: NAT gateway aks-natgateway-", "169.254.169.254:80": "pods may not reach the Instance Metadata Service (IMDS restriction)",
	} {
		if out := live(t, w, "--from", "pod/client", "--to", to); !strings.Contains(out, want) {
			t.Errorf("to %s, no %q:\n%s", to, want, out)
		}
	}
}
