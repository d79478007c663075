package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
)

// probeProblems returns what drops the load balancer's probes of back ends, for front ends without a healthy one, by a walk of each probe,
// or why that is unknown.
func probeProblems(ctx context.Context, name string, frontends []lab.Frontend) (problems []string) {
	var down []lab.Frontend
	for _, f := range frontends {
		if len(f.Healthy) == 0 && len(f.Probed) > 0 {
			down = append(down, f)
		}
	}
	if len(down) == 0 {
		return nil
	}
	world, err := openLab(ctx, name)
	if err != nil {
		return []string{fmt.Sprintf("why the load balancer's probes fail is unknown: %v", err)}
	}
	defer func() { _ = world.close() }()
	for _, f := range down {
		for _, machine := range slices.Sorted(maps.Keys(f.Probed)) {
			to := f.Probed[machine]
			result, err := walk.Walk(world, walk.Request{Host: armview.Host, OneWay: true, Packet: packet.Packet{Tuple: packet.Tuple{
				Protocol: packet.TCP, Source: vnet.ProbeSource, Destination: to.Addr(), DestinationPort: packet.Port{Number: to.Port()},
			}, TCPFlags: packet.SYN}})
			probe := fmt.Sprintf("the load balancer's probe of %s at %s", machine, to)
			if err != nil {
				problems = append(problems, fmt.Sprintf("%s: why it fails is unknown: %v", probe, err))
				continue
			}
			if by := explain.Drop(result, owners(world, hostsOf(result))); by != "" {
				problems = append(problems, probe+": "+by)
			}
		}
	}
	slices.Sort(problems)
	return slices.Compact(problems)
}
