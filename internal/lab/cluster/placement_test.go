package cluster

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// placementOf returns the placement of a running cluster.
func placementOf(c *Cluster) Placement {
	p := Placement{}
	for _, n := range c.Nodes() {
		p[n.Name] = append([]netip.Addr{n.Address}, n.PodAddresses...)
	}
	for _, vm := range c.Spec.Azure.VMs {
		p[vm.Name] = []netip.Addr{vm.Address}
	}
	return p
}

const twoPools = `
spec:
  network: {mode: bridge}
  nodePools: [{name: a, count: %d}, {name: b, count: %d, maxPods: 10}]
  azure:
    vnets: [{name: v, addressPrefixes: [10.13.0.0/16], subnets: [{name: s, prefix: 10.13.76.0/%d}]}]
    vms: [{name: vm, subnet: v/s}, {name: fixed, subnet: v/s, address: 10.13.76.100}]
`

// TestPlacement: machines stay where they are when a pool grows or shrinks, and new ones take the lowest row that is free.
func TestPlacement(t *testing.T) {
	var now Placement
	for _, step := range []struct {
		a, b int
		want string
	}{
		{1, 1, "a0 4-34 b0 35-45 vm 46"},
		{2, 1, "a0 4-34 a1 47-77 b0 35-45 vm 46"},
		{2, 3, "a0 4-34 a1 47-77 b0 35-45 b1 78-88 b2 89-99 vm 46"},
		{1, 3, "a0 4-34 b0 35-45 b1 78-88 b2 89-99 vm 46"},
		{3, 1, "a0 4-34 a1 47-77 a2 101-131 b0 35-45 vm 46"}, // not over the fixed one
	} {
		c, errs := Parse(now, fmt.Appendf(nil, twoPools, step.a, step.b, 24))
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		var got []string
		for _, n := range c.Nodes() {
			got = append(got, fmt.Sprintf("%s%d %d-%d", n.Pool, n.Index, n.Address.As4()[3], n.PodAddresses[len(n.PodAddresses)-1].As4()[3]))
		}
		got = append(got, fmt.Sprintf("vm %d", c.Spec.Azure.VMs[0].Address.As4()[3]))
		if text := strings.Join(got, " "); text != step.want {
			t.Errorf("%d and %d nodes: %s, want %s", step.a, step.b, text, step.want)
		}
		now = placementOf(c)
	}
}

// TestNoRow: addresses that are enough by number but not in a row are said to be too few.
func TestNoRow(t *testing.T) {
	first, errs := Parse(nil, fmt.Appendf(nil, twoPools, 1, 1, 25))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	_, errs = Parse(placementOf(first), fmt.Appendf(nil, twoPools, 3, 1, 25))
	const want = "spec.nodePools[0].count: subnet v/s, 10.13.76.0/25, has no 31 free addresses in a row for node 2 of pool a beside what is there"
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), want) {
		t.Errorf("%v, want %q", errs, want)
	}
}

// TestEditPools adds pools to files and removes them; comments stay.
func TestEditPools(t *testing.T) {
	pool := NodePool{Name: "gpu", Count: 2, NodeTaints: []string{"sku=gpu:NoSchedule"}, NodeLabels: map[string]string{"sku": "gpu"}}
	const added = "{name: gpu, count: 2, nodeLabels: {sku: gpu}, nodeTaints: ['sku=gpu:NoSchedule']}"
	for source, want := range map[string]string{
		"": "spec:\n  nodePools:\n    - name: nodepool1\n      count: 2\n    - " + added + "\n",
		"# mine\nspec:\n  nodePools: # all\n  - count: 2 # two\n": "# mine\nspec:\n  nodePools: # all\n    - count: 2 # two\n      name: nodepool1\n    - " +
			added + "\n",
		"spec:\n  nodePools: [{name: other}]\n": "spec:\n  nodePools: [{name: other}, " + added + "]\n",
	} {
		got, err := AddPool([]byte(source), pool)
		if err != nil || string(got) != want {
			t.Errorf("%q: %v\n%s\nwant\n%s", source, err, got, want)
		}
		c, errs := Parse(nil, got)
		if len(errs) > 0 || len(c.Spec.NodePools) != 2 {
			t.Fatalf("%s: %v", got, errs)
		}
		again, err := RemovePool(got, "gpu")
		if err != nil {
			t.Fatal(err)
		}
		if c, errs = Parse(nil, again); len(errs) > 0 || len(c.Spec.NodePools) != 1 || strings.Contains(string(again), "gpu") {
			t.Errorf("%s: %v", again, errs)
		}
	}
	if _, err := AddPool(nil, NodePool{Name: "nodepool1"}); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Error(err)
	}
	if _, err := RemovePool(nil, "pool2"); err == nil || !strings.Contains(err.Error(), "there are nodepool1") {
		t.Error(err)
	}
}

func TestSetCount(t *testing.T) {
	for source, want := range map[string]string{
		"": "spec:\n  nodePools:\n    - name: nodepool1\n      count: 3\n",
		"# mine\nspec:\n  nodePools: # all\n  - count: 2 # two\n    maxPods: 20\n": "# mine\nspec:\n  nodePools: # all\n    - count: 3 # two\n      maxPods: 20\n",
		"spec:\n  nodePools: [{name: other}, {name: nodepool1}]\n":                 "spec:\n  nodePools: [{name: other}, {name: nodepool1, count: 3}]\n",
		"spec: {nodePools: ~}\n": "spec: {nodePools: [{name: nodepool1, count: 3}]}\n",
	} {
		got, err := SetCount([]byte(source), "nodepool1", 3)
		if err != nil || string(got) != want {
			t.Errorf("%q: %v\n%s\nwant\n%s", source, err, got, want)
		}
		c, errs := Parse(nil, got)
		if len(errs) > 0 || c.Spec.NodePools[len(c.Spec.NodePools)-1].Count != 3 {
			t.Errorf("%s: %v", got, errs)
		}
	}
	// A fixed address that a placed node went out of the way of is in the way of none that has no placement.
	around := "spec:\n  network: {mode: bridge}\n  azure:\n    vms: [{name: vm, subnet: aksVnet/aks, address: 10.13.76.35}]\n    vnets: [{name: aksVnet, addressPrefixes: [10.13.0.0/16], " +
		"subnets: [{name: aks, prefix: 10.13.76.0/24}]}]\n  nodePools: [{name: nodepool1, count: 2}]\n"
	if _, errs := Parse(nil, []byte(around)); len(errs) == 0 {
		t.Error("no fault without a placement")
	}
	if _, err := SetCount([]byte(around), "nodepool1", 1); err != nil {
		t.Error(err)
	}
	if _, err := SetCount(nil, "pool2", 3); err == nil || !strings.Contains(err.Error(), "there are nodepool1") {
		t.Error(err)
	}
}
