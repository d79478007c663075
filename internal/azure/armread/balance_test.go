package armread_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/packet"
)

// balance gives a network random load balancers, NAT gateways and public addresses. They differ in what leaves by what, and in what comes in
// where.
func balance(seed uint64) func(*vnet.Network) {
	return func(n *vnet.Network) {
		r := rand.New(rand.NewPCG(seed, 411))
		coin := func() bool { return r.IntN(2) == 0 }
		one := func(list ...string) string { return list[r.IntN(len(list))] }
		next := netip.MustParseAddr("203.0.113.100")
		public := func() netip.Addr {
			next = next.Next()
			return next
		}
		skus := []string{vnet.SKUStandard, one(vnet.SKUBasic, vnet.SKUStandard)}
		n.LoadBalancers, n.NATGateways, n.PublicIPs = nil, nil, nil
		// Without a group, Azure lets nothing in by a Standard public address.
		n.SecurityGroups = []vnet.SecurityGroup{{Name: "open", Rules: []vnet.SecurityRule{{Name: "in", Priority: 100,
			Direction: vnet.DirectionInbound, Access: vnet.AccessAllow, Protocol: vnet.Any}}}}
		for i := range n.VNets {
			for j := range n.VNets[i].Subnets {
				s := &n.VNets[i].Subnets[j]
				s.SecurityGroup = "open"
				if s.Private = r.IntN(3) == 0; r.IntN(4) > 0 {
					continue
				}
				g := vnet.NATGateway{Name: fmt.Sprintf("gw-%d-%d", i, j), IdleTimeoutMinutes: 4}
				for k := range r.IntN(3) {
					g.PublicIPs = append(g.PublicIPs, fmt.Sprintf("%s-ip%d", g.Name, k))
					n.PublicIPs = append(n.PublicIPs, vnet.PublicIP{Name: g.PublicIPs[k], Address: public()})
				}
				n.NATGateways, s.NATGateway, skus[1] = append(n.NATGateways, g), g.Name, vnet.SKUStandard
			}
		}
		for i := range n.NICs {
			c := &n.NICs[i].IPConfigs[0]
			n.NICs[i].SecurityGroup = "open"
			if c.PublicIP = ""; r.IntN(5) == 0 {
				c.PublicIP = "own-" + n.NICs[i].Name
				n.PublicIPs = append(n.PublicIPs, vnet.PublicIP{Name: c.PublicIP, Address: public()})
			}
		}
		for i, sku := range skus {
			lb := vnet.LoadBalancer{Name: fmt.Sprintf("lb%d", i), SKU: sku}
			var pools, fronts []string
			for k := range 3 {
				pool := vnet.BackendPool{Name: fmt.Sprintf("pool%d", k)}
				for m, nic := range n.NICs {
					if m == 0 && k == 0 || r.IntN(3) == 0 {
						pool.Members = append(pool.Members, vnet.IPConfigRef{NIC: nic.Name, IPConfig: nic.Primary().Name})
					}
				}
				lb.BackendPools, pools = append(lb.BackendPools, pool), append(pools, pool.Name)
				f := vnet.Frontend{Name: fmt.Sprintf("front%d%d", i, k), Address: public()}
				lb.Frontends, fronts = append(lb.Frontends, f), append(fronts, f.Name)
				for _, protocol := range []string{vnet.ProtocolTCP, vnet.ProtocolUDP} {
					for _, port := range []uint16{80, 81} {
						rule := vnet.Rule{Name: fmt.Sprintf("%s-%s-%d", f.Name, protocol, port), Frontend: f.Name, BackendPool: one(pools...),
							Protocol: protocol, FrontendPort: port, BackendPort: port, FloatingIP: coin(), IdleTimeoutMinutes: 4,
							LoadDistribution: one(vnet.DistributionDefault, vnet.DistributionSourceIP, vnet.DistributionSourceIPProtocol), TCPReset: coin(), DisableOutboundSNAT: coin()}
						if !rule.FloatingIP {
							rule.BackendPort += 8000
						}
						if r.IntN(3) == 0 {
							lb.Rules = append(lb.Rules, rule)
						}
					}
				}
			}
			for k := range r.IntN(3) {
				if sku == vnet.SKUBasic {
					break
				}
				rule := vnet.OutboundRule{Name: fmt.Sprintf("out%d", k), BackendPool: one(pools...), Frontends: []string{one(fronts...)},
					Protocol: one("", vnet.ProtocolTCP, vnet.ProtocolUDP), AllocatedOutboundPorts: 8 * r.IntN(9), IdleTimeoutMinutes: 30, TCPReset: coin()}
				if other := one(fronts...); other != rule.Frontends[0] {
					rule.Frontends = append(rule.Frontends, other)
				}
				lb.OutboundRules = append(lb.OutboundRules, rule)
			}
			n.LoadBalancers = append(n.LoadBalancers, lb)
		}
	}
}

