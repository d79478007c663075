package az

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jmespath/go-jmespath"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab/cluster"
)

// Exit codes of Run, which are az's.
const (
	exitOK       = 0
	exitFailure  = 1
	exitUsage    = 2
	exitNotFound = 3
)

// Lab is what the commands show: plain data.
type Lab struct {
	Network vnet.Network
	Cluster *cluster.Cluster // with its defaults; nil where only the network is known

	KubernetesVersion string // of the control plane and the nodes: 1.35.4
	Changing          bool   // the cluster is being changed
	// ContainerGroups are those of Azure Container Instances, with their views; ContainerLogs copies the log of a container of one, with
	// follow until it ends.
	ContainerGroups []aci.ContainerGroup
	ContainerLogs   func(group, container string, follow bool, w io.Writer) error
	// Scale changes the number of a pool's nodes and gives the lab as it is then; without wait it returns when that has begun. It may be nil.
	Scale func(pool string, count int, wait bool) (Lab, error)
}

// Run runs an az command, given without the word az, on a lab: "network lb rule list -g GROUP --lb-name kubernetes -o table". It writes
// what az writes and returns az's exit code: 0; 2 for arguments that cannot be; 3 for something that is not there; 1 for another failure.
func Run(args []string, l Lab, stdout, stderr io.Writer) int {
	l.Network = customers(l.Network)
	result, o, err := run(args, l, stdout)
	if err == nil {
		err = write(stdout, result, o.format, o.query)
	}
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(stderr, "az:", err)
	var c coded
	if errors.As(err, &c) {
		return c.code
	}
	return exitFailure
}

// coded is an error with its exit code.
type coded struct {
	error
	code int
}

func usage(format string, args ...any) error { return coded{fmt.Errorf(format, args...), exitUsage} }

func notFound(format string, args ...any) error {
	return coded{fmt.Errorf(format, args...), exitNotFound}
}

// options are a command's arguments.
type options struct {
	group, name, parent string // -g, -n, --lb-name and the like
	pool, count         string // --nodepool-name, -c
	format, query       string
	noWait, help        bool
	includeDefault      bool // of security rules
}

// command is one that az has: "list" and "show" of one kind of thing.
type command struct {
	words  string // network lb rule
	kind   string // Microsoft.Network/loadBalancers, for messages
	parent string // the flag that names the resource that holds the thing, without its dashes; empty for a resource
	field  string // of that resource, with the things in it
	all    func(Lab) ([]any, error)
	things func(Lab) ([]any, error) // what the resource holds, in place of field
	table  []column                 // az's own, where it has one
	ofList bool                     // that table is of "list" alone
}

var (
	allLBs    = func(l Lab) ([]any, error) { return view(NewResources(l.Network).LoadBalancers) }
	allNICs   = func(l Lab) ([]any, error) { return view(NewResources(l.Network).Interfaces) }
	allIPs    = func(l Lab) ([]any, error) { return view(NewResources(l.Network).PublicIPAddresses) }
	allVNets  = func(l Lab) ([]any, error) { return view(NewResources(l.Network).VirtualNetworks) }
	allTables = func(l Lab) ([]any, error) { return view(NewResources(l.Network).RouteTables) }
)

// commands are all there are.
var commands = []command{
	{words: "network lb", kind: "Microsoft.Network/loadBalancers", all: allLBs},
	{words: "network lb rule", kind: "Microsoft.Network/loadBalancers", parent: "lb-name", field: "loadBalancingRules", all: allLBs},
	{words: "network lb probe", kind: "Microsoft.Network/loadBalancers", parent: "lb-name", field: "probes", all: allLBs},
	{words: "network lb address-pool", kind: "Microsoft.Network/loadBalancers", parent: "lb-name", field: "backendAddressPools", all: allLBs},
	{words: "network lb frontend-ip", kind: "Microsoft.Network/loadBalancers", parent: "lb-name", field: "frontendIpConfigurations",
		all: allLBs},
	{words: "network lb outbound-rule", kind: "Microsoft.Network/loadBalancers", parent: "lb-name", field: "outboundRules", all: allLBs},
	{words: "network nic", kind: "Microsoft.Network/networkInterfaces", all: allNICs},
	{words: "network nic ip-config", kind: "Microsoft.Network/networkInterfaces", parent: "nic-name", field: "ipConfigurations", all: allNICs},
	{words: "network public-ip", kind: "Microsoft.Network/publicIPAddresses", all: allIPs, table: publicIPColumns},
	{words: "network vnet", kind: "Microsoft.Network/virtualNetworks", all: allVNets, table: vnetColumns, ofList: true},
	{words: "network vnet subnet", kind: "Microsoft.Network/virtualNetworks", parent: "vnet-name", field: "subnets", all: allVNets},
	{words: "network vnet peering", kind: "Microsoft.Network/virtualNetworks", parent: "vnet-name", field: "virtualNetworkPeerings",
		all: allVNets},
	{words: "network route-table", kind: "Microsoft.Network/routeTables", all: allTables},
	{words: "network route-table route", kind: "Microsoft.Network/routeTables", parent: "route-table-name", field: "routes", all: allTables},
	{words: "network nsg", kind: "Microsoft.Network/networkSecurityGroups", all: allGroups},
	{words: nsgRule, kind: "Microsoft.Network/networkSecurityGroups", parent: "nsg-name", field: "securityRules", all: allGroups},
	{words: "aks", kind: kindCluster, all: clusters, table: clusterColumns},
	{words: "aks nodepool", kind: kindCluster, parent: "cluster-name", all: clusters, things: agentPools, table: poolColumns},
	{words: containerWords, kind: aci.Type, all: allContainerGroups},
	{words: "vm", kind: "Microsoft.Compute/virtualMachines", all: machines, table: vmColumns},
}

