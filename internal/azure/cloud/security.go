package cloud

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/cloud-provider/service/helpers"

	"packetwalk.dev/internal/azure/vnet"
)

// Annotations that say from where a Service's load balancer may be reached (cloud-provider-azure, pkg/consts).
const (
	annotationAllowedRanges = "service.beta.kubernetes.io/azure-allowed-ip-ranges"
	annotationAllowedTags   = "service.beta.kubernetes.io/azure-allowed-service-tags"
	annotationDenyOthers    = "service.beta.kubernetes.io/azure-deny-all-except-load-balancer-source-ranges"
)

// firstPriority is the first priority that Services' rules get in the nodes' security group (cloud-provider-azure, pkg/consts).
const firstPriority = 500

const everyone = "0.0.0.0/0"

// addSecurity adds what the nodes' security group must let through, as cloud-provider-azure did up to version 1.28: a rule for each port
// and source. (Later versions share rules among Services.) The front end's address is not known yet.
func (w *service) addSecurity(s *v1.Service) error {
	sources, open, err := allowedSources(s)
	if err != nil {
		return err
	}
	deny := !open && strings.EqualFold(s.Annotations[annotationDenyOthers], "true")
	var denied []vnet.SecurityRule
	for _, p := range s.Spec.Ports {
		for _, source := range sources {
			w.security = append(w.security, w.securityRule(p, vnet.AccessAllow, source, strings.ReplaceAll(source, "/", "_")))
		}
		if deny {
			denied = append(denied, w.securityRule(p, vnet.AccessDeny, vnet.Any, "deny_all"))
		}
	}
	w.security = append(w.security, denied...)
	return nil
}

func (w *service) securityRule(p v1.ServicePort, access, source, suffix string) vnet.SecurityRule {
	protocol := vnet.ProtocolTCP
	if p.Protocol == v1.ProtocolUDP {
		protocol = vnet.ProtocolUDP
	}
	return vnet.SecurityRule{
		Name: fmt.Sprintf("%s-%s-%d-%s", w.name, p.Protocol, p.Port, suffix), Direction: vnet.DirectionInbound, Access: access,
		Protocol: protocol,
		Sources:  []string{source}, DestinationPorts: []vnet.PortRange{{First: uint16(p.Port), Last: uint16(p.Port)}},
	}
}

// allowedSources returns the prefixes and tags that a Service's clients may come from; open says that it is all of the internet.
func allowedSources(s *v1.Service) (sources []string, open bool, err error) {
	sets, err := helpers.GetLoadBalancerSourceRanges(s)
	if err != nil {
		return nil, false, err
	}
	ranges := slices.Sorted(maps.Keys(sets))
	if own := list(s.Annotations[annotationAllowedRanges]); len(own) > 0 {
		if len(s.Spec.LoadBalancerSourceRanges) > 0 {
			return nil, false, fmt.Errorf("annotation %s: spec.loadBalancerSourceRanges is there too; write one of them", annotationAllowedRanges)
		}
		for _, r := range own {
			p, err := netip.ParsePrefix(r)
			if err != nil || !p.Addr().Is4() || p != p.Masked() {
				return nil, false, fmt.Errorf("annotation %s: %q is no IPv4 range such as 198.51.100.0/24", annotationAllowedRanges, r)
			}
		}
		ranges = own
	}
	tags := list(s.Annotations[annotationAllowedTags])
	for _, t := range tags {
		if !vnet.IsServiceTag(t) {
			return nil, false, fmt.Errorf("annotation %s: the lab has the service tags %s, %s and %s, not %q", annotationAllowedTags,
				vnet.TagInternet, vnet.TagVirtualNetwork, vnet.TagAzureLoadBalancer, t)
		}
	}
	if slices.Contains(ranges, everyone) {
		if len(tags) == 0 {
			return []string{vnet.TagInternet}, true, nil
		}
		ranges = nil
	}
	return slices.Concat(ranges, tags), false, nil
}

// list reads words between commas.
func list(s string) []string {
	var all []string
	for w := range strings.SplitSeq(s, ",") {
		if w = strings.TrimSpace(w); w != "" {
			all = append(all, w)
		}
	}
	return all
}

// ensureSecurity makes the group have exactly the rules that the Service wants, for the address of its front end. Rules that are right stay
// where they are; a new one gets the next free priority.
func ensureSecurity(g *vnet.SecurityGroup, w service, address netip.Addr) error {
	want := map[string]vnet.SecurityRule{}
	for _, r := range w.security {
		r.Destinations = []string{address.String()}
		want[r.Name] = r
	}
	there := map[string]bool{}
	g.Rules = slices.DeleteFunc(g.Rules, func(r vnet.SecurityRule) bool {
		if !strings.HasPrefix(r.Name, w.name+"-") {
			return false
		}
		is := r
		is.Priority = 0
		there[r.Name] = reflect.DeepEqual(is, want[r.Name])
		return !there[r.Name]
	})
	for _, r := range w.security {
		if there[r.Name] {
			continue
		}
		there[r.Name] = true
		r = want[r.Name]
		for r.Priority = firstPriority; slices.ContainsFunc(g.Rules, func(o vnet.SecurityRule) bool { return o.Priority == r.Priority }); {
			r.Priority++
		}
		if r.Priority > vnet.MaxSecurityPriority {
			return fmt.Errorf("network security group %s: priorities %d to %d are used up", g.Name, firstPriority, vnet.MaxSecurityPriority)
		}
		g.Rules = append(g.Rules, r)
	}
	return nil
}
