package az

import (
	"fmt"
	"strings"
)

// column is one of a table that is az's own for a command: its header, and the value of a resource.
type column struct {
	header string
	value  func(object) string
}

// plainColumn shows a field, nothing where there is none.
func plainColumn(header, name string) column {
	return column{header, func(o object) string {
		if v := o[name]; v != nil && isPlain(v) {
			return plain(v)
		}
		return ""
	}}
}

// fixedColumn shows the same of every resource: what no lab has.
func fixedColumn(header, value string) column {
	return column{header, func(object) string { return value }}
}

// The tables of azure-cli: acs/_format.py, network/_format.py and network/commands.py, vm/commands.py.
var (
	clusterColumns = []column{
		plainColumn("Name", "name"), plainColumn("Location", "location"), plainColumn("ResourceGroup", "resourceGroup"),
		plainColumn("KubernetesVersion", "kubernetesVersion"),
		plainColumn("CurrentKubernetesVersion", "currentKubernetesVersion"), plainColumn("ProvisioningState", "provisioningState"),
		plainColumn("Fqdn", "fqdn"),
	}
	poolColumns = []column{
		plainColumn("Name", "name"), plainColumn("OsType", "osType"), plainColumn("KubernetesVersion", "orchestratorVersion"),
		plainColumn("VmSize", "vmSize"),
		plainColumn("OsDiskSizeGB", "osDiskSizeGB"), plainColumn("Count", "count"), plainColumn("MaxPods", "maxPods"),
		plainColumn("ProvisioningState", "provisioningState"), plainColumn("Mode", "mode"),
	}
	vnetColumns = []column{
		plainColumn("Name", "name"), plainColumn("ResourceGroup", "resourceGroup"), plainColumn("Location", "location"),
		{"NumSubnets", func(o object) string { subnets, _ := o["subnets"].([]any); return fmt.Sprint(len(subnets)) }},
		{"Prefixes", addressPrefixes}, fixedColumn("DnsServers", ""), fixedColumn("DDOSProtection", "False"),
		fixedColumn("VMProtection", "False"),
	}
	publicIPColumns = []column{
		plainColumn("Name", "name"), plainColumn("ResourceGroup", "resourceGroup"), plainColumn("Location", "location"), fixedColumn("Zones", ""),
		plainColumn("Address", "ipAddress"),
		plainColumn("AddressVersion", "publicIpAddressVersion"), plainColumn("AllocationMethod", "publicIpAllocationMethod"),
		plainColumn("IdleTimeoutInMinutes", "idleTimeoutInMinutes"),
		plainColumn("ProvisioningState", "provisioningState"),
	}
	vmColumns = []column{plainColumn("Name", "name"), plainColumn("ResourceGroup", "resourceGroup"), plainColumn("Location", "location"),
		fixedColumn("Zones", "")}
)

func addressPrefixes(o object) string {
	space, _ := o["addressSpace"].(object)
	list, _ := space["addressPrefixes"].([]any)
	var all []string
	for _, p := range list {
		all = append(all, plain(p))
	}
	return strings.Join(all, ", ")
}

// columnTable is a result with az's own columns.
type columnTable struct {
	result  any
	columns []column
}

func (t columnTable) value() any { return t.result }

func (t columnTable) table() string {
	items, ok := t.result.([]any)
	if !ok {
		items = []any{t.result}
	}
	if len(items) == 0 {
		return ""
	}
	var headers []string
	for _, c := range t.columns {
		headers = append(headers, c.header)
	}
	var rows []map[string]string
	for _, item := range items {
		o, _ := item.(object)
		row := map[string]string{}
		for _, c := range t.columns {
			row[c.header] = c.value(o)
		}
		rows = append(rows, row)
	}
	return layOut(headers, rows)
}
