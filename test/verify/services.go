package verify

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
)

// serviceProxy gives a site the table of our service proxy's nftables backend, for the virtual addresses.
func (g *generator) serviceProxy(s *site) {
	for i, v := range g.vips {
		if len(v.backs) == 0 {
			continue
		}
		line := fmt.Sprintf("svc-%d %s %s", i, v.backs[0].protocol, netip.AddrPortFrom(v.address, uint16(v.port)))
		for _, option := range some(g, 0.3, []string{fmt.Sprintf("node=%d", ports[g.IntN(len(ports))]), "affinity=60", "internal=local",
			fmt.Sprintf("external=%s", addressIn(99, 1+i, v.address.Is6()))}) {
			line += " " + option
		}
		seen := map[netip.AddrPort]bool{}
		for _, e := range v.backs {
			end := netip.AddrPortFrom(e.address, uint16(e.port))
			if !seen[end] && g.chance(0.9) {
				line += " " + pick(g, []string{"local", "remote"}) + "=" + end.String()
			}
			seen[end] = true
		}
		s.Add("services", "%s", line)
	}
}

// writeServices writes the tables of a node that has services: a line each with a name, a protocol and an address with its port, then what
// service.Port has beside.
func writeServices(ctx context.Context, ns *netns.Namespace, lines []string) error {
	all := map[service.Family]map[service.Key][]service.Port{service.IPv4: {}, service.IPv6: {}}
	for _, line := range lines {
		p, err := parseService(line)
		if err != nil {
			return err
		}
		family := service.IPv4
		if p.ClusterIP.Is6() {
			family = service.IPv6
		}
		key := service.Key{Namespace: p.Namespace, Service: p.Service}
		all[family][key] = append(all[family][key], p)
	}
	for family, ports := range all {
		if len(ports) == 0 {
			continue
		}
		of := service.NewPorts()
		for key, list := range ports {
			of.Put(key, list)
		}
		config := proxy.Config{Family: family, MasqueradeBit: 14, MasqueradeAll: len(lines)%2 == 0}
		if _, err := nftables.NewSyncer(config, nftables.NewRules(&ruleset.NFTables{NetNS: ns.FD()})).Sync(ctx, of, nil); err != nil {
			return err
		}
	}
	return nil
}

func parseService(line string) (p service.Port, err error) {
	f := strings.Fields(line)
	if len(f) < 3 {
		return p, fmt.Errorf("service %q: want NAME PROTOCOL ADDRESS:PORT and options", line)
	}
	at, err := netip.ParseAddrPort(f[2])
	p.Name, p.Protocol = service.Name{Namespace: "verify", Service: f[0]}, service.Protocol(strings.ToUpper(f[1]))
	p.ClusterIP, p.Port = at.Addr(), at.Port()
	for _, option := range f[3:] {
		if err != nil {
			break
		}
		word, value, _ := strings.Cut(option, "=")
		switch word {
		case "node":
			var n uint64
			n, err = strconv.ParseUint(value, 10, 16)
			p.NodePort = uint16(n)
		case "affinity":
			p.AffinitySeconds, err = strconv.Atoi(value)
		case "internal":
			p.InternalPolicy = service.Local
		case "external":
			var a netip.Addr
			a, err = netip.ParseAddr(value)
			p.ExternalIPs, p.ExternalPolicy = append(p.ExternalIPs, a), service.Policy(a.As16()[15]%2)
		case "local", "remote":
			var end netip.AddrPort
			end, err = netip.ParseAddrPort(value)
			e := service.Endpoint{Addr: end, Local: word == "local", Ready: true, Serving: true}
			if p.ForCluster = append(p.ForCluster, e); e.Local {
				p.ForLocal = append(p.ForLocal, e)
			}
		default:
			err = fmt.Errorf("%q: want node, affinity, internal, external, local or remote", word)
		}
	}
	if err != nil {
		err = fmt.Errorf("service %q: %w", line, err)
	}
	return p, err
}
