package az

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/azure/arm"
)

// A command is one that az has.
type command struct {
	words string // network lb rule list
	usage string // the same with its flags; empty where another one's has it
	flags func(*options) flags
	needs []string // flags that must be there, as messages name them: --resource-group/-g
	table *table   // az's own, where it has one
	run   func(Lab, options, io.Writer) (any, error)
}

const (
	needsGroup = "--resource-group/-g"
	needsName  = "--name/-n"
)

// commands returns all there are.
func commands() []command {
	var all []command
	for _, t := range listings {
		all = append(all, t.list(), t.show())
	}
	return append(all,
		scaling("aks", "[-g GROUP] [-n CLUSTER] [--nodepool-name POOL] -c COUNT [--no-wait]; -n takes a pool's name, too"),
		scaling("aks nodepool", "[-g GROUP] [--cluster-name CLUSTER] -n POOL -c COUNT [--no-wait]"),
		addPool,
		deletePool,
		command{
			words: "container logs", usage: "container logs -g GROUP -n NAME [--container-name CONTAINER] [--follow]",
			needs: []string{needsGroup, needsName}, run: containerLogs,
			flags: func(o *options) flags {
				f := common(o)
				f["--container-name"], f["--follow"] = &o.container, &o.follow
				return f
			},
		},
		command{
			words: effectiveRoutesWords, usage: effectiveRoutesWords + " -g GROUP -n NAME", flags: common, table: &routeTable,
			needs: []string{needsGroup, needsName}, run: effectiveRoutes,
		},
		command{
			words: effectiveGroupsWords, usage: effectiveGroupsWords + " -g GROUP -n NAME", flags: common, table: &effectiveGroupTable,
			needs: []string{needsGroup, needsName}, run: effectiveGroups,
		},
		command{
			words: ipFlowWords, run: testIPFlow, needs: []string{"--direction", "--local", "--protocol", "--remote", "--vm"},
			usage: ipFlowWords +
				" [-g GROUP] --vm NAME [--nic NAME] --direction Inbound|Outbound --protocol TCP|UDP --local ADDRESS:PORT --remote ADDRESS:PORT",
			flags: func(o *options) flags {
				f := common(o)
				f["--vm"], f["--nic"], f["--direction"], f["--protocol"] = &o.vm, &o.nic, &o.direction, &o.protocol
				f["--local"], f["--remote"] = &o.local, &o.remote
				return f
			},
		})
}

// A listing holds what "list" and "show" print.
type listing struct {
	words  string // network lb rule
	kind   string // Microsoft.Network/loadBalancers, for messages
	parent string // the flag that names the resource that holds them, without its dashes; empty for a resource
	field  string // of that resource, that has them
	all    func(Lab) ([]any, error)
	held   func(Lab) ([]any, error)        // what the resource holds, in place of field
	one    func(Lab, options) (any, error) // where "show" shows more than "list"
	table  *table                          // az's own, where it has one
	ofList bool                            // that table is of "list" alone
}

var (
	allLBs    = func(l Lab) ([]any, error) { return allOf(l, "loadBalancers") }
	allNICs   = func(l Lab) ([]any, error) { return allOf(l, "networkInterfaces") }
	allIPs    = func(l Lab) ([]any, error) { return allOf(l, "publicIPAddresses") }
	allVNets  = func(l Lab) ([]any, error) { return allOf(l, "virtualNetworks") }
	allTables = func(l Lab) ([]any, error) { return allOf(l, "routeTables") }
	allGroups = func(l Lab) ([]any, error) { return allOf(l, "networkSecurityGroups") }
	allNATs   = func(l Lab) ([]any, error) { return allOf(l, "natGateways") }
)

const (
	kindLB    = "Microsoft.Network/loadBalancers"
	kindNIC   = "Microsoft.Network/networkInterfaces"
	kindVNet  = "Microsoft.Network/virtualNetworks"
	kindTable = "Microsoft.Network/routeTables"
	kindGroup = "Microsoft.Network/networkSecurityGroups"
)

// nics has what effective routes and security groups are of.
var nics = listing{words: "network nic", kind: kindNIC, all: allNICs}

var (
	aksCluster = listing{words: "aks", kind: kindCluster, all: clusters, table: &clusterTable}
	aksPool    = listing{words: "aks nodepool", kind: kindCluster, parent: "cluster-name", all: clusters, held: agentPools, table: &poolTable}
)

