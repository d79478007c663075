package az

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"
	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/azure/arm"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/cluster"
)

var update = flag.Bool("update", false, "rewrite the files of TestTranscript")

// world returns the network of the Part 1 article, with one service.
func world() vnet.Network {
	addr := netip.MustParseAddr
	const rule = "a48b4c0e11cfd11e9981c7abfb60d882-TCP-80"
	nic := vnet.NIC{Name: "aks-nodepool1-31351229-nic-0", Machine: "aks-nodepool1-31351229-0", VNet: "aksVnet", Subnet: "aks", ID: 1,
		MAC: "00:0d:3a:01:02:03"}
	for i, a := 1, addr("10.13.76.4"); i <= 3; i, a = i+1, a.Next() {
		nic.IPConfigs = append(nic.IPConfigs, vnet.IPConfig{Name: fmt.Sprintf("ipconfig%d", i), Address: a, Primary: i == 1})
	}
	return vnet.Network{
		Subscription: "e7da9914-9b05-4891-893c-546cb7b0422e", ResourceGroup: "akstest",
		NodeResourceGroup: "MC_akstest_aksPacketWalkAzure_westeurope", Location: "westeurope",
		VNets: []vnet.VNet{{
			Name: "aksVnet", ResourceGroup: "akstest", AddressPrefixes: []netip.Prefix{netip.MustParsePrefix("10.13.0.0/16")},
			Subnets: []vnet.Subnet{{Name: "aks", Prefix: netip.MustParsePrefix("10.13.76.0/24")},
				{Name: "vmsubnet", Prefix: netip.MustParsePrefix("10.13.1.0/24")}},
		}},
		NICs: []vnet.NIC{nic, {
			Name: "testvm-nic", Machine: "testvm", VNet: "aksVnet", Subnet: "vmsubnet", ID: 2, MAC: "00:0d:3a:04:05:06",
			IPConfigs: []vnet.IPConfig{{Name: "ipconfig1", Address: addr("10.13.1.4"), Primary: true, PublicIP: "testvm-pip"}},
		}},
		PublicIPs: []vnet.PublicIP{{Name: "testvm-pip", Address: addr("203.0.113.3")}},
		LoadBalancers: []vnet.LoadBalancer{{
			Name: "kubernetes", SKU: vnet.SKUBasic,
			Frontends:    []vnet.Frontend{{Name: "a48b4c0e11cfd11e9981c7abfb60d882", Address: addr("203.0.113.10")}},
			BackendPools: []vnet.BackendPool{{Name: "kubernetes", Members: []vnet.IPConfigRef{{NIC: nic.Name, IPConfig: "ipconfig1"}}}},
			Rules: []vnet.Rule{{
				Name: rule, Frontend: "a48b4c0e11cfd11e9981c7abfb60d882", BackendPool: "kubernetes", Probe: rule, Protocol: vnet.ProtocolTCP,
				FrontendPort: 80, BackendPort: 80, FloatingIP: true, IdleTimeoutMinutes: 4, LoadDistribution: vnet.DistributionDefault,
			}},
			Probes: []vnet.Probe{{Name: rule, Protocol: vnet.ProtocolTCP, Port: 30064, IntervalSeconds: 5, Count: 2}},
		}},
	}
}

// articles is the cluster.yaml of the world of the Part 1 article, with today's rules.
const articles = "spec:\n  network: {mode: bridge}\n"

// labOf returns a lab with the network, and the articles' cluster. It changes by its cluster.yaml alone.
func labOf(n vnet.Network) Lab { return labWith(n, []byte(articles)) }

// labWith does what labOf does with another cluster.
func labWith(n vnet.Network, source []byte) Lab {
	c, errs := cluster.Parse(nil, source)
	if len(errs) > 0 {
		panic(errs)
	}
	l := Lab{Network: n, Cluster: c, KubernetesVersion: "1.35.8"}
	l.Edit = func(edit func([]byte) ([]byte, error), _ bool) (Lab, error) {
		edited, err := edit(source)
		if err != nil {
			return Lab{}, err
		}
		now, errs := cluster.Parse(nil, edited)
		if len(errs) > 0 {
			return Lab{}, errs
		}
		source, *c = edited, *now
		return l, nil
	}
	return l
}

