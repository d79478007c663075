package lab

import (
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"packetwalk.dev/internal/azure/fabric"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/network"
	"packetwalk.dev/internal/lab/status"
)

// TestRealStatus counts the pods that run, those in the node's own network too.
func TestRealStatus(t *testing.T) {
	pod := func(name string, phase corev1.PodPhase, hostNetwork bool) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name}, Status: corev1.PodStatus{Phase: phase},
			Spec: corev1.PodSpec{NodeName: "n", HostNetwork: hostNetwork}}
	}
	ready := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	client := fake.NewClientset(ready, pod("own", corev1.PodRunning, false), pod("host", corev1.PodRunning, true),
		pod("done", corev1.PodSucceeded, false), pod("waits", corev1.PodPending, false))
	empty, err := fabric.New(fabric.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := &nodes{Env: lifecycle.NewEnv("", layout.Binaries{}, slog.New(slog.DiscardHandler), func(lifecycle.Step) {}), api: &apiserver.Server{Client: client}, azure: &network.Network{Fabric: empty}}
	if pods, problem := l.realStatus(&node{Node: cluster.Node{Name: "n"}}); pods != 2 || problem != "" {
		t.Errorf("%d pods, %q; want 2 and no problem", pods, problem)
	}
}

// TestDeniedProbe: a front end without a healthy back end says which security rule denies the probes.
func TestDeniedProbe(t *testing.T) {
	n := vnet.Network{
		VNets: []vnet.VNet{{Name: "v", AddressPrefixes: []netip.Prefix{netip.MustParsePrefix("10.13.0.0/16")},
			Subnets: []vnet.Subnet{{Name: "s", Prefix: netip.MustParsePrefix("10.13.76.0/24"), SecurityGroup: "web"}}}},
		NICs: []vnet.NIC{{Name: "nic", Machine: "node", VNet: "v", Subnet: "s", ID: 1,
			IPConfigs: []vnet.IPConfig{{Name: "ipconfig1", Address: netip.MustParseAddr("10.13.76.4"), Primary: true}}}},
		SecurityGroups: []vnet.SecurityGroup{{Name: "web", Rules: []vnet.SecurityRule{{Name: "closed", Priority: 100, Access: vnet.AccessDeny,
			Direction: vnet.DirectionInbound, Protocol: vnet.ProtocolTCP, DestinationPorts: []vnet.PortRange{{First: 30064, Last: 30064}}}}}},
		LoadBalancers: []vnet.LoadBalancer{{
			Name: "lb", Frontends: []vnet.Frontend{{Name: "f", Address: netip.MustParseAddr("203.0.113.10")}},
			BackendPools: []vnet.BackendPool{{Name: "p", Members: []vnet.IPConfigRef{{NIC: "nic", IPConfig: "ipconfig1"}}}},
			Probes:       []vnet.Probe{{Name: "r", Protocol: vnet.ProtocolTCP, Port: 30064}},
			Rules: []vnet.Rule{{Name: "r", Frontend: "f", BackendPool: "p", Probe: "r", Protocol: vnet.ProtocolTCP, FrontendPort: 80,
				BackendPort: 80}},
		}},
	}
	s := status.Status{Ready: true, Frontends: network.Frontends(n, vnet.Health{})}
	const want = "203.0.113.10:80 has no healthy back end: the load balancer drops new connections; NSG web rule closed (100) denies the probe of node"
	if got := s.DerivedProblems(); !slices.Equal(got, []string{want}) {
		t.Errorf("got %q", got)
	}
	if text := vnet.NewPlan(n, vnet.Health{}).NFT; !strings.Contains(text, `drop comment "no back end is up: NSG web rule closed (100) denies the probe of node"`) {
		t.Errorf("the fabric's rule does not say it:\n%s", text)
	}
	n.LoadBalancers[0].Probes[0].Port++
	s.Frontends = network.Frontends(n, vnet.Health{})
	if got := s.DerivedProblems(); len(got) != 1 || strings.Contains(got[0], "denies") {
		t.Errorf("with another port: %q", got)
	}
}

