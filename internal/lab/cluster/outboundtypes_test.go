package cluster

import (
	"strings"
	"testing"
)

// egressFile returns a cluster.yaml of a type: the fields of spec, those of the nodes' subnet, and those of the firewall.
func egressFile(spec, subnet, vm string) string {
	return `spec:
  ` + spec + `
  nodePools: [{name: one, vnetSubnet: v/aks}]
  azure:
    natGateways: [{name: gw}]
    routeTables:
    - {name: empty}
    - {name: out, routes: [{name: d, prefix: 0.0.0.0/0, nextHopType: Internet}]}
    - {name: fw, routes: [{name: d, prefix: 0.0.0.0/0, nextHopType: VirtualAppliance, nextHopAddress: 10.14.1.4}]}
    vnets:
    - name: v
      addressPrefixes: [10.14.0.0/16]
      subnets:
      - {name: aks, prefix: 10.14.0.0/24` + subnet + `}
      - {name: vms, prefix: 10.14.1.0/24}
    vms: [{name: fw, subnet: v/vms, address: 10.14.1.4` + vm + `}]
`
}

func TestOutboundTypes(t *testing.T) {
	for _, c := range []struct{ name, spec, subnet, vm, want string }{
		{name: "default", spec: "outboundType: loadBalancer"},
		{name: "managed", spec: "outboundType: managedNATGateway"},
		{name: "managed, settings", spec: "outboundType: managedNATGateway\n  natGateway: {managedIPs: 16, idleTimeoutMinutes: 120}"},
		{name: "user assigned", spec: "outboundType: userAssignedNATGateway", subnet: ", natGateway: gw"},
		{name: "user-defined routing", spec: "outboundType: userDefinedRouting", subnet: ", routeTable: fw",
			vm: ", ipForwarding: true, firewall: {dnat: [{name: web, port: 80, address: 10.14.0.200}]}"},
		{name: "none", spec: "outboundType: none", subnet: ", defaultOutboundAccess: true"},
		{name: "block", spec: "outboundType: block"},
		{name: "a subnet's gateway beside the load balancer", spec: "loadBalancer: {sku: standard}", subnet: ", natGateway: gw"},
		{name: "unknown", spec: "outboundType: natGateway", want: "unknown value"},
		{name: "Basic", spec: "outboundType: none\n  loadBalancer: {sku: basic}", want: "needs a Standard load balancer"},
		{name: "Basic behind a gateway", spec: "loadBalancer: {sku: basic}", subnet: ", natGateway: gw",
			want: "members of a Basic load balancer cannot be behind a NAT gateway"},
		{name: "outbound rule", spec: "outboundType: none\n  loadBalancer: {outbound: {managedIPs: 2}}", want: "there is no outbound rule"},
		{name: "profile without gateway", spec: "natGateway: {managedIPs: 2}", want: "AKS makes a NAT gateway only with that type"},
		{name: "too many addresses", spec: "outboundType: managedNATGateway\n  natGateway: {managedIPs: 17}", want: "write a number from 1 to 16"},
		{name: "two gateways", spec: "outboundType: managedNATGateway", subnet: ", natGateway: gw", want: "AKS makes another one"},
		{name: "no gateway", spec: "outboundType: userAssignedNATGateway", want: "subnet v/aks has no NAT gateway"},
		{name: "unknown gateway", spec: "outboundType: userAssignedNATGateway", subnet: ", natGateway: gv", want: "write gw"},
		{name: "no route table", spec: "outboundType: userDefinedRouting", want: "ExistingRouteTableNotAssociatedWithSubnet"},
		{name: "no default route", spec: "outboundType: userDefinedRouting", subnet: ", routeTable: empty",
			want: "RouteTableMissingDefaultRouteError"},
		{name: "route to the internet", spec: "outboundType: userDefinedRouting", subnet: ", routeTable: out", want: "RouteTableInvalidNextHop"},
		{name: "a firewall that does not forward", spec: "outboundType: none", vm: ", firewall: {}", want: "a firewall forwards packets"},
		{name: "DNAT without an address", spec: "outboundType: none", vm: ", ipForwarding: true, firewall: {dnat: [{name: a, port: 80}]}",
			want: "firewall.dnat[0].address: missing"},
		{name: "DNAT twice", spec: "outboundType: none", vm: ", ipForwarding: true, firewall: {dnat: [{name: a, port: 80, address: 10.14.0.200}, " +
			"{name: b, port: 80, address: 10.14.0.201}]}", want: "the same protocol and port"},
	} {
		t.Run(c.name, func(t *testing.T) {
			parsed, errs := Parse(nil, []byte(egressFile(c.spec, c.subnet, c.vm)))
			switch {
			case c.want == "" && len(errs) > 0:
				t.Fatal(errs)
			case c.want != "" && !strings.Contains(errs.Error(), c.want):
				t.Fatalf("%v, want %q", errs, c.want)
			case c.want == "":
				_, aks, _ := parsed.FindSubnet("v/aks")
				_, vms, _ := parsed.FindSubnet("v/vms")
				isDefault := parsed.Spec.OutboundType == OutboundLoadBalancer
				if !parsed.HasDefaultOutbound(aks) && isDefault || parsed.HasDefaultOutbound(vms) != isDefault {
					t.Errorf("default outbound access: nodes %t, VMs %t", parsed.HasDefaultOutbound(aks), parsed.HasDefaultOutbound(vms))
				}
				if !isDefault && parsed.Spec.LoadBalancer.SKU != SKUStandard {
					t.Errorf("SKU %s", parsed.Spec.LoadBalancer.SKU)
				}
			}
		})
	}
}
