package cluster

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Bounds of a security rule's priority, and the most rules of a group (Azure's limits).
const (
	minPriority      = 100
	maxPriority      = 4096
	maxSecurityRules = 1000
)

var ruleName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,78}[A-Za-z0-9_])?$`)

// securityGroups checks the groups, and that subnets and VMs name some of them.
func (v *validator) securityGroups() {
	names := map[string]string{}
	var known []string
	for i, g := range v.c.Spec.Azure.NetworkSecurityGroups {
		at := fmt.Sprintf("spec.azure.networkSecurityGroups[%d]", i)
		v.azureName(at+".name", g.Name, names)
		known = append(known, g.Name)
		v.securityGroup(at, g)
	}
	check := func(path, name string) {
		if name != "" && name != v.c.NodeSecurityGroup() && !slices.Contains(known, name) {
			v.errs.add(path, suggestName(name, known, "add it to spec.azure.networkSecurityGroups"), "no network security group %q", name)
		}
	}
	for _, s := range v.c.subnets() {
		check(s.path+".networkSecurityGroup", s.NetworkSecurityGroup)
	}
	for i, vm := range v.c.Spec.Azure.VMs {
		check(fmt.Sprintf("spec.azure.vms[%d].networkSecurityGroup", i), vm.NetworkSecurityGroup)
	}
}

func (v *validator) securityGroup(at string, g SecurityGroup) {
	if n := len(g.Rules); n > maxSecurityRules {
		v.errs.add(at+".rules", "use lists of prefixes and ports", "%d rules, and a group has at most %d", n, maxSecurityRules)
	}
	names, priorities := map[string]string{}, map[string]int{}
	for i, r := range g.Rules {
		rule := fmt.Sprintf("%s.rules[%d]", at, i)
		v.name(rule+".name", r.Name, ruleName, "1 to 80 letters, digits, -, _ and ., a letter or digit first")
		v.unique(rule+".name", strings.ToLower(r.Name), names)
		v.checkRange(rule+".priority", r.Priority, minPriority, maxPriority)
		key := fmt.Sprintf("%s %d", r.Direction, r.Priority)
		if first, taken := priorities[key]; taken {
			v.errs.add(rule+".priority", "write another number", "%d is rules[%d]'s in this direction", r.Priority, first)
		} else {
			priorities[key] = i
		}
		choice(v, rule+".direction", r.Direction, DirectionInbound, DirectionOutbound)
		choice(v, rule+".access", r.Access, AccessAllow, AccessDeny)
		choice(v, rule+".protocol", r.Protocol, ProtocolTCP, ProtocolUDP, ProtocolICMP, ProtocolAny)
		if r.Protocol == ProtocolICMP && len(r.SourcePortRanges)+len(r.DestinationPortRanges) > 0 {
			v.errs.add(rule+".protocol", "leave the port ranges out, or write Tcp, Udp or *", "Icmp has no ports")
		}
		v.addressPrefixes(rule+".sourceAddressPrefixes", r.SourceAddressPrefixes)
		v.addressPrefixes(rule+".destinationAddressPrefixes", r.DestinationAddressPrefixes)
		v.portRanges(rule+".sourcePortRanges", r.SourcePortRanges)
		v.portRanges(rule+".destinationPortRanges", r.DestinationPortRanges)
	}
}

func (v *validator) addressPrefixes(path string, list []string) {
	words := []string{TagVirtualNetwork, TagInternet, TagAzureLoadBalancer, AnyAddress}
	for i, s := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		if slices.Contains(words, s) {
			if len(list) > 1 {
				v.errs.add(at, "write it alone, and a rule of its own for the others", "%q stands beside others", s)
			}
			continue
		}
		if a, err := netip.ParseAddr(s); err == nil && a.Is4() {
			continue
		}
		p, err := netip.ParsePrefix(s)
		switch {
		case err != nil:
			v.errs.add(at, suggest(s, words, "write a range such as 10.13.0.0/16, or one of "),
				"%q is no address, range or service tag that the lab has", s)
		default:
			v.prefix(at, p, 0, 32)
		}
	}
}

func (v *validator) portRanges(path string, list []string) {
	for i, s := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		if s == "*" {
			if len(list) > 1 {
				v.errs.add(at, "write it alone, or leave it out", "* stands beside others")
			}
			continue
		}
		first, last, isRange := strings.Cut(s, "-")
		if !isRange {
			last = first
		}
		a, err := strconv.ParseUint(first, 10, 16)
		b, err2 := strconv.ParseUint(last, 10, 16)
		if err != nil || err2 != nil || b < a {
			v.errs.add(at, `write a port such as "80", or a range such as "8000-8999"`, "invalid port or port range %q", s)
		}
	}
}
