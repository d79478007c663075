package explain

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/syntax/iptables"
)

// policySource is a source whose hosts have what a test gives them.
type policySource struct {
	objects snapshot.Objects
	hosts   map[string]*snapshot.Host
}

func (p *policySource) Names() []string           { return nil }
func (p *policySource) Objects() snapshot.Objects { return p.objects }
func (p *policySource) Host(name string) (*snapshot.Host, error) {
	if h := p.hosts[name]; h != nil {
		return h, nil
	}
	return nil, snapshot.NotFound(name, nil)
}

func hostWith(t *testing.T, name, rules string, links ...fib.Link) *snapshot.Host {
	t.Helper()
	parsed, err := iptables.Parse([]byte(rules))
	if err != nil {
		t.Fatal(err)
	}
	tables, err := iptables.Lower(parsed, netfilter.IPv4, netfilter.IPTablesNFT)
	if err != nil {
		t.Fatal(err)
	}
	h := &snapshot.Host{Name: name, FIB: &fib.State{Links: links}, Missing: map[snapshot.Part]string{}}
	h.Rules = &netfilter.Ruleset{Tables: tables}
	h.Rules.Index()
	return h
}

// TestNetworkPolicies: policies that select a pod on the way count as not enforced where no engine has rules. Where one has, its rules
// decide. What is not known is said.
func TestNetworkPolicies(t *testing.T) {
	const (
		denyIn  = "NetworkPolicy default/deny-in "
		missing = "pod/default/web: whether a NetworkPolicy selects it is not known: "
		calico  = "*filter\n:FORWARD ACCEPT [0:0]\n:cali-FORWARD - [0:0]\n:cali-to-wl-dispatch - [0:0]\n" +
			"-A FORWARD -j cali-FORWARD\n-A cali-FORWARD -j cali-to-wl-dispatch\nCOMMIT\n"
		npm = "*filter\n:FORWARD ACCEPT [0:0]\n:AZURE-NPM - [0:0]\n-A FORWARD -j AZURE-NPM\nCOMMIT\n"
	)
	everything := []snapshot.NetworkPolicy{
		{Namespace: "default", Name: "deny-in", Ingress: true},
		{Namespace: "default", Name: "deny-out", Egress: true},
		{Namespace: "other", Name: "others", Ingress: true, Egress: true},
	}
	both := []snapshot.NetworkPolicy{{Namespace: "default", Name: "b", Ingress: true}, {Namespace: "default", Name: "a", Ingress: true}}
	web := []snapshot.Pod{{Namespace: "default", Name: "web", Node: "n", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.9")}}}
	in, out := []string{"vm/v", "node/n", "pod/default/web"}, []string{"pod/default/web", "node/n", "vm/v"}
	for name, test := range map[string]struct {
		policies []snapshot.NetworkPolicy
		pods     []snapshot.Pod
		way      []string
		rules    string // of the node
		change   func(node, pod *snapshot.Host)
		want     string
	}{
		"received":        {everything, web, in, "", nil, "pod/default/web: " + denyIn + "is not enforced: node n has no rules of a network policy engine"},
		"sent":            {everything, web, out, "", nil, "pod/default/web: NetworkPolicy default/deny-out is not enforced: node n has no rules of a network policy engine"},
		"two":             {both, web, in, "", nil, "pod/default/web: NetworkPolicies default/a, default/b are not enforced: node n has no rules of a network policy engine"},
		"none":            {[]snapshot.NetworkPolicy{}, web, in, "", nil, ""},
		"not on the way":  {everything, web, []string{"vm/v", "node/n"}, "", nil, ""},
		"to itself":       {everything, web, []string{"pod/default/web"}, "", nil, ""},
		"no list":         {nil, web, in, "", nil, missing + "there is no list of NetworkPolicies"},
		"no pods":         {everything, nil, in, "", nil, missing + "it is not in the list of pods"},
		"Calico":          {everything, web, in, calico, nil, ""},
		"Calico, no list": {nil, web, in, calico, nil, ""},
		"Azure NPM":       {everything, web, in, npm, nil, ""},
		"an engine's chain to which nothing leads": {everything, web, in, strings.ReplaceAll(npm, "-A FORWARD -j AZURE-NPM\n", ""), nil,
			"pod/default/web: " + denyIn + "is not enforced: node n has no rules of a network policy engine"},
		"Calico without policies": {everything, web, in, "*nat\n:POSTROUTING ACCEPT [0:0]\n:cali-POSTROUTING - [0:0]\n-A POSTROUTING -j cali-POSTROUTING\nCOMMIT\n", nil,
			"pod/default/web: " + denyIn + "is not enforced: node n has no rules of a network policy engine"},
		"a program": {everything, web, in, "", func(n, _ *snapshot.Host) { n.FIB.Links[0].ProgramOut = "a BPF program (tcx)" },
			"pod/default/web: whether " + denyIn + "is enforced is not known: node n has a BPF program (tcx) at veth1"},
		"a program in the pod": {everything, web, in, "", func(_, p *snapshot.Host) { p.FIB.Links[0].Program = "a filter of tc (bpf)" },
			"pod/default/web: whether " + denyIn + "is enforced is not known: pod default/web has a filter of tc (bpf) at eth0"},
		"netkit": {everything, web, in, "", func(n, _ *snapshot.Host) { n.FIB.Links[0].Kind = "netkit" },
			"pod/default/web: whether " + denyIn + "is enforced is not known: node n has the netkit link veth1, whose programs are not read"},
		"rules missing": {everything, web, in, "", func(n, _ *snapshot.Host) { n.Missing[snapshot.Rules] = "no right" },
			"pod/default/web: whether " + denyIn + "is enforced is not known: the iptables rules of node n are not known"},
		"an unknown engine": {everything, web, in, "*filter\n:FORWARD ACCEPT [0:0]\n:THEIRS-FW - [0:0]\n-A FORWARD -j THEIRS-FW\n-A THEIRS-FW -j RETURN\nCOMMIT\n", nil,
			"pod/default/web: whether " + denyIn + "is enforced is not known: no known program writes the rules of chain filter THEIRS-FW of node n"},
	} {
		t.Run(name, func(t *testing.T) {
			node := hostWith(t, "node/n", test.rules, fib.Link{Name: "veth1"})
			pod := hostWith(t, "pod/default/web", "", fib.Link{Name: "eth0"})
			if test.change != nil {
				test.change(node, pod)
			}
			src := &policySource{snapshot.Objects{Pods: test.pods, NetworkPolicies: test.policies},
				map[string]*snapshot.Host{"node/n": node, "pod/default/web": pod}}
			if got := assumptions(NetworkPolicies(src, along(node, test.way...), ownersOf(src.objects))); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

// along returns a walk with one outcome, which meets all rules of a node.
func along(node *snapshot.Host, hosts ...string) *walk.Result {
	var o walk.Outcome
	for _, host := range hosts {
		o.There = append(o.There, walk.Step{Host: host, Stage: walk.Received})
		if host != node.Name {
			continue
		}
		for _, table := range node.Rules.Tables {
			for _, c := range table.Chains {
				for i := range c.Rules {
					o.There = append(o.There, walk.Step{Host: host, Stage: walk.Ruled, Visit: &netfilter.Visit{Chain: c, Rule: &c.Rules[i]}})
				}
			}
		}
	}
	return &walk.Result{Request: walk.Request{Host: hosts[0]}, Outcomes: []walk.Outcome{o}}
}

func assumptions(all []walk.Assumption) string {
	var lines []string
	for _, a := range all {
		lines = append(lines, a.Host+": "+a.What)
		if a.Component != "NetworkPolicy" {
			lines = append(lines, "component "+a.Component)
		}
	}
	return strings.Join(lines, "\n")
}

// TestNetworkPoliciesOfAnAbsentSender: the packet of a pod whose namespace is not at hand comes in at its node.
func TestNetworkPoliciesOfAnAbsentSender(t *testing.T) {
	node := hostWith(t, "node/n", "")
	address := netip.MustParseAddr("10.0.0.9")
	src := &policySource{snapshot.Objects{
		Pods:            []snapshot.Pod{{Namespace: "default", Name: "web", Node: "n", IPs: []netip.Addr{address}}},
		NetworkPolicies: []snapshot.NetworkPolicy{{Namespace: "default", Name: "deny-out", Egress: true}},
	}, map[string]*snapshot.Host{"node/n": node}}
	r := along(node, "node/n")
	r.Request.Forwarded, r.Request.Packet = true, packet.Packet{Tuple: packet.Tuple{Source: address}}
	const want = "pod/default/web: NetworkPolicy default/deny-out is not enforced: node n has no rules of a network policy engine"
	if got := assumptions(NetworkPolicies(src, r, ownersOf(src.objects))); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestPolicyNamedAsAChain: an assumption about policies is said whatever they are called.
func TestPolicyNamedAsAChain(t *testing.T) {
	var b bytes.Buffer
	e := toVM(t)
	what := "NetworkPolicy default/cali-tw-x is not enforced: node n has no rules of a network policy engine"
	err := Text(&b, e.result, Options{Owners: ownersOf(e.objects),
		Read: []walk.Assumption{{Host: "pod/default/web", What: what, Component: "NetworkPolicy"}}})
	if err != nil || !strings.Contains(strings.Join(strings.Fields(b.String()), " "), what) {
		t.Errorf("%v\n%s", err, b.String())
	}
	d := newDocument(e.result, Options{Read: []walk.Assumption{{Host: "pod/default/web", What: what, Component: "NetworkPolicy"}}})
	if !slices.Contains(d.Assumed, AssumedDoc{"pod/default/web", "NetworkPolicy", what}) {
		t.Errorf("assumed %+v", d.Assumed)
	}
}

// TestPoliciesInConclusion: an open policy is a condition of the outcomes that come to its pod, and of all if the pod is a sender that is not
// at hand. That no list of policies is known is none.
func TestPoliciesInConclusion(t *testing.T) {
	e := fromInternet(t)
	pod := e.result.Outcomes[0].End.Host
	for name, c := range map[string]struct {
		host, what string
		want       [2]bool // in the outcomes
	}{
		"receiver": {pod, "NetworkPolicy default/deny is not enforced: node n has no rules of a network policy engine", [2]bool{true, false}},
		"unknown":  {pod, "whether NetworkPolicy default/deny is enforced is not known: x", [2]bool{true, false}},
		"sender":   {"pod/default/far", "NetworkPolicy default/deny is not enforced: x", [2]bool{true, true}},
		"no list":  {pod, unlistedPolicies + " is not known: x", [2]bool{false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Owners: ownersOf(e.objects), Read: []walk.Assumption{{Host: c.host, What: c.what, Component: networkPolicy}}}
			for i, outcome := range newDocument(e.result, o).Outcomes {
				if got := slices.Contains(outcome.Sees.Conditions, hostName(c.host)+": "+c.what); got != c.want[i] {
					t.Errorf("outcome %d: %v, conditions %q", i+1, got, outcome.Sees.Conditions)
				}
			}
		})
	}
}
