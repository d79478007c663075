package plan

import (
	"slices"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/cluster"
)

// securityGroupsOf returns the network security groups of cluster.yaml and the nodes', as they are before the first Service.
func securityGroupsOf(c *cluster.Cluster) []vnet.SecurityGroup {
	var all []vnet.SecurityGroup
	nodes := false
	for _, g := range c.Spec.Azure.NetworkSecurityGroups {
		group := vnet.SecurityGroup{Name: g.Name}
		for _, r := range g.Rules {
			group.Rules = append(group.Rules, securityRuleOf(r))
		}
		if g.Name == c.NodeSecurityGroup() {
			group.Rules = append(group.Rules, blockRules(c)...)
		}
		all = append(all, group)
		nodes = nodes || g.Name == c.NodeSecurityGroup()
	}
	if !nodes {
		all = append(all, vnet.SecurityGroup{Name: c.NodeSecurityGroup(), Rules: blockRules(c)})
	}
	return all
}

func securityRuleOf(r cluster.SecurityRule) vnet.SecurityRule {
	return vnet.SecurityRule{
		Name: r.Name, Priority: r.Priority, Direction: string(r.Direction), Access: string(r.Access), Protocol: string(r.Protocol),
		Sources: r.SourceAddressPrefixes, SourcePorts: portRanges(r.SourcePortRanges),
		Destinations: r.DestinationAddressPrefixes, DestinationPorts: portRanges(r.DestinationPortRanges),
	}
}

// portRanges reads what cluster.yaml's validation has let pass; * is every port, which is nil.
func portRanges(list []string) []vnet.PortRange {
	var all []vnet.PortRange
	for _, s := range list {
		if r, err := vnet.ParsePortRange(s); err == nil {
			all = append(all, r)
		}
	}
	return all
}

// reviseSecurity changes the security groups that are cluster.yaml's. Services' rules stay; one whose priority a new rule of cluster.yaml
// has makes place for it and gets another.
func reviseSecurity(n *vnet.Network, before, after vnet.Network) {
	for _, was := range before.SecurityGroups {
		if _, stays := after.SecurityGroup(was.Name); !stays {
			n.SecurityGroups = slices.DeleteFunc(n.SecurityGroups, func(g vnet.SecurityGroup) bool { return g.Name == was.Name })
		}
	}
	for _, want := range after.SecurityGroups {
		g, there := n.SecurityGroup(want.Name)
		if !there {
			n.SecurityGroups = append(n.SecurityGroups, want)
			continue
		}
		was, _ := before.SecurityGroup(want.Name)
		rules := slices.Clone(want.Rules)
		for _, r := range g.Rules {
			if was == nil || !slices.ContainsFunc(was.Rules, func(o vnet.SecurityRule) bool { return o.Name == r.Name }) {
				rules = append(rules, withFreePriority(r, rules))
			}
		}
		g.Rules = rules
	}
}

// withFreePriority returns the rule, behind those that have its priority.
func withFreePriority(r vnet.SecurityRule, rules []vnet.SecurityRule) vnet.SecurityRule {
	for slices.ContainsFunc(rules, func(o vnet.SecurityRule) bool { return o.Direction == r.Direction && o.Priority == r.Priority }) {
		r.Priority++
	}
	return r
}
