package az

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/azure/aci"
)

// A table is az's own for a command: its columns, and the rows where the result is none itself.
type table struct {
	rows    func(object) []any
	columns []column
}

// column is one of a table: its header, and the value of a resource.
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

// plainColumns show fields under their own names, with a capital.
func plainColumns(names ...string) []column {
	var all []column
	for _, n := range names {
		all = append(all, plainColumn(strings.ToUpper(n[:1])+n[1:], n))
	}
	return all
}

// fixedColumn shows the same of every resource: what no lab has.
func fixedColumn(header, value string) column {
	return column{header, func(object) string { return value }}
}

// wordsColumn shows a value, or several with spaces between them from the plural field: that of range is ranges, of prefix prefixes.
func wordsColumn(header, name string) column {
	return column{header, func(o object) string {
		if v, ok := o[name].(string); ok {
			return v
		}
		for _, field := range []string{name, name + "s", name + "es"} {
			if list, ok := o[field].([]any); ok {
				return joined(list, " ")
			}
		}
		return ""
	}}
}

func joined(list []any, between string) string {
	var words []string
	for _, v := range list {
		words = append(words, plain(v))
	}
	return strings.Join(words, between)
}

// The tables of azure-cli: acs/_format.py, network/_format.py and network/commands.py, vm/commands.py, container/_format.py. The columns of
// container groups are in the order of the Part 5 article.
var (
	clusterTable = table{columns: plainColumns("name", "location", "resourceGroup", "kubernetesVersion", "currentKubernetesVersion",
		"provisioningState", "fqdn")}
	poolTable = table{columns: slices.Concat(plainColumns("name", "osType"), []column{plainColumn("KubernetesVersion", "orchestratorVersion")},
		plainColumns("vmSize", "osDiskSizeGB", "count", "maxPods", "provisioningState", "mode"))}
	vnetTable = table{columns: append(plainColumns("name", "resourceGroup", "location"),
		column{"NumSubnets", func(o object) string { subnets, _ := o["subnets"].([]any); return fmt.Sprint(len(subnets)) }},
		column{"Prefixes", addressPrefixes}, fixedColumn("DnsServers", ""), fixedColumn("DDOSProtection", "False"),
		fixedColumn("VMProtection", "False"),
	)}
	publicIPTable = table{columns: slices.Concat(plainColumns("name", "resourceGroup", "location"), []column{
		fixedColumn("Zones", ""), plainColumn("Address", "ipAddress"), plainColumn("AddressVersion", "publicIpAddressVersion"),
		plainColumn("AllocationMethod", "publicIpAllocationMethod"),
	}, plainColumns("idleTimeoutInMinutes", "provisioningState"))}
	vmTable   = table{columns: append(plainColumns("name", "resourceGroup", "location"), fixedColumn("Zones", ""))}
	ruleTable = table{columns: slices.Concat(plainColumns("name", "resourceGroup", "priority"), []column{
		wordsColumn("SourcePortRanges", "sourcePortRange"), wordsColumn("SourceAddressPrefixes", "sourceAddressPrefix"),
		fixedColumn("SourceASG", "None"),
	}, plainColumns("access", "protocol", "direction"), []column{
		wordsColumn("DestinationPortRanges", "destinationPortRange"), wordsColumn("DestinationAddressPrefixes", "destinationAddressPrefix"),
		fixedColumn("DestinationASG", "None"),
	})}
	routeTable = table{rows: func(o object) []any { rows, _ := o["value"].([]any); return rows }, columns: append(plainColumns("source", "state"), wordsColumn("Address Prefix", "addressPrefix"),
		plainColumn("Next Hop Type", "nextHopType"), wordsColumn("Next Hop IP", "nextHopIpAddress"))}
	effectiveGroupTable = table{rows: effectiveRows, columns: append([]column{plainColumn("NIC", "nic"), plainColumn("Subnet", "subnet"),
		plainColumn("NSG", "group"), plainColumn("Rule Name", "name")}, plainColumns("protocol", "direction", "access")...)}
	groupTable = table{columns: slices.Concat(plainColumns("name", "resourceGroup"), []column{
		{"Status", groupStatus}, {"Image", groupImages}, {"CPU/Memory", groupSize},
	}, plainColumns("osType", "location"), []column{
		{"IP:ports", groupPorts}, {"Network", func(o object) string { return field(o["ipAddress"], "type") }},
	})}
)

func addressPrefixes(o object) string {
	space, _ := o["addressSpace"].(object)
	list, _ := space["addressPrefixes"].([]any)
	return joined(list, ", ")
}

// groupStatus returns how a container group is where that is known: lists do not have it.
func groupStatus(g object) string {
	if state := field(g["instanceView"], "state"); state != "" {
		return state
	}
	return field(g, "provisioningState")
}

func groupImages(g object) string {
	var names []string
	for _, c := range list(g, "containers") {
		if name := field(c, "image"); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// groupSize returns what a group's containers ask for together.
func groupSize(g object) string {
	var cpu, memory float64
	for _, c := range list(g, "containers") {
		r, _ := c["resources"].(object)
		requests, _ := r["requests"].(object)
		cores, _ := requests["cpu"].(float64)
		gigabytes, _ := requests["memoryInGb"].(float64)
		cpu, memory = cpu+cores, memory+gigabytes
	}
	return fmt.Sprintf("%s core/%s gb", pythonFloat(cpu), pythonFloat(memory))
}

// groupPorts returns a group's address with its ports, those of the group and for a private address those of its containers once more, as
// az has it.
func groupPorts(g object) string {
	ip, ok := g["ipAddress"].(object)
	if !ok {
		return ""
	}
	all := list(ip, "ports")
	if field(ip, "type") == aci.Private {
		for _, c := range list(g, "containers") {
			all = append(all, list(c, "ports")...)
		}
	}
	var ports []string
	for _, p := range all {
		ports = append(ports, plain(p["port"]))
	}
	return field(ip, "ip") + ":" + strings.Join(ports, ",")
}

// pythonFloat returns a number as Python's str gives a float: with a decimal point.
func pythonFloat(f float64) string {
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// set lays a result out.
func (t *table) set(result any) string {
	items, ok := result.([]any)
	if !ok {
		items = []any{result}
	}
	if t.rows != nil {
		o, _ := result.(object)
		items = t.rows(o)
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
