package oracle

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/node/service"
)

// client is one whom a service port with session affinity remembers.
type client struct {
	port     *service.Port
	address  netip.Addr
	endpoint netip.AddrPort
}

// clients are those of packets to service ports with session affinity, each with one of its endpoints, and those packets.
func clients(all []probe, ports *service.Ports) (known []client, to []probe) {
	seen := map[string]bool{}
	for i := range all {
		p := &all[i]
		of := ports.Of(service.Key{Namespace: p.owner.Namespace, Service: p.owner.Service})
		at := slices.IndexFunc(of, func(s service.Port) bool { return s.Name == p.owner && string(s.Protocol) == string(p.protocol) })
		if at < 0 || of[at].AffinitySeconds == 0 {
			continue
		}
		endpoints := slices.Concat(of[at].ForCluster, of[at].ForLocal)
		if len(endpoints) == 0 {
			continue
		}
		to = append(to, *p)
		if id := fmt.Sprint(p.owner, p.protocol, p.source); !seen[id] {
			seen[id] = true
			chosen := endpoints[p.draw(0)%uint64(len(endpoints))]
			known = append(known, client{&of[at], p.source, chosen.Addr})
		}
	}
	return known, to
}

// rememberUpstream puts a client into the set of its endpoint (pkg/proxy/nftables, newEndpointInfo).
func (c *client) rememberUpstream(sets map[string]*netfilter.Set) error {
	name := fmt.Sprintf("%s/%s__%s/%d", c.port.Namespace+"/"+c.port.Service+"/"+c.port.Protocol.Lower(), c.port.Name.Port,
		strings.ReplaceAll(c.endpoint.Addr().String(), ":", "."), c.endpoint.Port())
	sum := sha256.Sum256([]byte(name))
	begin := "affinity-" + base32.StdEncoding.EncodeToString(sum[:])[:8] + "-"
	for _, set := range sets {
		if strings.HasPrefix(set.Name, begin) {
			set.Elements = append(set.Elements, netfilter.Element{Key: []netfilter.Span{exactly(netfilter.AddressValue(c.address))}})
			return nil
		}
	}
	return fmt.Errorf("upstream has no set %s… of %s", begin, name)
}

// rememberOurs puts a client into the maps of the policies that have its endpoint, as far as they are used.
func (c *client) rememberOurs(sets map[string]*netfilter.Set) {
	for policy, endpoints := range map[string][]service.Endpoint{"cluster": c.port.ForCluster, "local": c.port.ForLocal} {
		set := sets[fmt.Sprintf("affinity/%s/%d/%s/%s/%s/%s", policy, c.port.AffinitySeconds, c.port.Namespace, c.port.Service,
			c.port.Protocol.Lower(), c.port.Name.Port)]
		if set == nil || !slices.ContainsFunc(endpoints, func(e service.Endpoint) bool { return e.Addr == c.endpoint }) {
			continue
		}
		set.Elements = append(set.Elements, netfilter.Element{Key: []netfilter.Span{exactly(netfilter.AddressValue(c.address))},
			Data: netfilter.Data{Values: []netfilter.Span{exactly(netfilter.AddressValue(c.endpoint.Addr())),
				exactly(netfilter.Value{Lo: uint64(c.endpoint.Port())})}}})
	}
}

func exactly(v netfilter.Value) netfilter.Span { return netfilter.Span{Low: v, High: v} }
