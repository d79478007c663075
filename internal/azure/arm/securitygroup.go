package arm

import (
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"packetwalk.dev/internal/azure/vnet"
)

// groupID returns a network security group's id: the nodes' group has a name that starts with aks-, and is in the nodes' resource group.
func (b builder) groupID(name string, parts ...string) *string {
	return b.id(b.group("networkSecurityGroups", name), append([]string{"networkSecurityGroups", name}, parts...)...)
}

// groupRef refers to a network security group; nil for none.
func (b builder) groupRef(name string) *armnetwork.SecurityGroup {
	if name == "" {
		return nil
	}
	return &armnetwork.SecurityGroup{ID: b.groupID(name)}
}

func (b builder) securityGroup(g vnet.SecurityGroup) *armnetwork.SecurityGroup {
	p := &armnetwork.SecurityGroupPropertiesFormat{ProvisioningState: succeeded, SecurityRules: []*armnetwork.SecurityRule{}}
	for _, r := range g.Rules {
		p.SecurityRules = append(p.SecurityRules, b.securityRule(g.Name, "securityRules", r))
	}
	for _, r := range vnet.DefaultSecurityRules() {
		p.DefaultSecurityRules = append(p.DefaultSecurityRules, b.securityRule(g.Name, "defaultSecurityRules", r))
	}
	for _, nic := range b.n.NICs {
		if nic.SecurityGroup == g.Name {
			p.NetworkInterfaces = append(p.NetworkInterfaces,
				&armnetwork.Interface{ID: b.id(b.machineGroup(nic.Machine), "networkInterfaces", nic.Name)})
		}
	}
	for _, v := range b.n.VNets {
		for _, s := range v.Subnets {
			if s.SecurityGroup == g.Name {
				p.Subnets = append(p.Subnets, &armnetwork.Subnet{ID: b.subnetID(v.Name, s.Name)})
			}
		}
	}
	return &armnetwork.SecurityGroup{
		ID: b.groupID(g.Name), Name: new(g.Name), Type: new("Microsoft.Network/networkSecurityGroups"), Location: new(b.n.Location),
		Properties: p,
	}
}

// securityRule has one value in the singular field and several in the plural one, as the provider gives them.
func (b builder) securityRule(group, kind string, r vnet.SecurityRule) *armnetwork.SecurityRule {
	p := &armnetwork.SecurityRulePropertiesFormat{
		Priority: new(int32(r.Priority)), Direction: new(armnetwork.SecurityRuleDirection(r.Direction)),
		Access:   new(armnetwork.SecurityRuleAccess(r.Access)),
		Protocol: new(armnetwork.SecurityRuleProtocol(r.Protocol)), ProvisioningState: succeeded,
	}
	p.SourceAddressPrefix, p.SourceAddressPrefixes = oneOrMore(r.Sources)
	p.DestinationAddressPrefix, p.DestinationAddressPrefixes = oneOrMore(r.Destinations)
	p.SourcePortRange, p.SourcePortRanges = oneOrMore(portWords(r.SourcePorts))
	p.DestinationPortRange, p.DestinationPortRanges = oneOrMore(portWords(r.DestinationPorts))
	return &armnetwork.SecurityRule{
		ID: b.groupID(group, kind, r.Name), Name: new(r.Name), Type: new("Microsoft.Network/networkSecurityGroups/" + kind), Properties: p,
	}
}

func portWords(ranges []vnet.PortRange) []string {
	var words []string
	for _, r := range ranges {
		words = append(words, r.String())
	}
	return words
}

func oneOrMore(words []string) (one *string, more []*string) {
	more = []*string{}
	switch len(words) {
	case 0:
		return new(vnet.Any), more
	case 1:
		return new(words[0]), more
	}
	for _, w := range words {
		more = append(more, new(w))
	}
	return nil, more
}
