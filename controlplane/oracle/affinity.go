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

// client is a client that a service port with session affinity remembers, with one of some endpoints: policies may leave others unused.
type client struct {
	port      *service.Port
	address   netip.Addr
	endpoints []service.Endpoint
}

// clients returns the clients of packets to service ports with session affinity, each with one of its endpoints, and those packets.
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
			chosen := p.draw(0) % uint64(len(endpoints))
			known = append(known, client{&of[at], p.source, slices.Concat(endpoints[chosen:], endpoints[:chosen])})
		}
	}
	return known, to
}

// rememberUpstream puts a client into the set of the first of its endpoints that has one (pkg/proxy/nftables, newEndpointInfo); ok is false
// where none has: no policy leads to them.
func (c *client) rememberUpstream(sets map[string]*netfilter.Set) (endpoint netip.AddrPort, ok bool) {
	for _, e := range c.endpoints {
		name := fmt.Sprintf("%s/%s/%s/%s__%s/%d", c.port.Namespace, c.port.Service, c.port.Protocol.Lower(), c.port.Name.Port,
			strings.ReplaceAll(e.Addr.Addr().String(), ":", "."), e.Addr.Port())
		sum := sha256.Sum256([]byte(name))
		begin := "affinity-" + base32.StdEncoding.EncodeToString(sum[:])[:8] + "-"
		for _, set := range sets {
			if strings.HasPrefix(set.Name, begin) {
				set.Elements = append(set.Elements, netfilter.Element{Key: []netfilter.Span{exactly(netfilter.AddressValue(c.address))}})
				return e.Addr, true
			}
		}
	}
	return endpoint, false
}

// rememberOurs puts a client into the maps of the policies that have the endpoint, as far as they are used, and reports whether
// there is any map of the service port's clients.
func (c *client) rememberOurs(sets map[string]*netfilter.Set, endpoint netip.AddrPort) (maps bool) {
	for policy, endpoints := range map[string][]service.Endpoint{"cluster": c.port.ForCluster, "local": c.port.ForLocal} {
		set := sets[fmt.Sprintf("affinity/%s/%d/%s/%s/%s/%s", policy, c.port.AffinitySeconds, c.port.Namespace, c.port.Service,
			c.port.Protocol.Lower(), c.port.Name.Port)]
		maps = maps || set != nil
		if set == nil || !slices.ContainsFunc(endpoints, func(e service.Endpoint) bool { return e.Addr == endpoint }) {
			continue
		}
		set.Elements = append(set.Elements, netfilter.Element{Key: []netfilter.Span{exactly(netfilter.AddressValue(c.address))},
			Data: netfilter.Data{Values: []netfilter.Span{exactly(netfilter.AddressValue(endpoint.Addr())),
				exactly(netfilter.Value{Lo: uint64(endpoint.Port())})}}})
	}
	return maps
}

func exactly(v netfilter.Value) netfilter.Span { return netfilter.Span{Low: v, High: v} }
