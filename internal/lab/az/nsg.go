package az

import (
	"cmp"
	"io"
	"net/netip"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"packetwalk.dev/internal/azure/arm"
	"packetwalk.dev/internal/azure/vnet"
)

const effectiveGroupsWords = "network nic list-effective-nsg"

// effectiveGroups returns the security groups that a NIC's flows meet, as the provider gives them: with Azure's own rules, and what service
// tags stand for.
func effectiveGroups(l Lab, o options, _ io.Writer) (any, error) {
	found, err := nics.named(l, o)
	if err != nil {
		return nil, err
	}
	groups, err := allGroups(l)
	if err != nil {
		return nil, err
	}
	value := []*armnetwork.EffectiveNetworkSecurityGroup{}
	nic, _ := l.Network.NIC(field(found, "name"))
	for _, g := range l.Network.EffectiveSecurityGroups(nic) {
		e := &armnetwork.EffectiveNetworkSecurityGroup{Association: &armnetwork.EffectiveNetworkSecurityGroupAssociation{}}
		for _, r := range groups {
			if field(r, "name") == g.Name {
				e.NetworkSecurityGroup = &armnetwork.SubResource{ID: new(field(r, "id"))}
			}
		}
		if g.OfNIC {
			e.Association.NetworkInterface = &armnetwork.SubResource{ID: new(field(found, "id"))}
		}
		if g.OfSubnet {
			e.Association.Subnet = &armnetwork.SubResource{ID: new(arm.SubnetID(l.Network, nic.VNet, nic.Subnet))}
		}
		for _, r := range g.Rules {
			e.EffectiveSecurityRules = append(e.EffectiveSecurityRules, effectiveRule(r))
		}
		value = append(value, e)
	}
	all, err := view([]armnetwork.EffectiveNetworkSecurityGroupListResult{{Value: value}})
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// effectiveRule returns a rule as the provider gives it: the first of each list in the singular field, too, all addresses as 0.0.0.0/0 and
// all ports as 0-65535.
func effectiveRule(r vnet.EffectiveRule) *armnetwork.EffectiveNetworkSecurityRule {
	e := &armnetwork.EffectiveNetworkSecurityRule{
		Name: new(ruleName(r.SecurityRule)), Priority: new(int32(r.Priority)), Access: new(armnetwork.SecurityRuleAccess(r.Access)),
		Direction: new(armnetwork.SecurityRuleDirection(r.Direction)), Protocol: new(armnetwork.EffectiveSecurityRuleProtocol(r.Protocol)),
		ExpandedSourceAddressPrefix: texts(r.ExpandedSources), ExpandedDestinationAddressPrefix: texts(r.ExpandedDestinations),
	}
	if r.Protocol == vnet.Any {
		e.Protocol = new(armnetwork.EffectiveSecurityRuleProtocolAll)
	}
	addresses := func(list []string) (one *string, all []*string) {
		for _, a := range list {
			if ip, err := netip.ParseAddr(a); err == nil {
				a = ip.String() + "/32"
			}
			all = append(all, new(a))
		}
		if len(all) == 0 {
			all = []*string{new("0.0.0.0/0")}
		}
		return all[0], all
	}
	ports := func(list []vnet.PortRange) (one *string, all []*string) {
		if len(list) == 0 {
			list = []vnet.PortRange{{First: 0, Last: 65535}}
		}
		for _, p := range list {
			first, last, isRange := strings.Cut(p.String(), "-")
			if !isRange {
				last = first
			}
			all = append(all, new(first+"-"+last))
		}
		return all[0], all
	}
	e.SourceAddressPrefix, e.SourceAddressPrefixes = addresses(r.Sources)
	e.DestinationAddressPrefix, e.DestinationAddressPrefixes = addresses(r.Destinations)
	e.SourcePortRange, e.SourcePortRanges = ports(r.SourcePorts)
	e.DestinationPortRange, e.DestinationPortRanges = ports(r.DestinationPorts)
	return e
}

func texts(prefixes []netip.Prefix) []*string {
	var all []*string
	for _, p := range prefixes {
		all = append(all, new(p.String()))
	}
	return all
}

// ruleName returns a rule's name as the provider tells it of what decides: with whose rule it is.
func ruleName(r vnet.SecurityRule) string {
	if r.Priority > vnet.MaxSecurityPriority {
		return "defaultSecurityRules/" + r.Name
	}
	return "securityRules/" + r.Name
}

// effectiveRows returns the rules of all groups as rows of az's table. The first of a group names it.
func effectiveRows(result object) []any {
	var rows []any
	for _, g := range list(result, "value") {
		association, _ := g["association"].(object)
		names := object{"group": lastOf(g["networkSecurityGroup"]), "nic": cmp.Or(lastOf(association["networkInterface"]), "-"),
			"subnet": cmp.Or(lastOf(association["subnet"]), "-")}
		for _, r := range list(g, "effectiveSecurityRules") {
			for k, v := range r {
				names[k] = v
			}
			rows, names = append(rows, names), object{}
		}
	}
	return rows
}

// lastOf returns the name in the id of a reference, "" for none.
func lastOf(reference any) string {
	id := field(reference, "id")
	return id[strings.LastIndexByte(id, '/')+1:]
}
