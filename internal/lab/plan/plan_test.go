package plan

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/testing/goldentest"
)

// TestWorlds: a cluster.yaml in, Azure's side and the first node's CNI configuration out.
func TestWorlds(t *testing.T) {
	goldentest.Run(t, "testdata/*.txtar", 1, func(t *testing.T, in []txtar.File) []txtar.File {
		c, errs := cluster.Parse(nil, in[0].Data)
		if errs.Err() != nil {
			t.Fatal(errs)
		}
		n, err := Network(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Validate(); err != nil {
			t.Error(err)
		}
		network, err := json.MarshalIndent(n, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		pods := netip.MustParsePrefix("192.168.0.0/24")
		if c.Spec.Network.IsOverlay() {
			pods = n.NICs[0].Overlay
		}
		name, list, err := Conflist(c, c.Nodes()[0], pods, "/state")
		if err != nil {
			t.Fatal(err)
		}
		return []txtar.File{{Name: "network.json", Data: append(network, '\n')}, {Name: name, Data: append(list, '\n')}}
	})
}

// TestZones: nodes are in their pool's zones by turns, as Azure writes them; without any they are in zone 0.
func TestZones(t *testing.T) {
	c := parsed(t, `spec: {nodePools: [{name: a, count: 3, availabilityZones: ["1", "3"]}, {name: b}]}`)
	var zones []string
	for _, n := range c.Nodes() {
		zones = append(zones, NodeObject(c, n).Labels["topology.kubernetes.io/zone"])
	}
	if got, want := strings.Join(zones, " "), "westeurope-1 westeurope-3 westeurope-1 0"; got != want {
		t.Errorf("zones %s, want %s", got, want)
	}
}

// TestAgentFlags: who gives pods the node's address is one of three.
func TestAgentFlags(t *testing.T) {
	const always, ours = "--kubeconfig=/k --node-name=n ", "--proxy-backend=iptables --proxy-rules=current --ip-families=IPv4 --cluster-cidr="
	for _, c := range []struct{ spec, proxy, want string }{
		{"{}", ours + "10.244.0.0/16", "--ip-masq-agent --ip-masq-format=v2 " +
			"--ip-masq-configmaps=azure-ip-masq-agent-config,azure-ip-masq-agent-config-reconciled"},
		{"{network: {mode: transparent}}", ours + "10.224.0.0/16", "--ip-masq-agent --ip-masq-format=v2 " +
			"--ip-masq-configmaps=azure-ip-masq-agent-config,azure-ip-masq-agent-config-reconciled"},
		{"{network: {mode: bridge, ipMasqAgent: v1}}", ours + "10.13.76.0/24", "--ip-masq-agent --ip-masq-format=v1 --ip-masq-configmaps=azure-ip-masq-agent-config"},
		{"{network: {ipMasqAgent: none, policy: calico, nonMasqueradeCIDRs: [10.1.0.0/16, 10.2.0.0/16]}}", ours + "10.224.0.0/16",
			"--node-masquerade-exclude=10.1.0.0/16,10.2.0.0/16"},
		{"{nodePools: [{count: 49}], network: {plugin: kubenet, ipMasqAgent: none}}", ours + "10.244.0.0/16", "--non-masquerade-cidr=10.244.0.0/16"},
		{"{nodePools: [{count: 50}], network: {plugin: kubenet, ipMasqAgent: none}}", strings.TrimSuffix(ours, "--cluster-cidr=") +
			"--iptables-min-sync-period=2s --cluster-cidr=10.244.0.0/16", "--non-masquerade-cidr=10.244.0.0/16"},
		{"{network: {plugin: kubenet, ipMasqAgent: none}, serviceProxy: {repair: false}}", strings.TrimSuffix(ours, "--cluster-cidr=") +
			"--repair-rules=false --cluster-cidr=10.244.0.0/16", "--non-masquerade-cidr=10.244.0.0/16"},
		{"{network: {plugin: kubenet, ipMasqAgent: none}, serviceProxy: {repair: true}}", ours + "10.244.0.0/16", "--non-masquerade-cidr=10.244.0.0/16"},
		{"{network: {plugin: kubenet, ipMasqAgent: none}}", ours + "10.244.0.0/16", "--non-masquerade-cidr=10.244.0.0/16"},
		{"{network: {plugin: none}, nodePools: [{runtime: containerd}]}", strings.TrimSuffix(ours, " --cluster-cidr="),
			"--node-masquerade-exclude="},
		{"{network: {ipMasqAgent: v1}, serviceProxy: {implementation: kube-proxy}}", "--service-proxy=false",
			"--ip-masq-agent --ip-masq-format=v1 --ip-masq-configmaps=azure-ip-masq-agent-config"},
		{"{network: {ipMasqAgent: v1}, serviceProxy: {implementation: none}}", "--service-proxy=false",
			"--ip-masq-agent --ip-masq-format=v1 --ip-masq-configmaps=azure-ip-masq-agent-config"},
	} {
		got := strings.Join(AgentFlags(parsed(t, "spec: "+c.spec), cluster.Node{Name: "n"}, "/k"), " ")
		if want := always + c.proxy + " " + c.want + " --docker-bridge-cidr=none --block-wire-server --imds-restriction=off"; got != want {
			t.Errorf("%s:\n got %s\nwant %s", c.spec, got, want)
		}
	}
}

// TestNodeOptions: options of the nodes' image are flags of their agents, and name servers of nodes with containerd.
func TestNodeOptions(t *testing.T) {
	c := parsed(t, "spec: {network: {mode: transparent}, nodeOptions: {localDNS: true, imdsRestriction: true}}")
	n := c.Nodes()[0]
	const restriction, caches = "--imds-restriction=10.224.0.4", "--local-dns=169.254.10.10,169.254.10.11"
	flags := AgentFlags(c, n, "/k")
	if got := flags[len(flags)-2:]; !slices.Equal(got, []string{restriction, caches}) {
		t.Errorf("flags %s", got)
	}
	if node, pod := NodeResolver(c, n).String(), PodResolver(c, n).String(); node != "169.254.10.10" || pod != "169.254.10.11" {
		t.Errorf("name servers %s and %s", node, pod)
	}
	n.Runtime = cluster.RuntimeSimulated
	if got := AgentFlags(c, n, "/k"); got[len(got)-1] != restriction {
		t.Errorf("flags %s of a simulated node", got)
	}
	if node, pod := NodeResolver(c, n).String(), PodResolver(c, n).String(); node != "168.63.129.16" || pod != "10.0.0.10" {
		t.Errorf("name servers %s and %s of a simulated node", node, pod)
	}
}

// TestCorefile holds LocalDNS's configuration to a file.
func TestCorefile(t *testing.T) {
	c := parsed(t, "spec: {network: {mode: transparent}, nodeOptions: {localDNS: true}}")
	goldentest.File(t, "testdata/localdns.corefile", string(Corefile(c)))
}

// TestAgentFlagsOfOldNodes: nodes of the articles' time have Docker, and no rule about the wire server.
func TestAgentFlagsOfOldNodes(t *testing.T) {
	got := AgentFlags(parsed(t, `spec: {serviceProxy: {rules: "1.19"}}`), cluster.Node{Name: "n"}, "/k")
	if i := slices.IndexFunc(got, func(f string) bool { return strings.Contains(f, "docker") || strings.Contains(f, "wire") }); i >= 0 {
		t.Errorf("flag %s", got[i])
	}
}

// TestKubeProxyConfig: the pods' range is known, or only the user's plugin knows it.
func TestKubeProxyConfig(t *testing.T) {
	for spec, want := range map[string]string{
		"{serviceProxy: {implementation: kube-proxy}}": "10.244.0.0/16 iptables",
		"{network: {plugin: none}, nodePools: [{runtime: containerd}], serviceProxy: {implementation: kube-proxy, backend: nftables}}": " nftables",
	} {
		text, err := KubeProxyConfig(parsed(t, "spec: "+spec), "n", "/k")
		var got struct {
			ClusterCIDR, Mode, HostnameOverride string
			ClientConnection                    struct{ Kubeconfig string }
		}
		if err = errors.Join(err, json.Unmarshal(text, &got)); err != nil {
			t.Fatal(err)
		}
		if got.ClusterCIDR+" "+got.Mode != want || got.HostnameOverride != "n" || got.ClientConnection.Kubeconfig != "/k" {
			t.Errorf("%s:\n%s", spec, text)
		}
	}
}

// TestOwnPlugin: with network plugin none nodes forward what is not theirs, have one address each, and their subnet has a table for the
// routes to their pods where that is asked for.
func TestOwnPlugin(t *testing.T) {
	for network, table := range map[string]string{
		"plugin: none, podCIDR: 10.244.0.0/16, routes: true": "aks-agentpool-31351229-routetable",
		"plugin: none, podCIDR: 10.244.0.0/16":               "",
		"plugin: none":                                       "",
	} {
		c := parsed(t, "spec: {network: {"+network+"}, nodePools: [{runtime: containerd}]}")
		n, err := Network(c)
		if err != nil {
			t.Fatal(err)
		}
		nic, _ := n.NIC(c.Nodes()[0].NIC)
		subnet, _ := n.Subnet("aks-vnet", "aks-subnet")
		if !nic.IPForwarding || len(nic.IPConfigs) != 1 || subnet.RouteTable != table || (len(n.RouteTables) == 1) != (table != "") {
			t.Errorf("%s: NIC %+v, subnet %+v, tables %v", network, nic, subnet, n.RouteTables)
		}
	}
}

// TestPools: a node that is taken out of the load balancer's pools is put back into those that it was in, and into no other, once.
func TestPools(t *testing.T) {
	c := parsed(t, "spec: {nodePools: [{name: one, count: 2}], loadBalancer: {sku: standard}}")
	n, err := Network(c)
	if err != nil {
		t.Fatal(err)
	}
	nic := c.Nodes()[1].NIC
	if got := PoolsOf(n, nic); !slices.Equal(got, []string{CloudName, outboundPool}) {
		t.Fatalf("pools %q", got)
	}
	n.LeavePools(nic)
	for range 2 {
		JoinPools(&n, nic, []string{outboundPool, "no such pool"})
	}
	if got := PoolsOf(n, nic); !slices.Equal(got, []string{outboundPool}) || len(n.LoadBalancers[0].BackendPools[1].Members) != 2 {
		t.Errorf("pools %q, members %v", got, n.LoadBalancers[0].BackendPools[1].Members)
	}
}

// TestNodesThere: a node that the network has and the cluster has no more is there, after the others, where it was.
func TestNodesThere(t *testing.T) {
	n, err := Network(parsed(t, "spec: {nodePools: [{name: one, count: 3}]}"))
	if err != nil {
		t.Fatal(err)
	}
	placed := Placement(n)
	fewer, errs := cluster.Parse(placed, []byte("spec: {nodePools: [{name: one, count: 1}]}"))
	if errs.Err() != nil {
		t.Fatal(errs)
	}
	var addresses []netip.Addr
	for _, node := range Nodes(fewer, n) {
		addresses = append(addresses, placed[node.Name][0])
		if node.Address != placed[node.Name][0] {
			t.Errorf("%s has %v, and not %v", node.Name, node.Address, placed[node.Name][0])
		}
	}
	if len(addresses) != 3 {
		t.Errorf("nodes with %v", addresses)
	}
}

// TestHostPortsOfKubenet checks that host ports are masqueraded by the service proxy's mark where a chain of it exists, and else by
// portmap's own.
func TestHostPortsOfKubenet(t *testing.T) {
	for proxy, want := range map[string]bool{
		"{}": true, "{implementation: kube-proxy}": true, "{backend: nftables}": false, "{implementation: none}": false,
		"{implementation: kube-proxy, backend: nftables}": false,
	} {
		c := parsed(t, "spec: {network: {plugin: kubenet}, serviceProxy: "+proxy+"}")
		_, list, err := Conflist(c, c.Nodes()[0], netip.MustParsePrefix("192.168.0.0/24"), "/state")
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(list), `"externalSetMarkChain": "KUBE-MARK-MASQ"`); got != want {
			t.Errorf("%s: %s", proxy, list)
		}
	}
}
