package az

import "strings"

// Other returns the lab's resources of the providers that are not the network's, for Azure Resource Manager's interface. It reports false
// for a type that the lab has not.
func Other(l Lab, kind string) (all []any, ok bool, err error) {
	if !strings.EqualFold(kind, kindCluster) {
		return nil, false, nil
	}
	all, err = clusters(l)
	for i := range all {
		all[i] = unflatten(all[i].(object))
	}
	return all, true, err
}

// unflatten gives a resource of az its "properties" back, and their own names.
func unflatten(o object) object {
	r, properties := object{}, object{}
	for k, v := range o {
		switch k {
		case "id", "name", "type", "location", "tags", "sku", "identity":
			r[k] = v
		case "resourceGroup": // az adds it
		default:
			properties[providerName(k)] = provided(v)
		}
	}
	r["properties"] = properties
	return r
}

// providerNames are those that az writes in another way.
var providerNames = map[string]string{"dnsServiceIp": "dnsServiceIP", "enableRbac": "enableRBAC", "vnetSubnetId": "vnetSubnetID"}

func providerName(k string) string {
	if n := providerNames[k]; n != "" {
		return n
	}
	return k
}

func provided(v any) any {
	switch v := v.(type) {
	case []any:
		all := make([]any, len(v))
		for i := range v {
			all[i] = provided(v[i])
		}
		return all
	case object:
		o := object{}
		for k, e := range v {
			if k != "resourceGroup" {
				o[providerName(k)] = provided(e)
			}
		}
		return o
	}
	return v
}
