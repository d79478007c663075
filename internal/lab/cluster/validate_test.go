package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// manyFields is a cluster.yaml whose lines are each replaced by what is wrong.
var manyFields = strings.Split(`spec:
  network:
    mode: bridge
    serviceCIDR: 10.0.0.0/16
    dnsServiceIP: 10.0.0.10
    nonMasqueradeCIDRs: [10.0.0.0/8]
  loadBalancer:
    sku: standard
    outbound: {managedIPs: 2, ports: 1024, idleTimeoutMinutes: 30}
  virtualNode: {enabled: true, subnet: v/aci}
  nodePools:
  - {name: one, count: 1, maxPods: 30}
  - {name: two, count: 1, maxPods: 30}
  azure:
    vnets:
    - name: v
      addressPrefixes: [10.13.0.0/16]
      peerings: [w]
      subnets:
      - {name: aks, prefix: 10.13.76.0/24}
      - {name: vms, prefix: 10.13.1.0/24, routeTable: fw, networkSecurityGroup: web}
      - {name: aci, prefix: 10.13.100.0/24}
    - name: w
      addressPrefixes: [10.14.0.0/16]
      peerings: [v]
      subnets:
      - {name: s, prefix: 10.14.0.0/24}
    routeTables:
    - name: fw
      routes:
      - {name: all, prefix: 0.0.0.0/0, nextHopType: VirtualAppliance, nextHopAddress: 10.13.1.4}
    networkSecurityGroups:
    - name: web
      rules:
      - {name: a, priority: 100, direction: Inbound, access: Allow, destinationPortRanges: ["80"]}
    vms:
    - {name: fw, subnet: v/vms, address: 10.13.1.4, ipForwarding: true}
    - {name: other, subnet: v/vms, address: 10.13.1.5}
    - {name: near, subnet: v/aks, address: 10.13.76.200}
  internet:
    hosts:
    - {name: client, address: 198.51.100.10}
`, "\n")

// mistakes are lines of that file, and wrong text for each.
var mistakes = []struct{ line, wrong string }{
	{"    serviceCIDR: 10.0.0.0/16", "    serviceCIDR: 10.0.0.1/16"},
	{"    serviceCIDR: 10.0.0.0/16", "    serviceCIDR: 10.13.0.0/16"},
	{"    dnsServiceIP: 10.0.0.10", "    dnsServiceIP: 10.9.0.10"},
	{"    nonMasqueradeCIDRs: [10.0.0.0/8]", "    nonMasqueradeCIDRs: [10.0.0.1/8]"},
	{"    sku: standard", "    sku: standrad"},
	{"    outbound: {managedIPs: 2, ports: 1024, idleTimeoutMinutes: 30}", "    outbound: {managedIPs: 20, ports: 1024, idleTimeoutMinutes: 30}"},
	{"    outbound: {managedIPs: 2, ports: 1024, idleTimeoutMinutes: 30}", "    outbound: {managedIPs: 2, ports: 1023, idleTimeoutMinutes: 1}"},
	{"  virtualNode: {enabled: true, subnet: v/aci}", "  virtualNode: {enabled: true, subnet: v/none}"},
	{"  virtualNode: {enabled: true, subnet: v/aci}", "  virtualNode: {enabled: true, subnet: v/vms}"},
	{"  - {name: one, count: 1, maxPods: 30}", "  - {name: one, count: 0, maxPods: 30}"},
	{"  - {name: one, count: 1, maxPods: 30}", "  - {name: One, count: 1, maxPods: 3}"},
	{"  - {name: two, count: 1, maxPods: 30}", "  - {name: two, count: 9, maxPods: 30}"},
	{"  - {name: two, count: 1, maxPods: 30}", "  - {name: two, count: 1, maxPods: 30, vnetSubnet: v/nodes}"},
	{"  - {name: two, count: 1, maxPods: 30}", "  - {name: two, count: 1, maxPods: 30, vnetSubnet: w/s}"},
	{"    - name: w", "    - name: W!"},
	{"      addressPrefixes: [10.13.0.0/16]", "      addressPrefixes: [10.13.0.1/16]"},
	{"      addressPrefixes: [10.14.0.0/16]", "      addressPrefixes: [10.13.128.0/17]"},
	{"      peerings: [w]", "      peerings: [x]"},
	{"      - {name: aks, prefix: 10.13.76.0/24}", "      - {name: aks, prefix: 10.13.76.1/24}"},
	{"      - {name: vms, prefix: 10.13.1.0/24, routeTable: fw, networkSecurityGroup: web}",
		"      - {name: vms, prefix: 10.13.1.0/24, routeTable: wf, networkSecurityGroup: wbe}"},
	{"      - {name: vms, prefix: 10.13.1.0/24, routeTable: fw, networkSecurityGroup: web}",
		"      - {name: vms, prefix: 10.13.1.2/24, routeTable: fw, networkSecurityGroup: web}"},
	{"      - {name: aci, prefix: 10.13.100.0/24}", "      - {name: aci, prefix: 10.13.76.0/25}"},
	{"      - {name: aci, prefix: 10.13.100.0/24}", "      - {name: aci, prefix: 10.15.1.1/24}"},
	{"      - {name: s, prefix: 10.14.0.0/24}", "      - {prefix: 10.14.0.0/24}"},
	{"      - {name: all, prefix: 0.0.0.0/0, nextHopType: VirtualAppliance, nextHopAddress: 10.13.1.4}",
		"      - {name: all, prefix: 0.0.0.0/0, nextHopType: VirtualAppliance}"},
	{"      - {name: a, priority: 100, direction: Inbound, access: Allow, destinationPortRanges: [\"80\"]}",
		"      - {name: a, priority: 99, direction: in, access: Allow, destinationPortRanges: [\"80-\"]}"},
	{"    - {name: fw, subnet: v/vms, address: 10.13.1.4, ipForwarding: true}", "    - {name: fw, subnet: v/vms, address: 10.13.1.3, ipForwarding: true}"},
	{"    - {name: other, subnet: v/vms, address: 10.13.1.5}", "    - {name: fw, subnet: v/vms, address: 10.13.1.9}"},
	{"    - {name: other, subnet: v/vms, address: 10.13.1.5}", "    - {name: other, subnet: v/mvs, address: 10.13.1.5, app: nginix}"},
	{"    - {name: near, subnet: v/aks, address: 10.13.76.200}", "    - {name: near, subnet: v/aks, address: 10.13.76.20}"},
	{"    - {name: client, address: 198.51.100.10}", "    - {name: client, address: 203.0.113.10}"},
	{"    - {name: client, address: 198.51.100.10}", "    - {name: near}"},
}

