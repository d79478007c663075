package plan

import (
	"encoding/json"
	"fmt"
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
		name, list, err := Conflist(c, c.Nodes()[0], netip.MustParsePrefix("192.168.0.0/24"), "/state")
		if err != nil {
			t.Fatal(err)
		}
		return []txtar.File{{Name: "network.json", Data: append(network, '\n')}, {Name: name, Data: append(list, '\n')}}
	})
}

// TestAgentFlags: who gives pods the node's address is one of three, and Calico's pools are for Calico's policy.
func TestAgentFlags(t *testing.T) {
	const always = "--kubeconfig=/k --node-name=n --cluster-cidr=%s --proxy-backend=iptables --proxy-rules=current "
	for _, c := range []struct{ spec, pods, want string }{
		{"{}", "10.13.76.0/24", "--ip-masq-agent --ip-masq-format=v2 " +
			"--ip-masq-configmaps=azure-ip-masq-agent-config,azure-ip-masq-agent-config-reconciled"},
		{"{network: {ipMasqAgent: v1}}", "10.13.76.0/24", "--ip-masq-agent --ip-masq-format=v1 --ip-masq-configmaps=azure-ip-masq-agent-config"},
		{"{network: {ipMasqAgent: none, policy: calico, nonMasqueradeCIDRs: [10.1.0.0/16, 10.2.0.0/16]}}", "10.13.76.0/24",
			"--node-masquerade-exclude=10.1.0.0/16,10.2.0.0/16 --calico-pools"},
		{"{network: {plugin: kubenet, ipMasqAgent: none}}", "10.244.0.0/16", "--non-masquerade-cidr=10.244.0.0/16"},
	} {
		got := strings.Join(AgentFlags(parsed(t, "spec: "+c.spec), "n", "/k"), " ")
		if want := fmt.Sprintf(always, c.pods) + c.want; got != want {
			t.Errorf("%s:\n got %s\nwant %s", c.spec, got, want)
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