// TestAPIObstacles: what keeps a node's packets from the API server is the user-defined route of the longest prefix that holds its address,
// or a security rule.
func TestAPIObstacles(t *testing.T) {
	everything, api := netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("203.0.113.0/24")
	other := netip.MustParsePrefix("192.0.2.0/24")
	appliance := netip.MustParseAddr("10.13.1.4")
	deny := []vnet.SecurityRule{{Name: "shut", Priority: 100, Access: vnet.AccessDeny, Direction: vnet.DirectionOutbound, Protocol: vnet.Any,
		Destinations: []string{vnet.TagInternet}}}
	for name, test := range map[string]struct {
		routes []vnet.UserRoute
		rules  []vnet.SecurityRule
		want   []string
		isCut  bool // while the node is still Ready
	}{
		"none":            {nil, nil, nil, false},
		"elsewhere":       {[]vnet.UserRoute{{Name: "o", Prefix: other, NextHopType: vnet.NextHopNone}}, nil, nil, false},
		"to the internet": {[]vnet.UserRoute{{Name: "i", Prefix: everything, NextHopType: vnet.NextHopInternet}}, nil, nil, false},
		"of everything, to nowhere": {[]vnet.UserRoute{{Name: "all", Prefix: everything, NextHopType: vnet.NextHopNone}}, nil,
			[]string{"route all (0.0.0.0/0) of route table fw leads its packets for the API server 203.0.113.1:443 to next hop None"}, true},
		"of everything, to an appliance": {
			[]vnet.UserRoute{{Name: "all", Prefix: everything, NextHopType: vnet.NextHopAppliance, NextHop: appliance}}, nil,
			[]string{"route all (0.0.0.0/0) of route table fw leads its packets for the API server 203.0.113.1:443 " +
				"to next hop VirtualAppliance 10.13.1.4"}, false},
		"to an address without an appliance": {
			[]vnet.UserRoute{{Name: "all", Prefix: everything, NextHopType: vnet.NextHopAppliance, NextHop: appliance.Next()}}, nil,
			[]string{"route all (0.0.0.0/0) of route table fw leads its packets for the API server 203.0.113.1:443 " +
				"to next hop VirtualAppliance 10.13.1.5"}, true},
		"a longer prefix to the internet": {[]vnet.UserRoute{{Name: "all", Prefix: everything, NextHopType: vnet.NextHopNone},
			{Name: "api", Prefix: api, NextHopType: vnet.NextHopInternet}}, nil, nil, false},
		"a longer prefix to nowhere": {[]vnet.UserRoute{{Name: "api", Prefix: api, NextHopType: vnet.NextHopNone},
			{Name: "all", Prefix: everything, NextHopType: vnet.NextHopInternet}}, nil,
			[]string{"route api (203.0.113.0/24) of route table fw leads its packets for the API server 203.0.113.1:443 to next hop None"}, true},
		"a security rule": {nil, deny, []string{"NSG web rule shut (100) denies its packets for the API server 203.0.113.1:443"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := vnet.Network{
				VNets: []vnet.VNet{{Name: "v", AddressPrefixes: []netip.Prefix{netip.MustParsePrefix("10.13.0.0/16")},
					Subnets: []vnet.Subnet{{Name: "s", Prefix: netip.MustParsePrefix("10.13.76.0/24"), RouteTable: "fw", SecurityGroup: "web"}}}},
				NICs: []vnet.NIC{{Name: "nic", Machine: "node", VNet: "v", Subnet: "s", ID: 1,
					IPConfigs: []vnet.IPConfig{{Name: "ipconfig1", Address: netip.MustParseAddr("10.13.76.4"), Primary: true}}},
					{Name: "firewall", Machine: "firewall", VNet: "v", IPForwarding: true, ID: 2,
						IPConfigs: []vnet.IPConfig{{Name: "ipconfig1", Address: appliance, Primary: true}}}},
				RouteTables:    []vnet.RouteTable{{Name: "fw", Routes: test.routes}},
				SecurityGroups: []vnet.SecurityGroup{{Name: "web", Rules: test.rules}},
			}
			if got := network.APIObstacles(n, "nic"); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			want := ""
			if test.isCut {
				want = "cut off from the API server: " + test.want[0]
			}
			if got := apiCut(n, "nic"); got != want {
				t.Errorf("of a Ready node %q, want %q", got, want)
			}
		})
	}
}

// TestIsUp: a node is up by what its kubelet said after the machine's start, and without a network only where the user brings one.
func TestIsUp(t *testing.T) {
	started := time.Date(2026, 1, 2, 3, 4, 5, 700_000_000, time.UTC)
	const lacksPlugin = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns " +
		"error: cni plugin not initialized"
	for _, test := range []struct {
		name, message string
		status        corev1.ConditionStatus
		said, since   time.Time
		plugin        cluster.Plugin
		want          bool
	}{
		{"ready", "", corev1.ConditionTrue, started.Add(time.Second), started, cluster.PluginAzure, true},
		{"taken over", "", corev1.ConditionTrue, started, time.Time{}, cluster.PluginAzure, true},
		{"ready in an earlier life", "", corev1.ConditionTrue, started.Add(-time.Minute), started, cluster.PluginAzure, false},
		{"ready in the second of the start", "", corev1.ConditionTrue, started, started, cluster.PluginAzure, false},
		{"without a plugin of ours", lacksPlugin, corev1.ConditionFalse, started.Add(time.Second), started, cluster.PluginAzure, false},
		{"without a plugin of the user's", lacksPlugin, corev1.ConditionFalse, started.Add(time.Second), started, cluster.PluginNone, true},
		{"without it in an earlier life", lacksPlugin, corev1.ConditionFalse, started.Add(-time.Minute), started, cluster.PluginNone, false},
		{"without more than it", "[container runtime is down, " + lacksPlugin + "]", corev1.ConditionFalse, started.Add(time.Second), started,
			cluster.PluginNone, false},
		{"lost", "Kubelet stopped posting node status.", corev1.ConditionUnknown, started.Add(time.Second), started, cluster.PluginNone, false},
	} {
		n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: test.status, Message: test.message,
				LastHeartbeatTime: metav1.Time{Time: test.said.Truncate(time.Second)}},
		}}}
		if got := isUp(n, test.since, test.plugin); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
	first := &corev1.Node{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Time{Time: started.Truncate(time.Second)}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Time{Time: started.Truncate(time.Second)}},
		}}}
	if !isUp(first, started, cluster.PluginAzure) {
		t.Error("a node that became ready in the second of its first start is not up")
	}
	if isUp(&corev1.Node{}, time.Time{}, cluster.PluginNone) {
		t.Error("a node of which nothing was said is up")
	}
}
