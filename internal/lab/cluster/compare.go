package cluster

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Change is one difference between two clusters, for people.
type Change struct {
	Path string // the field, with names for list indices: spec.azure.vnets[vnetB].peerings
	From string // in YAML, on one line; empty for what is new
	To   string // empty for what is gone
	// NewCluster says that a running cluster cannot be changed so.
	NewCluster bool
}

// String gives "~ PATH: FROM → TO", "+ PATH: TO" or "- PATH: FROM".
func (c Change) String() string {
	switch {
	case c.From == "":
		return fmt.Sprintf("+ %s: %s", c.Path, c.To)
	case c.To == "":
		return fmt.Sprintf("- %s: %s", c.Path, c.From)
	}
	return fmt.Sprintf("~ %s: %s → %s", c.Path, c.From, c.To)
}

// changeable lists the fields that can change in a running cluster. A * adds all fields below, and [] stands for an element of a list. To
// change any other field takes a new cluster. That includes fields that the cluster gets later, until they are listed here.
var changeable = []string{
	"spec.network.nonMasqueradeCIDRs",
	"spec.serviceProxy.implementation",
	"spec.serviceProxy.backend",
	"spec.serviceProxy.repair",
	"spec.loadBalancer.frontends",
	"spec.outboundType",
	"spec.natGateway.*",
	"spec.addons",
	"spec.hostUsers",
	"spec.nodeOptions.imdsRestriction",
	"spec.images.*",
	"spec.loadBalancer.outbound.*",
	"spec.nodePools[]",
	"spec.nodePools[].count",
	"spec.nodePools[].enableNodePublicIP",
	"spec.nodePools[].nodeLabels",
	"spec.nodePools[].nodeTaints",
	"spec.azure.resourceManager.*",
	"spec.azure.vnets[]",
	"spec.azure.vnets[].addressPrefixes",
	"spec.azure.vnets[].peerings",
	"spec.azure.vnets[].subnets[]",
	"spec.azure.vnets[].subnets[].routeTable",
	"spec.azure.vnets[].subnets[].networkSecurityGroup",
	"spec.azure.vnets[].subnets[].natGateway",
	"spec.azure.vnets[].subnets[].defaultOutboundAccess",
	"spec.azure.natGateways[]*",
	"spec.azure.routeTables[]*",
	"spec.azure.networkSecurityGroups[]*",
	"spec.azure.vms[]*",
	"spec.internet.hosts[]*",
}

func canChange(pattern string) bool {
	return slices.ContainsFunc(changeable, func(c string) bool {
		below, all := strings.CutSuffix(c, "*")
		return c == pattern || all && strings.HasPrefix(pattern, below)
	})
}

// Compare gives what is to be done to make a cluster another one, both with their defaults, in the order of the fields. The order of VNets,
// subnets, machines and the like means nothing, that of front ends does.
func Compare(from, to *Cluster) []Change {
	var d differ
	d.value("", "", reflect.ValueOf(from).Elem(), reflect.ValueOf(to).Elem())
	for _, vm := range to.Spec.Azure.VMs {
		was, had := from.VMPublicIP(vm.Name)
		if is, has := to.VMPublicIP(vm.Name); had && has && is != was {
			d.changes = append(d.changes, Change{Path: fmt.Sprintf("spec.azure.vms[%s].publicIP", vm.Name), From: was.String(), To: is.String()})
		}
	}
	return d.changes
}

type differ struct{ changes []Change }

// value compares two values of one type; pattern is path without names.
func (d *differ) value(path, pattern string, a, b reflect.Value) {
	switch {
	case a.Kind() == reflect.Struct && a.NumField() > 0 && a.Type().Field(0).IsExported():
		for i := range a.NumField() {
			if !a.Type().Field(i).IsExported() {
				continue
			}
			name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("json"), ",")
			d.value(join(path, name), join(pattern, name), a.Field(i), b.Field(i))
		}
	case a.Kind() == reflect.Slice && a.Type().Elem().Kind() == reflect.Struct && named(a.Type().Elem()):
		d.list(path, pattern+"[]", a, b)
	default:
		d.add(path, pattern, text(a), text(b))
	}
}

func named(t reflect.Type) bool {
	_, ok := t.FieldByName("Name")
	return ok
}

// list compares lists whose elements have names.
func (d *differ) list(path, pattern string, a, b reflect.Value) {
	find := func(list reflect.Value, name string) (reflect.Value, bool) {
		for i := range list.Len() {
			if list.Index(i).FieldByName("Name").String() == name {
				return list.Index(i), true
			}
		}
		return reflect.Value{}, false
	}
	for i := range a.Len() {
		name := a.Index(i).FieldByName("Name").String()
		at := fmt.Sprintf("%s[%s]", path, name)
		if other, ok := find(b, name); ok {
			d.value(at, pattern, a.Index(i), other)
		} else {
			d.add(at, pattern, text(a.Index(i)), "")
		}
	}
	for i := range b.Len() {
		name := b.Index(i).FieldByName("Name").String()
		if _, ok := find(a, name); !ok {
			d.add(fmt.Sprintf("%s[%s]", path, name), pattern, "", text(b.Index(i)))
		}
	}
}

func (d *differ) add(path, pattern, from, to string) {
	if from != to {
		d.changes = append(d.changes, Change{Path: path, From: from, To: to, NewCluster: !canChange(pattern)})
	}
}

// text returns a value as YAML on one line, "" for none.
func text(v reflect.Value) string {
	if v.IsZero() {
		return ""
	}
	data, err := json.Marshal(v.Interface())
	var n yaml.Node
	if err == nil {
		err = yaml.Unmarshal(data, &n)
	}
	if err != nil {
		return fmt.Sprint(v.Interface())
	}
	plain(&n)
	out, err := yaml.Marshal(&n)
	if err != nil {
		return fmt.Sprint(v.Interface())
	}
	return strings.TrimSpace(string(out))
}

// plain writes lists and mappings on one line and words without quotes.
func plain(n *yaml.Node) {
	n.Style = 0
	if n.Kind == yaml.SequenceNode || n.Kind == yaml.MappingNode {
		n.Style = yaml.FlowStyle
	}
	for _, c := range n.Content {
		plain(c)
	}
}
