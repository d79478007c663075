package cluster

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/testing/goldentest"
)

// testApps stands for the built-in applications.
var testApps = []string{"ifconfig.co", "nginx", "whereami"}

// TestGolden parses each file's cluster.yaml, twice, and compares what comes out: the errors, or the cluster with its defaults and what
// follows from it.
func TestGolden(t *testing.T) {
	goldentest.Run(t, "testdata/*.txtar", 1, func(t *testing.T, in []txtar.File) []txtar.File {
		c, errs := Parse(nil, in[0].Data, testApps...)
		if c != nil {
			return []txtar.File{{Name: "result", Data: describeCluster(t, c)}}
		}
		return []txtar.File{{Name: "errors", Data: []byte(errs.Error() + "\n")}}
	})
}

func describeCluster(t *testing.T, c *Cluster) []byte {
	t.Helper()
	out, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.Write(out)
	for _, n := range c.Nodes() {
		b.WriteString("# node " + n.Name + " " + n.NIC + " " + n.Address.String())
		if k := len(n.PodAddresses); k > 0 {
			b.WriteString(" pods " + n.PodAddresses[0].String() + " to " + n.PodAddresses[k-1].String())
		}
		b.WriteString("\n")
	}
	for _, vm := range c.Spec.Azure.VMs {
		if a, ok := c.VMPublicIP(vm.Name); ok {
			b.WriteString("# vm " + vm.Name + " is " + a.String() + "\n")
		}
	}
	b.WriteString("# node resource group " + c.NodeResourceGroup() + "\n# pods " + c.PodRange().String() + "\n")
	f := c.Frontends()
	b.WriteString("# front ends " + f[0].String() + " to " + f[len(f)-1].String() + "\n")
	return []byte(b.String())
}

// defaultCluster returns the cluster that "up" makes without a file.
func defaultCluster() *Cluster {
	c := &Cluster{}
	c.setDefaults()
	return c
}

// TestDefaultIsOverlay checks the default against examples/overlay, which writes every value out. Its name alone is another, and its nodes
// pull nothing.
func TestDefaultIsOverlay(t *testing.T) {
	parsed, errs := Parse(nil, nil, testApps...)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if !reflect.DeepEqual(parsed, defaultCluster()) {
		t.Error("an empty file is not the default")
	}
	data, err := os.ReadFile("../../../examples/overlay/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want, errs := Parse(nil, data, testApps...)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var got []string
	for _, change := range Compare(want, parsed) {
		got = append(got, change.String())
	}
	if d := cmp.Diff([]string{"~ metadata.name: overlay → aksPacketWalkAzure", "~ spec.images.pull: never → ifNeeded"}, got); d != "" {
		t.Error(d)
	}
}

// TestArticlesWorld checks what older rules make the default against the figures of the Part 1 article, not against a golden file that the
// code wrote.
func TestArticlesWorld(t *testing.T) {
	c, errs := Parse(nil, []byte(`spec: {serviceProxy: {rules: "1.11"}}`), testApps...)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	nodes := c.Nodes()
	if len(nodes) != 1 {
		t.Fatalf("%d nodes, want 1", len(nodes))
	}
	n := nodes[0]
	want := []string{"bridge", "basic", "aks-nodepool1-31351229-0", "aks-nodepool1-31351229-nic-0", "10.13.76.4", "10.13.76.5", "10.13.76.34",
		"10.13.76.0/24"}
	got := []string{string(c.Spec.Network.Mode), string(c.Spec.LoadBalancer.SKU), n.Name, n.NIC, n.Address.String(), n.PodAddresses[0].String(),
		n.PodAddresses[len(n.PodAddresses)-1].String(), c.PodRange().String()}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if g := c.NodeResourceGroup(); g != "MC_akstest_aksPacketWalkAzure_westeurope" {
		t.Errorf("node resource group %s", g)
	}
	if vm := c.Spec.Azure.VMs[0]; vm.Address != netip.MustParseAddr("10.13.1.4") {
		t.Errorf("testvm has %s, want 10.13.1.4", vm.Address)
	}
}

// TestDefaultMode tells apart what decides the mode of a file that names none.
func TestDefaultMode(t *testing.T) {
	for spec, want := range map[string]struct {
		mode  Mode
		sku   SKU
		vnet  string
		nodes int
	}{
		"{}":                                                            {ModeOverlay, SKUStandard, "aks-vnet", 2},
		"{network: {mode: transparent}}":                                {ModeTransparent, SKUStandard, "aks-vnet", 2},
		"{network: {mode: bridge}}":                                     {ModeBridge, SKUBasic, "aksVnet", 1},
		"{network: {policy: calico}}":                                   {ModeTransparent, SKUStandard, "aks-vnet", 2},
		"{network: {plugin: kubenet}}":                                  {"", SKUStandard, "aks-vnet", 2},
		"{network: {plugin: none}}":                                     {"", SKUStandard, "aks-vnet", 2},
		"{virtualNode: {enabled: true}}":                                {ModeTransparent, SKUStandard, "aks-vnet", 2},
		`{serviceProxy: {rules: "1.19"}}`:                               {ModeBridge, SKUBasic, "aksVnet", 1},
		`{serviceProxy: {backend: nftables}}`:                           {ModeOverlay, SKUStandard, "aks-vnet", 2},
		`{nodePools: [{name: a}, {name: b}]}`:                           {ModeOverlay, SKUStandard, "aks-vnet", 2},
		`{nodePools: [{maxPods: 30}]}`:                                  {ModeOverlay, SKUStandard, "aks-vnet", 1},
		`{loadBalancer: {sku: basic}}`:                                  {ModeOverlay, SKUBasic, "aks-vnet", 2},
		`{outboundType: managedNATGateway}`:                             {ModeOverlay, SKUStandard, "aks-vnet", 2},
		`{nodeOptions: {localDNS: true}}`:                               {ModeOverlay, SKUStandard, "aks-vnet", 2},
		`{addons: [http_application_routing]}`:                          {ModeOverlay, SKUStandard, "aks-vnet", 2},
		`{network: {policy: calico, mode: overlay}}`:                    {ModeOverlay, SKUStandard, "aks-vnet", 2},
		`{virtualNode: {enabled: true}, serviceProxy: {rules: "1.12"}}`: {ModeBridge, SKUBasic, "aksVnet", 1},
		`{network: {policy: calico}, virtualNode: {enabled: true}, serviceProxy: {rules: "1.12"}}`: {ModeTransparent, SKUBasic, "aksVnet", 1},
	} {
		t.Run(spec, func(t *testing.T) {
			c, errs := Parse(nil, []byte("spec: "+spec), testApps...)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			s := c.Spec
			if s.Network.Mode != want.mode || s.LoadBalancer.SKU != want.sku || s.Azure.VNets[0].Name != want.vnet || len(c.Nodes()) != want.nodes {
				t.Errorf("mode %q, SKU %s, VNet %s, %d nodes; want %+v", s.Network.Mode, s.LoadBalancer.SKU, s.Azure.VNets[0].Name, len(c.Nodes()), want)
			}
		})
	}
}

// TestMarshalledParsesBack: what a lab keeps as its cluster.yaml gives the same cluster again.
func TestMarshalledParsesBack(t *testing.T) {
	c := defaultCluster()
	out, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	again, errs := Parse(nil, out, testApps...)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if !reflect.DeepEqual(c, again) {
		t.Errorf("not the same:\n%s", out)
	}
}

// TestExamples: every example in the repository is valid.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../../examples/*/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(data), "apiVersion: "+APIVersion+"\n") { // for kubectl
			continue
		}
		if _, errs := Parse(nil, data); len(errs) > 0 {
			t.Errorf("%s: %v", f, errs)
		}
	}
}