// nsgRule is the command of security rules, which alone knows --include-default and has its own table.
const nsgRule = "network nsg rule"

func run(args []string, l Lab, stdout io.Writer) (any, options, error) {
	words := 0
	for words < len(args) && !strings.HasPrefix(args[words], "-") {
		words++
	}
	if words > 1 && args[words-1] == "scale" && strings.HasPrefix(args[0], "aks") {
		if result, o, err := scale(strings.Join(args[:words-1], " "), l, args[words:]); err != nil || !o.help {
			return result, o, err
		}
	}
	if words == 2 && args[0] == containerWords && args[1] == "logs" {
		if o, err := containerLogs(args[words:], l, stdout); err != nil || !o.help {
			return nil, o, err
		}
	}
	if strings.Join(args[:words], " ") == ipFlowWords {
		if result, o, err := testIPFlow(l, args[words:]); err != nil || !o.help {
			return result, o, err
		}
	}
	o := options{format: "json"}
	if err := o.parse(args[words:], o.flags(), map[string]*bool{"--include-default": &o.includeDefault}); err != nil {
		return nil, o, err
	}
	if o.help || words == 0 {
		_, err := io.WriteString(stdout, usageOf(args[:words]))
		return nil, o, err
	}
	verb := args[words-1]
	i := slices.IndexFunc(commands, func(c command) bool { return c.words == strings.Join(args[:words-1], " ") })
	if i >= 0 && commands[i].words == "network nic" && verb == effectiveRoutesVerb {
		routes, err := effectiveRoutes(l, commands[i], o)
		if err != nil || o.query == "" {
			return routes, o, err
		}
		result, err := o.search(routes.value())
		return result, o, err
	}
	if i < 0 || verb != "list" && verb != "show" {
		return nil, o, usage("%q is not among the commands of the lab\n%s", strings.Join(args[:words], " "), usageOf(args[:words]))
	}
	if o.includeDefault && (commands[i].words != nsgRule || verb != "list") {
		return nil, o, usage("unrecognized arguments: --include-default")
	}
	result, err := commands[i].run(verb, l, o)
	if err != nil {
		return nil, o, err
	}
	result, err = commands[i].present(verb, o, result)
	return result, o, err
}

// present applies --query to a result, or else gives it az's own table.
func (c command) present(verb string, o options, result any) (any, error) {
	switch {
	case o.query != "":
		return o.search(result)
	case c.words == nsgRule:
		return ruleList{result}, nil
	case c.words == containerWords:
		return groupList{result}, nil
	case c.table != nil && (verb == "list" || !c.ofList):
		return columnTable{result, c.table}, nil
	}
	return result, nil
}

// search applies --query.
func (o options) search(result any) (any, error) {
	query, err := jmespath.Compile(pythonQuery(o.query))
	if err != nil {
		return nil, usage("argument --query: invalid jmespath_type value: '%s': %w", o.query, err)
	}
	if result, err = query.Search(result); err != nil {
		return nil, usage("argument --query: '%s': %w", o.query, err)
	}
	return result, nil
}

// flags are the arguments of all commands, and where each goes.
func (o *options) flags() map[string]*string {
	return map[string]*string{
		"-g": &o.group, "--resource-group": &o.group, "-n": &o.name, "--name": &o.name,
		"--lb-name": &o.parent, "--cluster-name": &o.parent, "--nic-name": &o.parent, "--vnet-name": &o.parent, "--route-table-name": &o.parent,
		"--nsg-name": &o.parent,
		"-o":         &o.format, "--output": &o.format, "--query": &o.query,
	}
}