// sources returns the public addresses by which a machine's flows of a protocol leave: all that Azure may take, and those of them that the
// lab takes. Nothing of vnet's decides here.
func sources(n vnet.Network, nic vnet.NIC, protocol packet.Protocol) (azure, lab []string) {
	if protocol == packet.ICMP {
		if own, ok := n.PublicIP(nic.Primary().PublicIP); ok {
			if s, _ := n.Subnet(nic.VNet, nic.Subnet); s.NATGateway == "" {
				return []string{own.Address.String()}, []string{own.Address.String()}
			}
		}
		return nil, nil
	}
	s, _ := n.Subnet(nic.VNet, nic.Subnet)
	word := map[packet.Protocol]string{packet.TCP: vnet.ProtocolTCP, packet.UDP: vnet.ProtocolUDP}[protocol]
	if g, ok := n.NATGateway(s.NATGateway); ok {
		for _, name := range g.PublicIPs {
			ip, _ := n.PublicIP(name)
			azure = append(azure, ip.Address.String())
		}
		return azure, azure
	}
	if own, ok := n.PublicIP(nic.Primary().PublicIP); ok {
		return []string{own.Address.String()}, []string{own.Address.String()}
	}
	standard, ruled := false, false
	var exits [][]string // in the order in which the lab asks them
	for _, balancing := range []bool{false, true} {
		for _, lb := range n.LoadBalancers {
			var pools []string
			for _, p := range lb.BackendPools {
				if slices.ContainsFunc(p.Members, func(m vnet.IPConfigRef) bool { return m.NIC == nic.Name }) {
					pools = append(pools, p.Name)
				}
			}
			standard = standard || lb.SKU == vnet.SKUStandard && len(pools) > 0
			if !balancing {
				for _, r := range lb.OutboundRules {
					if slices.Contains(pools, r.BackendPool) {
						if ruled = true; r.Protocol == "" || r.Protocol == word {
							exits = append(exits, addressesOf(lb, r.Frontends))
						}
					}
				}
				continue
			}
			for _, pool := range pools {
				var fronts []string
				for _, f := range lb.Frontends {
					if slices.ContainsFunc(lb.Rules, func(r vnet.Rule) bool {
						return r.Frontend == f.Name && r.BackendPool == pool && !r.DisableOutboundSNAT
					}) {
						ruled = true
						if slices.ContainsFunc(lb.Rules, func(r vnet.Rule) bool {
							return r.Frontend == f.Name && r.BackendPool == pool && !r.DisableOutboundSNAT && (lb.SKU == vnet.SKUBasic || r.Protocol == word)
						}) {
							fronts = append(fronts, f.Name)
						}
					}
				}
				if all := addressesOf(lb, fronts); lb.SKU == vnet.SKUBasic {
					azure = append(azure, all...)
					if len(exits) == 0 {
						lab = append(lab, all...)
						exits = append(exits, nil)
					}
				} else if len(all) > 0 {
					exits = append(exits, all)
				}
			}
		}
		if ruled {
			break
		}
	}
	for i, e := range exits {
		if azure = append(azure, e...); i == 0 && len(e) > 0 {
			lab = append(lab, e[0])
		}
	}
	if !ruled && !standard && !s.Private {
		azure = []string{n.DefaultOutbound.String()}
		return azure, azure
	}
	return unique(azure), unique(lab)
}

