package az

import (
	"encoding/json"
	"fmt"
	"strings"

	"packetwalk.dev/internal/azure/arm"
)

// object is a resource as "az" shows it.
type object = map[string]any

// view gives resources as "az" shows them: the fields of "properties" one level up, IP written Ip as in Python's names, and beside every id
// the resource group that it names. Fields without a value are left out, where az of that time printed null.
func view[T any](resources []T) ([]any, error) {
	data, err := json.Marshal(resources)
	if err != nil {
		return nil, fmt.Errorf("encode resources: %w", err)
	}
	var all []any
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("decode resources: %w", err)
	}
	for i := range all {
		all[i] = flatten(all[i])
	}
	return all, nil
}

// allOf returns the network's resources of a type as az shows them.
func allOf(l Lab, kind string) ([]any, error) {
	all, _, err := arm.List(l.Network, kind)
	if err != nil {
		return nil, err
	}
	return view(all)
}

func flatten(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = flatten(v[i])
		}
	case object:
		flat := object{}
		for k, e := range v {
			if p, ok := e.(object); ok && k == "properties" {
				for k, e := range p {
					flat[pythonName(k)] = flatten(e)
				}
				continue
			}
			flat[pythonName(k)] = flatten(e)
		}
		if id, ok := flat["id"].(string); ok && flat["resourceGroup"] == nil {
			if group := groupOf(id); group != "" {
				flat["resourceGroup"] = group
			}
		}
		return flat
	}
	return v
}

// pythonNames turns the provider's names into those of the Python SDK that az was built on: privateIPAddress is privateIpAddress there. The
// names of az since 2.50, which are the provider's own, are understood in queries.
var pythonNames = strings.NewReplacer("IPA", "IpA", "IPC", "IpC", "IPF", "IpF", "IPT", "IpT", "FloatingIP", "FloatingIp", "InGB", "InGb")

func pythonName(s string) string { return pythonNames.Replace(s) }

// groupOf returns the resource group that an id names.
func groupOf(id string) string {
	_, rest, _ := strings.Cut(id, "/resourceGroups/")
	group, _, _ := strings.Cut(rest, "/")
	return group
}

// pythonQuery returns a query with Python's names, its string literals as they are: ids in them have the provider's names.
func pythonQuery(query string) string {
	parts := strings.Split(query, "'")
	for i := 0; i < len(parts); i += 2 {
		parts[i] = pythonName(parts[i])
	}
	return strings.Join(parts, "'")
}

// field returns a text of an object, empty where there is none.
func field(r any, name string) string {
	o, _ := r.(object)
	s, _ := o[name].(string)
	return s
}

// list returns the objects in a field of an object.
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