var listings = []listing{
	{words: "network lb", kind: kindLB, all: allLBs},
	{words: "network lb rule", kind: kindLB, parent: "lb-name", field: "loadBalancingRules", all: allLBs},
	{words: "network lb probe", kind: kindLB, parent: "lb-name", field: "probes", all: allLBs},
	{words: "network lb address-pool", kind: kindLB, parent: "lb-name", field: "backendAddressPools", all: allLBs},
	{words: "network lb frontend-ip", kind: kindLB, parent: "lb-name", field: "frontendIpConfigurations", all: allLBs},
	{words: "network lb outbound-rule", kind: kindLB, parent: "lb-name", field: "outboundRules", all: allLBs},
	nics,
	{words: "network nic ip-config", kind: kindNIC, parent: "nic-name", field: "ipConfigurations", all: allNICs},
	{words: "network public-ip", kind: "Microsoft.Network/publicIPAddresses", all: allIPs, table: &publicIPTable},
	{words: "network nat gateway", kind: "Microsoft.Network/natGateways", all: allNATs},
	{words: "network vnet", kind: kindVNet, all: allVNets, table: &vnetTable, ofList: true},
	{words: "network vnet subnet", kind: kindVNet, parent: "vnet-name", field: "subnets", all: allVNets},
	{words: "network vnet peering", kind: kindVNet, parent: "vnet-name", field: "virtualNetworkPeerings", all: allVNets},
	{words: "network route-table", kind: kindTable, all: allTables},
	{words: "network route-table route", kind: kindTable, parent: "route-table-name", field: "routes", all: allTables},
	{words: "network nsg", kind: kindGroup, all: allGroups},
	{words: nsgRule, kind: kindGroup, parent: "nsg-name", field: "securityRules", all: allGroups, table: &ruleTable},
	aksCluster,
	aksPool,
	{words: "container", kind: aci.Type, all: allContainerGroups, one: containerGroup, table: &groupTable},
	{words: "vm", kind: "Microsoft.Compute/virtualMachines", all: machines, table: &vmTable},
}

// nsgRule alone has a list that knows --include-default.
const nsgRule = "network nsg rule"

// list returns the command "list". Only resources are listed without a group.
func (t listing) list() command {
	c := command{words: t.words + " list", flags: common, table: t.table}
	listed, shown := " [-g GROUP]", " -g GROUP"
	if t.parent != "" {
		listed = fmt.Sprintf(" -g GROUP --%s NAME", t.parent)
		shown = listed
		c.needs = []string{needsGroup, "--" + t.parent}
	}
	if t.words == nsgRule {
		listed += " [--include-default]"
		c.flags = func(o *options) flags {
			f := common(o)
			f["--include-default"] = &o.includeDefault
			return f
		}
	}
	c.usage = c.words + listed + " | show" + shown + " -n NAME"
	c.run = func(l Lab, o options, _ io.Writer) (any, error) {
		all, err := t.of(l, o)
		return append([]any{}, all...), err
	}
	return c
}

// show returns the command "show".
func (t listing) show() command {
	c := command{words: t.words + " show", flags: common, table: t.table, needs: []string{needsGroup, needsName}}
	if t.parent != "" {
		c.needs = []string{needsGroup, "--" + t.parent, needsName}
	}
	if t.ofList {
		c.table = nil
	}
	c.run = func(l Lab, o options, _ io.Writer) (any, error) { return t.named(l, o) }
	return c
}

// named returns the one that the options name.
func (t listing) named(l Lab, o options) (any, error) {
	all, err := t.of(l, o)
	if err != nil {
		return nil, err
	}
	found, err := t.find(all, o.name, o.group)
	if err == nil && t.one != nil {
		return t.one(l, o)
	}
	return found, err
}

// of returns what a resource group or a resource has.
func (t listing) of(l Lab, o options) ([]any, error) {
	all, err := t.all(l)
	if err != nil {
		return nil, err
	}
	if n := l.Network; o.group != "" {
		groups := arm.Groups(n)
		if !slices.ContainsFunc(groups, func(g string) bool { return strings.EqualFold(g, o.group) }) {
			return nil, notFound("(ResourceGroupNotFound) Resource group '%s' could not be found; there are '%s'", o.group,
				strings.Join(groups, "' and '"))
		}
		all = slices.DeleteFunc(all, func(r any) bool { return !strings.EqualFold(field(r, "resourceGroup"), o.group) })
	}
	if t.parent == "" {
		return all, nil
	}
	parent, err := t.find(all, o.parent, o.group)
	if err != nil {
		return nil, err
	}
	if t.held != nil {
		return t.held(l)
	}
	held, _ := parent.(object)[t.field].([]any)
	if o.includeDefault {
		more, _ := parent.(object)["defaultSecurityRules"].([]any)
		held = slices.Concat(held, more)
	}
	return held, nil
}

// find gives the one of a name; Azure's names know no case.
func (t listing) find(all []any, name, group string) (any, error) {
	var names []string
	for _, r := range all {
		if strings.EqualFold(field(r, "name"), name) {
			return r, nil
		}
		names = append(names, field(r, "name"))
	}
	there := "there is none"
	if len(names) > 0 {
		there = "there are " + strings.Join(names, ", ")
	}
	return nil, notFound("(ResourceNotFound) The Resource '%s/%s' under resource group '%s' was not found; %s", t.kind, name, group, there)
}
