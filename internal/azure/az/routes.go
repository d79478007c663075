package az

import (
	"strings"

	"packetwalk.dev/internal/azure/vnet"
)

const effectiveRoutesVerb = "show-effective-route-table"

// routeList is the answer to show-effective-route-table, which has a table of its own in az (azure-cli, network/_format.py).
type routeList struct{ routes []vnet.EffectiveRoute }

// effectiveRoutes are the routes that the packets of a NIC meet: Azure's own and its subnet's route table's.
func effectiveRoutes(l Lab, c command, o options) (routeList, error) {
	if _, err := c.run("show", l, o); err != nil {
		return routeList{}, err
	}
	n := l.Network
	for _, nic := range n.NICs {
		if strings.EqualFold(nic.Name, o.name) {
			s, _ := n.Subnet(nic.VNet, nic.Subnet)
			return routeList{n.EffectiveRoutes(nic.VNet, s.RouteTable)}, nil
		}
	}
	return routeList{}, notFound("(ResourceNotFound) no NIC '%s'", o.name)
}

// routeFields are a route as "az" shows it.
func routeFields(r vnet.EffectiveRoute) (source, state, prefix, hopType, hop string) {
	source, state = "Default", "Active"
	if r.User != "" {
		source = "User"
	}
	if !r.Active {
		state = "Invalid"
	}
	if r.NextHop.IsValid() {
		hop = r.NextHop.String()
	}
	return source, state, r.Prefix.String(), r.NextHopType, hop
}

// value is the answer as the provider gives it.
func (l routeList) value() any {
	value := []any{}
	for _, r := range l.routes {
		source, state, prefix, hopType, hop := routeFields(r)
		hops := []any{}
		if hop != "" {
			hops = append(hops, hop)
		}
		o := object{"source": source, "state": state, "addressPrefix": []any{prefix}, "nextHopType": hopType, "nextHopIpAddress": hops}
		if r.User != "" {
			o["name"] = r.User
		}
		value = append(value, o)
	}
	return object{"value": value}
}

func (l routeList) table() string {
	headers := []string{"Source", "State", "Address Prefix", "Next Hop Type", "Next Hop IP"}
	var rows []map[string]string
	for _, r := range l.routes {
		source, state, prefix, hopType, hop := routeFields(r)
		rows = append(rows, map[string]string{"Source": source, "State": state, "Address Prefix": prefix, "Next Hop Type": hopType,
			"Next Hop IP": hop})
	}
	return layOut(headers, rows)
}
