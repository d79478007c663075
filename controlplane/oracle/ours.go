package oracle

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/service"
)

// ours is our service proxy in a namespace.
type ours struct {
	family service.Family
	syncer *iptables.Syncer
	now    []service.Port
}

// programs runs iptables' programs in a namespace.
type programs struct {
	ns     *netns.Namespace
	prefix string
}

// Restore implements iptables.Applier.
func (p programs) Restore(ctx context.Context, input []byte) error {
	_, err := p.run(ctx, input, p.prefix+"-restore", "-w", "5", "--noflush", "--counters")
	return err
}

// Most implements iptables.Applier: every world's rules are written in steps.
func (p programs) Most(context.Context) int { return 20 }

// Save implements iptables.Applier.
func (p programs) Save(ctx context.Context, table string) ([]byte, error) {
	return p.run(ctx, nil, p.prefix+"-save", "-t", table)
}

func (p programs) run(ctx context.Context, input []byte, name string, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, name, args...)
	var out, errOut bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(input), &out, &errOut
	if err := p.ns.Do(command.Run); err != nil {
		return nil, fmt.Errorf("run %s: %w: %s", name, err, strings.TrimSpace(errOut.String()))
	}
	return out.Bytes(), nil
}

func newPrograms(ns *netns.Namespace, v Settings) programs {
	if v.IPv6 {
		return programs{ns, "ip6tables"}
	}
	return programs{ns, "iptables"}
}

// newOurs starts our proxy. counters reports whether the accounting objects are there, as our agent finds out before it starts.
func newOurs(ns *netns.Namespace, v Settings, counters bool) (*ours, error) {
	c, err := configOf(ns, v)
	if err != nil {
		return nil, err
	}
	c.NFAcct = counters
	o := &ours{family: c.Family}
	o.syncer, err = iptables.NewSyncer(c, newPrograms(ns, v))
	return o, err
}

// configOf returns our configuration that stands for the settings.
func configOf(ns *netns.Namespace, v Settings) (proxy.Config, error) {
	c := proxy.Config{
		Family: service.IPv4, Rules: iptables.RulesCurrent, Detector: proxy.Detector{Interface: v.PodInterface},
		MasqueradeBit: v.MasqueradeBit, MasqueradeAll: v.MasqueradeAll, NodeIP: netip.MustParseAddr(v.NodeIP), TCPLiberal: v.TCPLiberal,
	}
	if v.IPv6 {
		c.Family = service.IPv6
	}
	if v.ClusterCIDR != "" {
		c.Detector.CIDR = netip.MustParsePrefix(v.ClusterCIDR)
	}
	wanted, loopback := nodePortRanges(v)
	c.LocalhostNodePorts = v.LocalhostNodePorts && loopback
	var err error
	if wanted != nil {
		c.NodePortIPs, err = addressesIn(ns, wanted)
	}
	return c, err
}

// nodePortRanges returns the ranges of the family, nil for all addresses, and whether they hold IPv4's loopback addresses.
func nodePortRanges(v Settings) (wanted []netip.Prefix, loopback bool) {
	for _, text := range v.NodePortAddresses {
		if p := netip.MustParsePrefix(text); p.Addr().Is4() != v.IPv6 {
			wanted = append(wanted, p)
		}
	}
	if len(wanted) == 0 || slices.ContainsFunc(wanted, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
		return nil, true
	}
	return wanted, slices.ContainsFunc(wanted, netip.MustParsePrefix("127.0.0.0/8").Overlaps)
}

func addressesIn(ns *netns.Namespace, wanted []netip.Prefix) ([]netip.Addr, error) {
	found := []netip.Addr{}
	err := ns.Do(func() error {
		addresses, err := net.InterfaceAddrs()
		for _, a := range addresses {
			ip := netip.MustParsePrefix(a.String()).Addr()
			if slices.ContainsFunc(wanted, func(p netip.Prefix) bool { return p.Contains(ip) }) {
				found = append(found, ip)
			}
		}
		return err
	})
	return found, err
}

// sync gives our proxy all objects in random order: the order must not matter.
func (o *ours) sync(ctx context.Context, to World) error {
	to = to.watched()
	services := make([]*corev1.Service, 0, len(to.Services))
	for _, s := range to.Services {
		services = append(services, s)
	}
	endpointSlices := make([]*discoveryv1.EndpointSlice, 0, len(to.Slices))
	for _, s := range to.Slices {
		endpointSlices = append(endpointSlices, s)
	}
	rand.Shuffle(len(services), func(i, j int) { services[i], services[j] = services[j], services[i] })
	rand.Shuffle(len(endpointSlices), func(i, j int) { endpointSlices[i], endpointSlices[j] = endpointSlices[j], endpointSlices[i] })
	o.now = service.Build(o.family, service.Node{Name: NodeName, Zone: to.Zone}, services, endpointSlices)
	return o.write(ctx)
}

func (o *ours) write(ctx context.Context) error {
	result, err := o.syncer.Sync(ctx, o.now)
	if err == nil {
		err = result.CleanupErr
	}
	if err != nil {
		return fmt.Errorf("ours cannot load its rules: %w", err)
	}
	return nil
}

// rewrite makes a full sync.
func (o *ours) rewrite(ctx context.Context) error {
	o.syncer.ForceFull()
	return o.write(ctx)
}

// repair looks for rules that are not as they were written: there are none.
func (o *ours) repair(ctx context.Context) error {
	names, err := o.syncer.Repair(ctx)
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("our proxy repairs unchanged rules: %v", names)
	}
	return err
}
