package plan

import (
	"fmt"
	"strings"
	"testing"

	"packetwalk.dev/internal/azure/vnet"
)

const (
	securityFrom = `
spec:
  azure:
    networkSecurityGroups:
    - {name: gone, rules: [{name: a, priority: 100, direction: Inbound, access: Deny}]}
    - name: vms
      rules:
      - {name: a, priority: 100, direction: Inbound, access: Deny}
      - {name: b, priority: 110, direction: Inbound, access: Deny, destinationPortRanges: ["80-90"]}
    vnets: [{name: v, addressPrefixes: [10.13.0.0/16], subnets: [{name: aks, prefix: 10.13.0.0/24}, {name: s, prefix: 10.13.1.0/24, networkSecurityGroup: gone}]}]
    vms: [{name: m, subnet: v/s, networkSecurityGroup: vms}]
`
	securityTo = `
spec:
  azure:
    networkSecurityGroups:
    - name: vms
      rules:
      - {name: b, priority: 105, direction: Inbound, access: Allow, destinationPortRanges: ["80"]}
    - {name: new}
    - {name: aks-agentpool-31351229-nsg, rules: [{name: own, priority: 501, direction: Inbound, access: Deny}]}
    vnets: [{name: v, addressPrefixes: [10.13.0.0/16], subnets: [{name: aks, prefix: 10.13.0.0/24, networkSecurityGroup: new}, {name: s, prefix: 10.13.1.0/24}]}]
    vms: [{name: m, subnet: v/s, networkSecurityGroup: new}]
`
)

// TestReviseSecurity: groups and rules of cluster.yaml come, change and go; Services' rules stay, behind those that take their priorities.
func TestReviseSecurity(t *testing.T) {
	from, to := parsed(t, securityFrom), parsed(t, securityTo)
	n, err := Network(from)
	if err != nil {
		t.Fatal(err)
	}
	if from.NodeSecurityGroup() != "aks-agentpool-31351229-nsg" {
		t.Fatal(from.NodeSecurityGroup())
	}
	nodes, _ := n.SecurityGroup(from.NodeSecurityGroup())
	for i, name := range []string{"a1-TCP-80-Internet", "a2-TCP-80-Internet", "a3-TCP-80-Internet"} {
		nodes.Rules = append(nodes.Rules, vnet.SecurityRule{Name: name, Priority: 500 + i, Direction: vnet.DirectionInbound,
			Access: vnet.AccessAllow, Protocol: vnet.ProtocolTCP})
	}
	step := func(change func() error, want string) {
		t.Helper()
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if err := n.Validate(); err != nil {
			t.Error(err)
		}
		if got := describeSecurity(n); got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	}
	step(func() error { return Revise(&n, from, to) }, `aks: new
m-nic: new
node: aks-agentpool-31351229-nsg
s:
vms: b 105 Allow [80]
aks-agentpool-31351229-nsg: own 501 Deny [], a1-TCP-80-Internet 500 Allow [], a2-TCP-80-Internet 502 Allow [], a3-TCP-80-Internet 503 Allow []
new:
`)
	step(func() error { return Revise(&n, to, from) }, `aks:
m-nic: vms
node: aks-agentpool-31351229-nsg
s: gone
vms: a 100 Deny [], b 110 Deny [80-90]
aks-agentpool-31351229-nsg: a1-TCP-80-Internet 500 Allow [], a2-TCP-80-Internet 502 Allow [], a3-TCP-80-Internet 503 Allow []
gone: a 100 Deny []
`)
}

func describeSecurity(n vnet.Network) string {
	var b strings.Builder
	line := func(name, text string) { fmt.Fprintln(&b, strings.TrimSpace(name+": "+text)) }
	aks, _ := n.Subnet("v", "aks")
	s, _ := n.Subnet("v", "s")
	vm, _ := n.NIC("m-nic")
	line("aks", aks.SecurityGroup)
	line("m-nic", vm.SecurityGroup)
	line("node", n.NICs[0].SecurityGroup)
	line("s", s.SecurityGroup)
	for _, g := range n.SecurityGroups {
		var rules []string
		for _, r := range g.Rules {
			rules = append(rules, fmt.Sprintf("%s %d %s %v", r.Name, r.Priority, r.Access, r.DestinationPorts))
		}
		line(g.Name, strings.Join(rules, ", "))
	}
	return b.String()
}