// addressesOf returns the public addresses of front ends.
func addressesOf(lb vnet.LoadBalancer, names []string) (all []string) {
	for _, name := range names {
		for _, f := range lb.Frontends {
			if f.Name == name && !f.Internal() {
				all = append(all, f.Address.String())
			}
		}
	}
	return all
}

func unique(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// flow is a flow that is sent in the kernel, with what may be seen of it where it arrives: as [seen] has it.
type flow struct {
	from     string // host
	protocol string // "tcp" or "udp"
	to       netip.AddrPort
	seen     []string
}

// exchange sends flows between the namespaces of a network's machines and hosts, and compares what arrives with what the walks saw.
func exchange(t *testing.T, n vnet.Network, namespaces map[string]*netns.Namespace, flows []flow) {
	t.Helper()
	var arrived sync.Map // what was seen, by the token that a flow carries
	for name, ns := range namespaces {
		for _, lb := range n.LoadBalancers { // a machine takes what a rule with floating IP sends
			for _, f := range lb.Frontends {
				if strings.HasPrefix(name, "node/") || strings.HasPrefix(name, "vm/") {
					if err := ns.Do(exec.Command("ip", "addr", "replace", f.Address.String()+"/32", "dev", "lo").Run); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		report := func(token string, remote, local net.Addr) {
			from, _ := netip.ParseAddrPort(remote.String())
			at := "at " + from.Addr().String()
			if !strings.HasPrefix(name, "internet/") {
				to, _ := netip.ParseAddrPort(local.String())
				at = fmt.Sprintf("%s: %s > :%d", name, from.Addr(), to.Port())
			}
			arrived.Store(token, at)
		}
		for _, port := range []int{80, 81, 82, 8080, 8081} {
			l, err := ns.Listen(t.Context(), "tcp4", fmt.Sprintf("0.0.0.0:%d", port))
			if err != nil {
				t.Fatal(err)
			}
			p, err := ns.ListenPacket(t.Context(), "udp4", fmt.Sprintf("0.0.0.0:%d", port))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close(); p.Close() })
			go func() {
				for c, err := l.Accept(); err == nil; c, err = l.Accept() {
					go func() {
						defer c.Close()
						if token, err := bufio.NewReader(c).ReadString('\n'); err == nil {
							report(token, c.RemoteAddr(), c.LocalAddr())
						}
					}()
				}
			}()
			go func() {
				b := make([]byte, 100)
				for k, from, err := p.ReadFrom(b); err == nil; k, from, err = p.ReadFrom(b) {
					report(string(b[:k]), from, p.LocalAddr())
				}
			}()
		}
	}
	var all sync.WaitGroup
	for i, f := range flows {
		all.Go(func() {
			dropped := slices.Equal(f.seen, []string{"dropped"})
			limit := 10 * time.Second
			if dropped {
				limit = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			token := fmt.Sprintln(i)
			c, err := namespaces[f.from].Dial(ctx, f.protocol, f.to.String())
			if err == nil {
				defer c.Close()
				_, err = c.Write([]byte(token))
			}
			var got any
			for got == nil && err == nil && ctx.Err() == nil {
				got, _ = arrived.Load(token)
				time.Sleep(5 * time.Millisecond)
			}
			if at, ok := got.(string); ok == dropped || ok && !slices.ContainsFunc(f.seen, func(s string) bool { return same(s, at) }) {
				t.Errorf("%s > %s/%s arrived %q (%v), but the walk saw %q", f.from, f.to, f.protocol, at, err, f.seen)
			}
		})
	}
	all.Wait()
	t.Logf("%d flows sent", len(flows))
}

// same reports whether a socket saw what a walk saw: "KIND at HOST: SOURCE > DESTINATION:PORT", or "at SOURCE".
func same(walked, arrived string) bool {
	if walked == arrived {
		return true
	}
	_, walked, _ = strings.Cut(walked, " at ")
	i, j := strings.LastIndex(walked, "> "), strings.LastIndexByte(walked, ':')
	return i >= 0 && walked[:i+2]+walked[j:] == arrived
}