// parse reads flags with a value, and switches without one.
func (o *options) parse(args []string, flags map[string]*string, switches map[string]*bool) error {
	for i := 0; i < len(args); i++ {
		name, value, inline := strings.Cut(args[i], "=")
		if name == "-h" || name == "--help" {
			o.help = true
			continue
		}
		if on, ok := switches[args[i]]; ok {
			*on = true
			continue
		}
		at, ok := flags[name]
		if !ok {
			return usage("unrecognized arguments: %s", args[i])
		}
		if !inline {
			if i++; i == len(args) || strings.HasPrefix(args[i], "-") && flags[args[i]] != nil {
				return usage("argument %s: expected one argument", name)
			}
			value = args[i]
		}
		*at = value
	}
	if !slices.Contains(formats, o.format) {
		return usage("argument --output/-o: invalid choice: '%s' (choose from %s)", o.format, strings.Join(formats, ", "))
	}
	return nil
}

// required refuses a command without what it needs. Only lists of resources do without a group.
func (c command) required(verb string, o options) error {
	var missing []string
	if o.group == "" && (verb == "show" || c.parent != "") {
		missing = append(missing, "--resource-group/-g")
	}
	if c.parent != "" && o.parent == "" {
		missing = append(missing, "--"+c.parent)
	}
	if verb == "show" && o.name == "" {
		missing = append(missing, "--name/-n")
	}
	if len(missing) > 0 {
		return usage("the following arguments are required: %s", strings.Join(missing, ", "))
	}
	return nil
}

func (c command) run(verb string, l Lab, o options) (any, error) {
	n := l.Network
	if err := c.required(verb, o); err != nil {
		return nil, err
	}
	all, err := c.all(l)
	if err != nil {
		return nil, err
	}
	if o.group != "" {
		if !strings.EqualFold(o.group, n.ResourceGroup) && !strings.EqualFold(o.group, n.NodeResourceGroup) {
			return nil, notFound("(ResourceGroupNotFound) Resource group '%s' could not be found; there are '%s' and '%s'", o.group, n.ResourceGroup,
				n.NodeResourceGroup)
		}
		all = slices.DeleteFunc(all, func(r any) bool { return !strings.EqualFold(field(r, "resourceGroup"), o.group) })
	}
	if c.parent != "" {
		if all, err = c.held(all, l, o); err != nil {
			return nil, err
		}
	}
	if verb == "list" {
		return append([]any{}, all...), nil
	}
	found, err := c.find(all, o.name, o.group)
	if err == nil && c.words == containerWords {
		return containerGroup(l, o.name)
	}
	return found, err
}

// held gives what the parent resource holds.
func (c command) held(resources []any, l Lab, o options) ([]any, error) {
	parent, err := c.find(resources, o.parent, o.group)
	if err != nil {
		return nil, err
	}
	if c.things != nil {
		return c.things(l)
	}
	list, _ := parent.(object)[c.field].([]any)
	if o.includeDefault {
		more, _ := parent.(object)["defaultSecurityRules"].([]any)
		list = slices.Concat(list, more)
	}
	return list, nil
}

// find gives the one of a name; Azure's names know no case.
func (c command) find(all []any, name, group string) (any, error) {
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
	return nil, notFound("(ResourceNotFound) The Resource '%s/%s' under resource group '%s' was not found; %s", c.kind, name, group, there)
}

func field(r any, name string) string {
	s, _ := r.(object)[name].(string)
	return s
}

// Usage lists the commands and their flags.
func Usage() string {
	return "Commands, each with -o json|jsonc|table|tsv|none and --query JMESPATH:\n" + strings.Join(usageLines(), "")
}

// usageOf lists the commands that begin as the words do, as far as any does.
func usageOf(words []string) string {
	for n := len(words); n > 0; n-- {
		var found []string
		for _, line := range usageLines() {
			if strings.HasPrefix(line, "  az "+strings.Join(words[:n], " ")+" ") {
				found = append(found, line)
			}
		}
		if found != nil {
			return "There are:\n" + strings.Join(found, "")
		}
	}
	return Usage()
}

func usageLines() []string {
	var all []string
	for _, c := range commands {
		flags := " [-g GROUP] | show -g GROUP"
		if c.parent != "" {
			flags = fmt.Sprintf(" -g GROUP --%[1]s NAME | show -g GROUP --%[1]s NAME", c.parent)
		}
		if c.words == nsgRule {
			flags = strings.Replace(flags, " |", " [--include-default] |", 1)
		}
		all = append(all, "  az "+c.words+" list"+flags+" -n NAME\n")
	}
	return append(all,
		"  az aks scale [-g GROUP] [-n CLUSTER] [--nodepool-name POOL] -c COUNT [--no-wait]; -n takes a pool's name, too\n",
		"  az aks nodepool scale [-g GROUP] [--cluster-name CLUSTER] -n POOL -c COUNT [--no-wait]\n",
		"  az container logs -g GROUP -n NAME [--container-name CONTAINER] [--follow]\n",
		"  az network nic "+effectiveRoutesVerb+" -g GROUP -n NAME\n",
		"  az "+ipFlowWords+" [-g GROUP] --vm NAME [--nic NAME] --direction Inbound|Outbound --protocol TCP|UDP --local ADDRESS:PORT --remote ADDRESS:PORT\n")
}
