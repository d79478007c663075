package armview

import (
	"fmt"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/snapshot"
)

// kinds are the resources that files hold: what they are called, and the az command that lists those of a resource group.
var kinds = map[string]struct{ noun, command string }{
	"loadbalancers":         {"load balancer", "network lb list"},
	"natgateways":           {"NAT gateway", "network nat gateway list"},
	"networkinterfaces":     {"network interface", "network nic list"},
	"networksecuritygroups": {"network security group", "network nsg list"},
	"publicipaddresses":     {"public IP address", "network public-ip list"},
	"publicipprefixes":      {"public IP prefix", "network public-ip prefix list"},
	"routetables":           {"route table", "network route-table list"},
	"subnets":               {"subnet", "network vnet list"},
	"virtualnetworks":       {"virtual network", "network vnet list"},
}

// clusterCommand writes the managed clusters of the subscription: which of them has the nodes, the nodes do not say.
const clusterCommand = "az aks list -o json > aks.json"

// Commands returns the az commands that write the files for the nodes of a cluster. What the nodes do not say is in capitals.
func Commands(nodes []snapshot.Node) []string {
	var all []string
	add := func(command string) {
		if !slices.Contains(all, command) {
			all = append(all, command)
		}
	}
	ids := machineIDs(nodes)
	for _, id := range ids {
		add(listCommand(id + "/networkInterfaces/x"))
	}
	for _, kind := range []string{"loadBalancers", "networkSecurityGroups", "publicIPAddresses", "publicIPPrefixes", "natGateways", "routeTables",
		"virtualNetworks"} {
		for _, id := range ids {
			subscription, group := subscriptionAndGroup(id)
			add(listCommand(fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/Microsoft.Network/%s/x", subscription, group, kind)))
		}
	}
	add(clusterCommand)
	return all
}

// unknownMachine stands for the id of a node that has no providerID.
const unknownMachine = "/subscriptions//resourceGroups/NODE_RESOURCE_GROUP/providers/Microsoft.Compute/virtualMachineScaleSets/SCALE_SET/virtualMachines/0"

// machineID returns the id of a node's machine in Azure.
func machineID(node snapshot.Node) string {
	if id, ok := strings.CutPrefix(node.ProviderID, "azure://"); ok {
		return id
	}
	return unknownMachine
}

// machineIDs returns those of several nodes.
func machineIDs(nodes []snapshot.Node) []string {
	var all []string
	for _, n := range nodes {
		if id := machineID(n); id != unknownMachine {
			all = append(all, id)
		}
	}
	if len(all) == 0 {
		return []string{unknownMachine}
	}
	return all
}

// subscriptionAndGroup returns the subscription and the resource group of an id.
func subscriptionAndGroup(id string) (subscription, group string) {
	parts := strings.Split(id, "/")
	for i := 0; i+1 < len(parts); i++ {
		switch strings.ToLower(parts[i]) {
		case "subscriptions":
			subscription = parts[i+1]
		case "resourcegroups":
			group = parts[i+1]
		}
	}
	return plain(subscription), plainGroup(group)
}

// plainGroup keeps the characters of a resource group's name.
func plainGroup(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '(' || r == ')' || plain(string(r)) == string(r) {
			return r
		}
		return '_'
	}, s)
}

// listCommand returns the az command that writes a resource, and others of its kind, into a file.
func listCommand(id string) string {
	_, group := subscriptionAndGroup(id)
	command, more, file := kinds[kind(id)].command, "", "-"+group
	switch set := scaleSet(id); {
	case set != "" && kind(id) == "networkinterfaces":
		command, more, file = "vmss nic list", " --vmss-name "+set, "-"+set
	case set != "" && kind(id) == "publicipaddresses":
		command, more, file = "vmss list-instance-public-ips", " -n "+set, "-"+set
	}
	name := strings.NewReplacer("network ", "", " list", "", " ", "-").Replace(command)
	return fmt.Sprintf("az %s --resource-group %s%s -o json > %s", command, quoted(group), more, quoted(name+file+".json"))
}

// quoted returns a word for a shell.
func quoted(s string) string {
	if strings.ContainsAny(s, "()") {
		return "'" + s + "'"
	}
	return s
}

// scaleSet returns the scale set in an id, "" for none.
func scaleSet(id string) string {
	_, rest, ok := cutFold(id, "/virtualmachinescalesets/")
	if !ok {
		return ""
	}
	set, _, _ := strings.Cut(rest, "/")
	return plain(set)
}

// UnreadResource says which resource was not read, and for files the command that writes it.
func (r *Resources) UnreadResource(id string) string {
	id = r.written(id)
	_, group := subscriptionAndGroup(id)
	text := fmt.Sprintf("%s %s of resource group %s was not read", kinds[kind(id)].noun, plain(last(id)), group)
	return text + r.remedy(id)
}

// remedy returns how to read a resource. What the login may not read, no other command does.
func (r *Resources) remedy(id string) string {
	if len(r.Unread) > 0 || kinds[kind(id)].command == "" {
		return ""
	}
	return fmt.Sprintf("; run %q", listCommand(id))
}

// clusterRemedy returns how to read the managed clusters.
func (r *Resources) clusterRemedy() string {
	if len(r.Unread) > 0 {
		return ""
	}
	return fmt.Sprintf("; run %q", clusterCommand)
}

// unreadOf names a resource of some kinds that others refer to and that was not read; "" for none.
func (r *Resources) unreadOf(wanted ...string) string {
	for _, id := range r.References() {
		if slices.Contains(wanted, kind(id)) {
			return ": " + r.UnreadResource(id)
		}
	}
	return ""
}

// written returns an id in the case that files have for its resource group, as far as one of them does.
func (r *Resources) written(id string) string {
	group, rest, ok := cutFold(id, "/providers/")
	if as, known := r.groups[groupOf(group)]; ok && known {
		return as + "/providers/" + rest
	}
	return id
}