// transcript runs each "$ az …" line of a file and gives the file with what came out.
func transcript(t *testing.T, file string, l Lab) (want, got string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		command, ok := strings.CutPrefix(line, "$ az ")
		if !ok {
			continue
		}
		b.WriteString(line)
		var stdout, stderr bytes.Buffer
		code := Run(strings.Fields(command), l, &stdout, &stderr)
		b.WriteString(stdout.String() + stderr.String())
		if code != 0 {
			fmt.Fprintf(&b, "exit status %d\n", code)
		}
	}
	return string(data), b.String()
}

// TestSeed: the article's commands print the article's lines.
func TestSeed(t *testing.T) {
	local := world()
	local.LoadBalancers[0].Probes[0].Protocol, local.LoadBalancers[0].Probes[0].Port = vnet.ProtocolHTTP, 32364
	local.LoadBalancers[0].Probes[0].RequestPath = "/healthz"
	for file, n := range map[string]vnet.Network{"testdata/seed.txt": world(), "testdata/local.txt": local} {
		want, got := transcript(t, file, labOf(n))
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s:\n%s", file, d)
		}
	}
}

// TestChangingCommands: what would change the lab says how that is done.
func TestChangingCommands(t *testing.T) {
	for _, line := range []string{"network vnet create -n x", "network nsg rule delete -n x", "aks create"} {
		var out, err strings.Builder
		if code := Run(strings.Fields(line), labOf(world()), &out, &err); code == 0 || !strings.Contains(err.String(), "'packetwalk up -f cluster.yaml'") {
			t.Errorf("%s: %d, %s", line, code, &err)
		}
	}
}

// TestTranscript: other commands, formats, queries, and what is wrong, as a golden file.
func TestTranscript(t *testing.T) {
	pools := labWith(world(), []byte("metadata: {name: both}\n"+articles+"  nodePools: [{name: both}, {name: more}]\n"))
	standard := labOf(vnets())
	standard.Cluster.Spec.LoadBalancer = cluster.LoadBalancer{SKU: cluster.SKUStandard,
		ClusterServiceLoadBalancerHealthProbeMode: cluster.ProbeShared,
		Outbound: cluster.Outbound{ManagedIPs: 1, Ports: 1024, IdleTimeoutMinutes: 30}}
	standard.Cluster.Spec.Addons = []string{"http_application_routing"}
	standard.Changing = true
	for file, l := range map[string]Lab{"testdata/more.txt": labOf(world()), "testdata/vnets.txt": labOf(vnets()),
		"testdata/scale.txt": labOf(world()), "testdata/nodepool.txt": labOf(world()), "testdata/pools.txt": pools,
		"testdata/nsg.txt": labOf(nsgs()), "testdata/container.txt": containers(), "testdata/aks.txt": standard} {
		want, got := transcript(t, file, l)
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s:\n%s", file, d)
		}
	}
}

// vnets returns world with peerings, of which one has one side only, route tables, and a Standard load balancer's outbound rule.
func vnets() vnet.Network {
	n := world()
	prefix := netip.MustParsePrefix
	peer := func(from, to string) vnet.Peering { return vnet.Peering{Name: from + "-to-" + to, RemoteVNet: to} }
	n.VNets[0].Peerings = []vnet.Peering{peer("aksVnet", "other")}
	n.VNets[0].Subnets[0].RouteTable = "fw"
	n.VNets = append(n.VNets,
		vnet.VNet{Name: "other", AddressPrefixes: []netip.Prefix{prefix("172.17.0.0/16")}, Peerings: []vnet.Peering{peer("other", "aksVnet")}},
		vnet.VNet{Name: "third", AddressPrefixes: []netip.Prefix{prefix("172.18.0.0/16")}, Peerings: []vnet.Peering{peer("third", "aksVnet")}})
	n.RouteTables = []vnet.RouteTable{{Name: "fw", Routes: []vnet.UserRoute{
		{Name: "all", Prefix: prefix("0.0.0.0/0"), NextHopType: vnet.NextHopAppliance, NextHop: netip.MustParseAddr("10.13.1.4")},
		{Name: "never", Prefix: prefix("198.51.100.0/24"), NextHopType: vnet.NextHopNone},
	}}, {Name: "aks-agentpool-31351229-routetable"}}
	lb := &n.LoadBalancers[0]
	lb.SKU = vnet.SKUStandard
	lb.OutboundRules = []vnet.OutboundRule{{
		Name: "aksOutboundRule", Frontends: []string{lb.Frontends[0].Name}, BackendPool: "kubernetes", AllocatedOutboundPorts: 1024,
		IdleTimeoutMinutes: 30, TCPReset: true,
	}}
	return n
}

