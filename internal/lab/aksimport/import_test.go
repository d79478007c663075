package aksimport

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/testing/goldentest"
)

// TestCluster: resources as az writes them in, cluster.yaml with its comments out. Cluster itself has parsed the result.
func TestCluster(t *testing.T) {
	goldentest.Run(t, "testdata/*.txtar", 1, func(t *testing.T, in []txtar.File) []txtar.File {
		r := armview.NewResources()
		if err := r.Read("resources.json", in[0].Data); err != nil {
			t.Fatal(err)
		}
		text, err := Cluster(r, "")
		if err != nil {
			return []txtar.File{{Name: "error", Data: []byte(err.Error() + "\n")}}
		}
		if _, errs := cluster.Parse(nil, text); len(errs) > 0 {
			t.Error(errs)
		}
		return []txtar.File{{Name: "cluster.yaml", Data: text}}
	})
}

// TestChoose shows which of several clusters is taken, and the errors where that is not certain.
func TestChoose(t *testing.T) {
	r := armview.NewResources()
	want := func(name, message string) {
		t.Helper()
		if _, err := Cluster(r, name); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%q: error %v, want %q in it", name, err, message)
		}
	}
	want("", `no managed cluster was read; run "az aks list -o json > aks.json"`)
	const id = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/g/providers/Microsoft.ContainerService/managedClusters/"
	if err := r.Read("aks.json", []byte(`[{"id": "`+id+`a", "name": "a", "nodeResourceGroup": "MC_g_a"}, {"id": "`+id+`b", "name": "b"}]`)); err != nil {
		t.Fatal(err)
	}
	want("", "several managed clusters were read; specify one with --cluster: a, b")
	want("c", `no managed cluster "c" was read; there are: a, b`)
	want("A", `virtual network aks-vnet of resource group MC_g_a was not read; run "az network vnet list --resource-group MC_g_a -o json > vnet-MC_g_a.json"`)
}

// TestPools shows the import of pools: at most as many as a lab has, each in its own subnet, and as many nodes as fit into that.
func TestPools(t *testing.T) {
	const (
		aks = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/g/providers/Microsoft.ContainerService/managedClusters/a"
		net = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/v"
	)
	var pools []string
	for i := range 12 {
		subnet := []string{"one", "two"}[min(i, 1)]
		pools = append(pools, fmt.Sprintf(`{"name": "p%d", "count": 1, "maxPods": 10, "vnetSubnetId": "%s/subnets/%s"}`, i, net, subnet))
	}
	r := armview.NewResources()
	if err := r.Read("x.json", fmt.Appendf(nil, `[
		{"id": %q, "name": "a", "networkProfile": {"networkPlugin": "azure"}, "agentPoolProfiles": [%s]},
		{"id": %q, "name": "v", "addressSpace": {"addressPrefixes": ["10.7.0.0/16"]}, "subnets": [
			{"id": "%[3]s/subnets/one", "name": "one", "addressPrefix": "10.7.0.0/28"},
			{"id": "%[3]s/subnets/two", "name": "two", "addressPrefix": "10.7.1.0/24"}]}]`, aks, strings.Join(pools, ", "), net)); err != nil {
		t.Fatal(err)
	}
	text, err := Cluster(r, "")
	if err != nil {
		t.Fatal(err)
	}
	c, errs := cluster.Parse(nil, text)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if len(c.Spec.NodePools) != cluster.MaxPools {
		t.Errorf("%d pools, want %d", len(c.Spec.NodePools), cluster.MaxPools)
	}
	for i, p := range c.Spec.NodePools {
		if want := []string{"v/one", "v/two"}[min(i, 1)]; p.VNetSubnet != want || p.MaxPods != 10 {
			t.Errorf("pool %s: subnet %s and %d pods, want %s and 10", p.Name, p.VNetSubnet, p.MaxPods, want)
		}
	}
	for _, want := range []string{"# Node pool p10: a lab has at most 10.", "# Node pool p11: a lab has at most 10."} {
		if !strings.Contains(string(text), want+"\n") {
			t.Errorf("no line %q in\n%s", want, text)
		}
	}
}

// FuzzCluster: whatever files hold, the result is an error, or a file that the lab takes, and no text of theirs ends a comment.
func FuzzCluster(f *testing.F) {
	seeds, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(seeds) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, name := range seeds {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(txtar.Parse(data).Files[0].Data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := armview.NewResources()
		if r.Read("x.json", data) != nil {
			return
		}
		text, err := Cluster(r, "")
		if err != nil {
			return
		}
		if _, errs := cluster.Parse(nil, text); len(errs) > 0 {
			t.Error(errs)
		}
		for line := range bytes.Lines(text) {
			if bytes.ContainsAny(bytes.TrimRight(line, "\n"), "\x00\r\x1b\u0085\u2028") {
				t.Errorf("%q", line)
			}
		}
	})
}
