package az

import (
	"io"
	"strings"
)

const effectiveRoutesWords = "network nic show-effective-route-table"

// effectiveRoutes returns the routes that the packets of a NIC meet, as the provider gives them: Azure's own and its subnet's route
// table's.
func effectiveRoutes(l Lab, o options, _ io.Writer) (any, error) {
	if _, err := nics.named(l, o); err != nil {
		return nil, err
	}
	value := []any{}
	for _, nic := range l.Network.NICs {
		if !strings.EqualFold(nic.Name, o.name) {
			continue
		}
		s, _ := l.Network.Subnet(nic.VNet, nic.Subnet)
		for _, r := range l.Network.EffectiveRoutes(nic.VNet, s.RouteTable) {
			route := object{"source": "Default", "state": "Active", "addressPrefix": []any{r.Prefix.String()}, "nextHopType": r.NextHopType}
			if r.User != "" {
				route["source"], route["name"] = "User", r.User
			}
			if !r.Active {
				route["state"] = "Invalid"
			}
			hops := []any{}
			if r.NextHop.IsValid() {
				hops = append(hops, r.NextHop.String())
			}
			route["nextHopIpAddress"] = hops
			value = append(value, route)
		}
	}
	return object{"value": value}, nil
}