// errorsOf returns the errors of manyFields when some of its lines are others, without their order; lines are numbers of the file.
func errorsOf(t *testing.T, changes map[string]string) (paths []string, all Errors) {
	t.Helper()
	lines := slices.Clone(manyFields)
	for from, to := range changes {
		at := slices.Index(lines, from)
		if at < 0 {
			t.Fatalf("no line %q", from)
		}
		lines[at] = to
	}
	_, all = Parse(nil, []byte(strings.Join(lines, "\n")), testApps...)
	for _, e := range all {
		paths = append(paths, e.Path)
		if _, missing, ok := strings.Cut(e.Message, "no "); ok {
			_, name, _ := strings.Cut(missing, " \"")
			name, _, _ = strings.Cut(name, "\"")
			for _, other := range all {
				if name != "" && strings.HasSuffix(other.Remedy, "write "+name) {
					t.Errorf("a remedy names what is missing: %v; %v", e, other)
				}
			}
		}
	}
	return paths, all
}

// TestAllAtOnce: what is wrong by itself is said whatever else is wrong, so that nothing comes up only when the rest is right.
func TestAllAtOnce(t *testing.T) {
	if _, errs := errorsOf(t, nil); len(errs) > 0 {
		t.Fatal(errs)
	}
	alone := make([][]string, len(mistakes))
	for i, m := range mistakes {
		if alone[i], _ = errorsOf(t, map[string]string{m.line: m.wrong}); len(alone[i]) == 0 {
			t.Errorf("nothing is wrong with %s", m.wrong)
		}
	}
	for i, a := range mistakes {
		for j, b := range mistakes[:i] {
			if a.line == b.line {
				continue
			}
			t.Run(fmt.Sprintf("%d and %d", j, i), func(t *testing.T) {
				both, errs := errorsOf(t, map[string]string{a.line: a.wrong, b.line: b.wrong})
				for _, path := range slices.Concat(alone[i], alone[j]) {
					if !slices.Contains(both, path) {
						t.Errorf("%s is not said of\n%s\n%s\nonly\n%v", path, b.wrong, a.wrong, errs)
					}
				}
			})
		}
	}
}
