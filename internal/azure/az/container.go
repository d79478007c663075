package az

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/azure/vnet"
)

// containerWords is the command of container groups, which alone has logs and its own table.
const containerWords = "container"

// allContainerGroups are the container groups as lists have them.
func allContainerGroups(l Lab) ([]any, error) {
	groups := []aci.ContainerGroup{}
	for _, g := range l.ContainerGroups {
		groups = append(groups, g.Listed())
	}
	return view(groups)
}

// containerGroup is the view of one group, with how it is.
func containerGroup(l Lab, name string) (any, error) {
	for _, g := range l.ContainerGroups {
		if strings.EqualFold(g.Name, name) {
			all, err := view([]aci.ContainerGroup{g.Public()})
			if err != nil {
				return nil, err
			}
			return all[0], nil
		}
	}
	return nil, notFound("(ResourceNotFound) The Resource '%s/%s' was not found", aci.Type, name)
}

// containerLogs is "az container logs": the log of a container, by default the group's first.
func containerLogs(args []string, l Lab, w io.Writer) (options, error) {
	o := options{format: "json"}
	var container string
	var follow bool
	flags := o.flags()
	flags["--container-name"] = &container
	if err := o.parse(args, flags, map[string]*bool{"--follow": &follow}); err != nil || o.help {
		return o, err
	}
	if o.group == "" || o.name == "" {
		return o, usage("the following arguments are required: --resource-group/-g, --name/-n")
	}
	i := slices.IndexFunc(l.ContainerGroups, func(g aci.ContainerGroup) bool { return strings.EqualFold(g.Name, o.name) })
	if i < 0 || l.ContainerLogs == nil {
		_, err := containerGroup(Lab{}, o.name)
		return o, err
	}
	g := l.ContainerGroups[i]
	if container == "" {
		container = g.Properties.Containers[0].Name
	}
	return o, l.ContainerLogs(g.Name, container, follow, w)
}

// groupList is a list of container groups, or one: az has a table of its own for both (its module container, _format.py).
type groupList struct{ groups any }

func (l groupList) value() any { return l.groups }

// table has the columns in the order of the Part 5 article.
func (l groupList) table() string {
	headers := []string{"Name", "ResourceGroup", "Status", "Image", "CPU/Memory", "OsType", "Location", "IP:ports", "Network"}
	items, ok := l.groups.([]any)
	if !ok {
		items = []any{l.groups}
	}
	var rows []map[string]string
	for _, item := range items {
		g, _ := item.(object)
		row := map[string]string{
			"Name": field(g, "name"), "ResourceGroup": field(g, "resourceGroup"), "OsType": field(g, "osType"), "Location": field(g, "location"),
			"Status": field(g, "provisioningState"),
		}
		if v, ok := g["instanceView"].(object); ok && field(v, "state") != "" {
			row["Status"] = field(v, "state")
		}
		row["Image"], row["CPU/Memory"] = containersOf(g)
		row["IP:ports"], row["Network"] = addressOf(g)
		rows = append(rows, row)
	}
	return layOut(headers, rows)
}

// containersOf are a group's images, and what its containers ask for together.
func containersOf(g object) (images, resources string) {
	var names []string
	var cpu, memory float64
	for _, c := range list(g, "containers") {
		if name := field(c, "image"); !slices.Contains(names, name) {
			names = append(names, name)
		}
		r, _ := c["resources"].(object)
		requests, _ := r["requests"].(object)
		cores, _ := requests["cpu"].(float64)
		gigabytes, _ := requests["memoryInGb"].(float64)
		cpu, memory = cpu+cores, memory+gigabytes
	}
	return strings.Join(names, ","), fmt.Sprintf("%s core/%s gb", pythonFloat(cpu), pythonFloat(memory))
}

// addressOf is a group's address with its ports, those of the group and for a private address those of its containers once more, as az has
// it.
func addressOf(g object) (ports, network string) {
	ip, ok := g["ipAddress"].(object)
	if !ok {
		return "", ""
	}
	var all []string
	for _, p := range list(ip, "ports") {
		all = append(all, plain(p["port"]))
	}
	if field(ip, "type") == aci.Private {
		for _, c := range list(g, "containers") {
			for _, p := range list(c, "ports") {
				all = append(all, plain(p["port"]))
			}
		}
	}
	return field(ip, "ip") + ":" + strings.Join(all, ","), field(ip, "type")
}

func list(o object, name string) []object {
	items, _ := o[name].([]any)
	var all []object
	for _, i := range items {
		if o, ok := i.(object); ok {
			all = append(all, o)
		}
	}
	return all
}

// pythonFloat is a number as Python's str gives a float: with a decimal point.
func pythonFloat(f float64) string {
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// customers is a network without what is Azure's own: the networks that its services run on, and the NICs of container groups.
func customers(n vnet.Network) vnet.Network {
	platform := map[string]bool{}
	for _, v := range n.VNets {
		platform[v.Name] = v.Platform
	}
	n.NICs = slices.DeleteFunc(slices.Clone(n.NICs), func(nic vnet.NIC) bool { return nic.ContainerGroup || platform[nic.VNet] })
	n.VNets = slices.DeleteFunc(slices.Clone(n.VNets), func(v vnet.VNet) bool { return v.Platform })
	return n
}
