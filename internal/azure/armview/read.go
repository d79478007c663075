package armview

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Read adds what a JSON text holds: a resource, a list of them, or an answer of Azure Resource Manager with "value". Both ways of
// writing them are understood, with "properties" and with their fields one level up, as az has them. Kinds that a walk does not need
// are passed over. Source is the file's name: two files must not differ about a resource, and a file must not hold one page of a list only.
// Without one, the text is Azure's answer, which replaces an earlier one, and whose next pages are the caller's to read.
func (r *Resources) Read(source string, text []byte) error {
	var root any
	if err := unmarshal(text, &root); err != nil {
		return err
	}
	if o, ok := root.(map[string]any); ok {
		if list, ok := o["value"].([]any); ok && o["id"] == nil {
			if next, _ := o["nextLink"].(string); next != "" && source != "" {
				return onePage(list)
			}
			root = list
		}
	}
	list, ok := root.([]any)
	if !ok {
		list = []any{root}
	}
	for _, item := range list {
		o, ok := item.(map[string]any)
		id, _ := o["id"].(string)
		if !ok || id == "" {
			return errors.New("a resource without an id: save what az … -o json prints without --query")
		}
		if err := r.add(source, id, flatten(o)); err != nil {
			return err
		}
	}
	return nil
}

// onePage returns the error for a file that holds one page of a list. Resources of the other pages would be taken for ones that do not
// exist.
func onePage(list []any) error {
	command := "the list command of az, which fetches all pages"
	if len(list) > 0 {
		o, _ := list[0].(map[string]any)
		id, _ := o["id"].(string)
		switch {
		case kind(id) == "managedclusters":
			command = fmt.Sprintf("%q", clusterCommand)
		case kinds[kind(id)].command != "":
			command = fmt.Sprintf("%q", listCommand(id))
		}
	}
	return fmt.Errorf("one page of a list: nextLink leads to more; save the whole list with %s, "+
		"or save each further page as a file and take nextLink out", command)
}

// unmarshal reads JSON as az and shells write it.
func unmarshal(text []byte, into any) error {
	switch {
	case len(bytes.TrimSpace(text)) == 0:
		return errors.New("the file is empty: az printed no result; run its command again")
	case bytes.HasPrefix(text, []byte{0xff, 0xfe}), bytes.HasPrefix(text, []byte{0xfe, 0xff}):
		return errors.New("the text is UTF-16; in PowerShell write it with \"| Out-File -Encoding utf8 FILE\"")
	}
	if err := json.Unmarshal(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")), into); err != nil {
		return fmt.Errorf("no JSON as az … -o json writes it: %w", err)
	}
	return nil
}

// flatten brings the fields of "properties" one level up, at every depth; a field of the object's own comes first. The recursion is
// bounded: encoding/json refuses what is nested deeper than 10,000.
func flatten(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = flatten(v[i])
		}
	case map[string]any:
		flat := map[string]any{}
		if p, ok := v["properties"].(map[string]any); ok {
			for k, e := range p {
				flat[k] = flatten(e)
			}
		}
		for k, e := range v {
			if k != "properties" {
				flat[k] = flatten(e)
			}
		}
		for k, e := range flat { // the same as left out
			if list, ok := e.([]any); e == nil || ok && len(list) == 0 {
				delete(flat, k)
			}
		}
		return flat
	}
	return v
}

// kind returns the last type in an id: "networkinterfaces".
func kind(id string) string {
	parts := strings.Split(strings.ToLower(id), "/")
	if len(parts) < 3 {
		return ""
	}
	return parts[len(parts)-2]
}

// decode puts an object into a map of resources.
func decode[T any](r *Resources, into map[string]*T, source, id string, o any) error {
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	x := new(T)
	if err := json.Unmarshal(data, x); err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	return put(r, into, source, id, x)
}

// put keeps a resource, unless another file has it with other content.
func put[T any](r *Resources, into map[string]*T, source, id string, x *T) error {
	key := strings.ToLower(id)
	if key == "" {
		return nil
	}
	if before := into[key]; before != nil && source != "" && r.sources[key] != "" {
		if field := difference(*before, *x); field != "" {
			return &ConflictError{ID: id, Field: field, First: r.sources[key], Second: source}
		}
	}
	into[key], r.sources[key] = x, source
	if group, _, ok := cutFold(id, "/providers/"); ok {
		r.groups[groupOf(group)] = group
	}
	return nil
}