// nsgs returns world with the nodes' security group, which a Service has opened, and a subnet's with lists.
func nsgs() vnet.Network {
	n := world()
	const inbound, allow = vnet.DirectionInbound, vnet.AccessAllow
	port := func(first, last uint16) vnet.PortRange { return vnet.PortRange{First: first, Last: last} }
	n.SecurityGroups = []vnet.SecurityGroup{
		{Name: "aks-agentpool-31351229-nsg", Rules: []vnet.SecurityRule{{
			Name: "a48b4c0e11cfd11e9981c7abfb60d882-TCP-80-Internet", Priority: 500, Direction: inbound, Access: allow, Protocol: vnet.ProtocolTCP,
			Sources: []string{vnet.TagInternet}, Destinations: []string{"203.0.113.10"}, DestinationPorts: []vnet.PortRange{port(80, 80)},
		}}},
		{Name: "vms", Rules: []vnet.SecurityRule{{
			Name: "web", Priority: 100, Direction: inbound, Access: allow, Protocol: vnet.Any, Sources: []string{"10.13.76.0/24", "198.51.100.10"},
			DestinationPorts: []vnet.PortRange{port(80, 80), port(8000, 8010)},
		}}},
	}
	n.NICs[0].SecurityGroup, n.VNets[0].Subnets[1].SecurityGroup = "aks-agentpool-31351229-nsg", "vms"
	return n
}

// TestMixedProbes: a column that only some rows have comes after the others, as tabulate puts it.
func TestMixedProbes(t *testing.T) {
	n := world()
	lb := &n.LoadBalancers[0]
	lb.Probes = append(lb.Probes, vnet.Probe{Name: "b", Protocol: vnet.ProtocolHTTP, Port: 31322, RequestPath: "/healthz", IntervalSeconds: 5,
		Count: 2})
	var out, errs bytes.Buffer
	if code := Run(strings.Fields("network lb probe list -g "+n.NodeResourceGroup+" --lb-name kubernetes -o table"), labOf(n), &out,
		&errs); code != 0 {
		t.Fatal(errs.String())
	}
	lines := strings.Split(out.String(), "\n")
	if !strings.HasSuffix(lines[0], "ResourceGroup                             RequestPath") || !strings.HasSuffix(lines[3], "/healthz") {
		t.Errorf("got\n%s", out.String())
	}
}

// TestDecodesAsARM: the provider's JSON goes through armnetwork and back unchanged, so that tools built on it can read it.
func TestDecodesAsARM(t *testing.T) {
	r := arm.NewResources(world())
	data, err := json.Marshal(r.LoadBalancers[0])
	if err != nil {
		t.Fatal(err)
	}
	var lb armnetwork.LoadBalancer
	if err := json.Unmarshal(data, &lb); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(r.LoadBalancers[0], &lb); d != "" {
		t.Error(d)
	}
	if got := *lb.Properties.LoadBalancingRules[0].Properties.Probe.ID; got != *lb.Properties.Probes[0].ID {
		t.Errorf("the rule's probe %s is not the probe %s", got, *lb.Properties.Probes[0].ID)
	}
}

// FuzzRun: whatever the arguments, Run returns one of its codes, and says something when it is not 0.
func FuzzRun(f *testing.F) {
	for _, file := range []string{"testdata/seed.txt", "testdata/more.txt"} {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if command, ok := strings.CutPrefix(line, "$ az "); ok {
				f.Add(command)
			}
		}
	}
	n := world()
	f.Fuzz(func(t *testing.T, command string) {
		var out, errs bytes.Buffer
		code := Run(strings.Fields(command), labOf(n), &out, &errs)
		if code < 0 || code > 3 || (code == 0) != (errs.Len() == 0) {
			t.Errorf("exit %d with %q", code, errs.String())
		}
	})
}
