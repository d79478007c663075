package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/azure/vnet"
)

// BenchmarkSecurityGroups measures, in turns and in one run, flows that begin from the internet to a machine and inside the network:
// without any group, with empty ones, with a hundred Services' rules, and with a rule that makes flows inside tracked. It reports the
// medians of the ratios to the first of the same turn. Turns are short, so that a machine that is busy disturbs all alike: use -benchtime
// 100x or more.
func BenchmarkSecurityGroups(b *testing.B) {
	w := newWorld(b, 2, 2)
	w.update(func(n *vnet.Network) error {
		n.PublicIPs = []vnet.PublicIP{{Name: "pip", Address: netip.MustParseAddr("203.0.113.3")}}
		n.NICs[2].IPConfigs[0].PublicIP = "pip"
		return nil
	})
	in := vnet.SecurityRule{Name: "in", Priority: 4096, Direction: vnet.DirectionInbound, Access: vnet.AccessAllow, Protocol: vnet.ProtocolTCP,
		Sources: []string{vnet.TagInternet}}
	deny := vnet.SecurityRule{Name: "deny", Priority: 100, Direction: vnet.DirectionInbound, Access: vnet.AccessDeny,
		Protocol: vnet.ProtocolUDP}
	var services []vnet.SecurityRule
	for i := range 100 {
		services = append(services, vnet.SecurityRule{
			Name: fmt.Sprintf("a%d-TCP-80-Internet", i), Priority: 500 + i, Direction: vnet.DirectionInbound, Access: vnet.AccessAllow,
			Protocol: vnet.ProtocolTCP,
			Sources:  []string{vnet.TagInternet}, Destinations: []string{fmt.Sprintf("203.0.113.%d", 10+i)},
			DestinationPorts: []vnet.PortRange{{First: 80, Last: 80}},
		})
	}
	worlds := []struct {
		name  string
		rules []vnet.SecurityRule
	}{{"without", nil}, {"empty", []vnet.SecurityRule{in}}, {"services", append(services, in)}, {"tracked", []vnet.SecurityRule{deny, in}}}
	ratios := map[string][]float64{}
	for b.Loop() {
		first := map[string]float64{}
		for i, world := range worlds {
			w.update(func(n *vnet.Network) error {
				n.SecurityGroups = []vnet.SecurityGroup{{Name: "g", Rules: world.rules}}
				for k := range n.NICs {
					if n.NICs[k].SecurityGroup = "g"; i == 0 {
						n.NICs[k].SecurityGroup = ""
					}
				}
				return nil
			})
			for what, figure := range map[string]float64{
				"in-flows":     w.flows(b, "client", "203.0.113.3:81"),
				"inside-flows": w.flows(b, "node0", w.address("node1")+":81"),
			} {
				if i == 0 {
					first[what] = figure
				}
				ratios[world.name+"-"+what] = append(ratios[world.name+"-"+what], figure/first[what])
			}
		}
	}
	for name, r := range ratios {
		slices.Sort(r)
		b.ReportMetric(r[len(r)/2], name)
	}
}

// flows is how many flows a second begin, one after the other, and are refused where they end.
func (w *world) flows(b *testing.B, from, to string) float64 {
	b.Helper()
	count := 0
	start := time.Now()
	for time.Since(start) < 50*time.Millisecond {
		c, err := w.ns[from].DialFrom(context.Background(), "tcp", netip.Addr{}, to)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			b.Fatal(c, err)
		}
		count++
	}
	return float64(count) / time.Since(start).Seconds()
}
