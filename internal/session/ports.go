package session

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/answer/ports"
	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/model/snapshot"
)

// TranslatingHosts returns the hosts whose connections PortUses counts if the user names none: all but pods and container groups.
func (s *Session) TranslatingHosts() []string {
	return slices.DeleteFunc(s.source.Names(), func(name string) bool {
		return strings.HasPrefix(name, "pod/") || strings.HasPrefix(name, "container-group/")
	})
}

// PortUses counts the source ports in use on hosts, and returns why those of some hosts are unknown, by the host. In a lab it takes the limits
// of Azure's ports from the load balancer and the NAT gateways.
func (s *Session) PortUses(ctx context.Context, hosts []string) (all []ports.Use, unknown map[string]string) {
	unknown = map[string]string{}
	s.Read(ctx, hosts)
	for _, name := range hosts {
		h, err := s.source.Host(name)
		if err != nil {
			unknown[name] = err.Error()
			continue
		}
		for _, reasons := range []map[snapshot.Part]string{h.Unread, h.Missing, h.Partial} {
			if why, ok := reasons[snapshot.Flows]; ok {
				unknown[name] = "connections unknown: " + why
			}
		}
		if name == armview.Host && s.Lab != nil {
			all = append(all, s.azurePortUses(h)...)
		} else {
			all = append(all, ports.Count(h, nil)...)
		}
	}
	ports.Sort(all)
	return all, unknown
}

// azurePortUses counts the ports of a lab's load balancer, of which each node has a share, and of NAT gateways.
func (s *Session) azurePortUses(h *snapshot.Host) []ports.Use {
	shares := s.Lab.Outbound()
	owners := s.OwnersOfAll(s.source, nil)
	share := func(machine string, source netip.Addr) int {
		i := slices.IndexFunc(shares, func(o Outbound) bool { return o.Node == machine && o.Frontends[source] > 0 })
		if i < 0 {
			return 0
		}
		return shares[i].Frontends[source]
	}
	nameOf := func(client netip.Addr) string {
		owner, known := owners.Address(client, 0, 0)
		if !known || owner.Kind == "pod" || owner.Kind == "service" {
			return ""
		}
		return owner.Name
	}
	all := ports.Count(h, func(client, source netip.Addr) bool { return share(nameOf(client), source) > 0 })
	for i := range all {
		u := &all[i]
		u.Limit, u.Reason = 0, "no share of a load balancer or NAT gateway"
		if u.Client.IsValid() {
			u.Limit, u.Reason = share(nameOf(u.Client), u.Source), ""
			continue
		}
		for _, o := range shares {
			if strings.HasPrefix(o.Node, gatewayPrefix) && o.Frontends[u.Source] > 0 {
				u.Limit, u.Reason = o.Frontends[u.Source], ""
			}
		}
	}
	return all
}

// gatewayPrefix starts the name of a NAT gateway in Outbound.Node.
const gatewayPrefix = "NAT gateway "