// ConflictError says that two files have different content for a resource.
type ConflictError struct{ ID, Field, First, Second string }

// Error names the resource, the field that differs and the files.
func (e *ConflictError) Error() string {
	noun := cmp.Or(kinds[kind(e.ID)].noun, "resource")
	if e.First == e.Second {
		return fmt.Sprintf("%s has %s %s twice with different content (%s)", e.First, noun, e.ID, e.Field)
	}
	return fmt.Sprintf("%s and %s have different content for %s %s (%s); remove the older file", e.First, e.Second, noun, e.ID, e.Field)
}

// difference returns the name of a field in which two resources differ, "" for none. Azure does not tell cases apart.
func difference(a, b any) string {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	text := func(v reflect.Value) string {
		data, _ := json.Marshal(v.Interface()) // of what was read from JSON
		return string(data)
	}
	for i := range x.NumField() {
		f := x.Type().Field(i)
		if f.Name != "Resource" && !strings.EqualFold(text(x.Field(i)), text(y.Field(i))) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			return cmp.Or(name, camelCase(f.Name))
		}
	}
	return ""
}

// camelCase returns the JSON name of a field: "macAddress" for MACAddress.
func camelCase(field string) string {
	upper := 0
	for upper < len(field) && field[upper] >= 'A' && field[upper] <= 'Z' {
		upper++
	}
	if upper > 1 && upper < len(field) {
		upper-- // the next word's
	}
	return strings.ToLower(field[:upper]) + field[upper:]
}

func (r *Resources) add(source, id string, o any) error {
	switch kind(id) {
	case "networkinterfaces":
		return decode(r, r.Interfaces, source, id, o)
	case "publicipaddresses":
		return decode(r, r.PublicIPs, source, id, o)
	case "publicipprefixes":
		return decode(r, r.Prefixes, source, id, o)
	case "loadbalancers":
		return decode(r, r.LoadBalancers, source, id, o)
	case "natgateways":
		return decode(r, r.NATGateways, source, id, o)
	case "routetables":
		return decode(r, r.RouteTables, source, id, o)
	case "networksecuritygroups":
		return decode(r, r.SecurityGroups, source, id, o)
	case "managedclusters":
		return decode(r, r.Clusters, source, id, o)
	case "subnets":
		return decode(r, r.subnets, source, id, o)
	case "virtualnetworks":
		return r.addVNet(source, id, o)
	case "virtualnetworkpeerings":
		return r.addPeering(source, id, o)
	}
	return nil
}

// addVNet adds a virtual network with its subnets and peerings, and the peerings that were listed by themselves.
func (r *Resources) addVNet(source, id string, o any) error {
	key := strings.ToLower(id)
	before := r.VNets[key]
	if before != nil && before.ID == "" { // only peerings of it were read
		delete(r.VNets, key)
	}
	if err := decode(r, r.VNets, source, id, o); err != nil {
		return err
	}
	v := r.VNets[key]
	for i := range v.Subnets {
		if err := put(r, r.subnets, source, v.Subnets[i].ID, &v.Subnets[i]); err != nil {
			return err
		}
	}
	for i := range v.Peerings {
		if err := put(r, r.peerings, source, v.Peerings[i].ID, &v.Peerings[i]); err != nil {
			return err
		}
	}
	if before != nil && len(v.Peerings) == 0 {
		v.Peerings = before.Peerings
	}
	return nil
}

// addPeering adds a peering that was listed by itself to its virtual network, also to one that is read later.
func (r *Resources) addPeering(source, id string, o any) error {
	if err := decode(r, r.peerings, source, id, o); err != nil {
		return err
	}
	key := strings.ToLower(id)
	vnet := key[:max(0, strings.Index(key, "/virtualnetworkpeerings/"))]
	if r.VNets[vnet] == nil {
		r.VNets[vnet] = &VirtualNetwork{}
	}
	v := r.VNets[vnet]
	v.Peerings = slices.DeleteFunc(slices.Clone(v.Peerings), func(p Peering) bool { return strings.EqualFold(p.ID, id) })
	v.Peerings = append(v.Peerings, *r.peerings[key])
	return nil
}