// TestTrueByDefault: fields that are true without a value can be set to false, and say so where the value is neither.
func TestTrueByDefault(t *testing.T) {
	values := map[string]func(*Cluster) bool{
		"images: {builtIn: %s}":      func(c *Cluster) bool { return *c.Spec.Images.BuiltIn },
		"serviceProxy: {repair: %s}": func(c *Cluster) bool { return c.Spec.ServiceProxy.Repairs() },
	}
	for field, value := range values {
		t.Run(field, func(t *testing.T) {
			for _, given := range []string{"true", "false", "null"} {
				c, errs := Parse(nil, fmt.Appendf(nil, "spec: {"+field+"}", given))
				if len(errs) > 0 {
					t.Fatal(errs)
				}
				if got, want := value(c), given != "false"; got != want {
					t.Errorf("%s: the cluster has %v", given, got)
				}
			}
			if _, errs := Parse(nil, fmt.Appendf(nil, "spec: {"+field+"}", "maybe")); len(errs) != 1 {
				t.Errorf("maybe: %v", errs)
			}
		})
	}
}

// TestWholeFile: errors that have no field.
func TestWholeFile(t *testing.T) {
	for _, in := range []string{"a: [", "a: 1\n---\nb: 2\n", "\x00", "- a", "just text", strings.Repeat("#", maxFile+1)} {
		if c, errs := Parse(nil, []byte(in)); c != nil || len(errs) != 1 {
			t.Errorf("%.20q: %v, want one error", in, errs)
		}
	}
}

// FuzzParse: whatever the bytes, Parse returns; what it accepts is valid, has its nodes' addresses inside their subnet, and is accepted
// again after printing.
func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txtar")
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(a.Files[0].Data)
	}
	f.Add([]byte("x: &a [*a]\nspec: {nodePools: &p [{name: a}, *p]}\n"))
	f.Add([]byte("&a spec: *a\n? [x]\n: y\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, errs := Parse(nil, data)
		if (c == nil) == (len(errs) == 0) {
			t.Fatalf("cluster %v with errors %v", c, errs)
		}
		if c == nil {
			return
		}
		seen := map[netip.Addr]bool{}
		for _, n := range c.Nodes() {
			for _, a := range append([]netip.Addr{n.Address}, n.PodAddresses...) {
				if !n.Subnet.Contains(a) || seen[a] {
					t.Fatalf("node %s has %s outside %s, or twice", n.Name, a, n.Subnet)
				}
				seen[a] = true
			}
		}
		out, err := yaml.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		again, errs := Parse(nil, out)
		if len(errs) > 0 || !reflect.DeepEqual(c, again) {
			t.Fatalf("printed and parsed again: %v\n%s", errs, out)
		}
	})
}
