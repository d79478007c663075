package fabric

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/testing/eventually"
)

// TestProbedAgain: a member that leaves and comes back before followHealth sees that it was gone is probed from anew.
func TestProbedAgain(t *testing.T) {
	with := vnet.Network{LoadBalancers: []vnet.LoadBalancer{{
		Name: "kubernetes", Rules: []vnet.Rule{{Probe: "tcp", BackendPool: "kubernetes"}},
		Probes:       []vnet.Probe{{Name: "tcp", Protocol: vnet.ProtocolTCP, Port: 31538, IntervalSeconds: 5, Count: 2}},
		BackendPools: []vnet.BackendPool{{Name: "kubernetes", Members: []vnet.IPConfigRef{{NIC: "node", IPConfig: "ipconfig1"}}}},
	}}, NICs: []vnet.NIC{{Name: "node", IPConfigs: []vnet.IPConfig{{Name: "ipconfig1", Address: netip.MustParseAddr("10.13.76.4")}}}}}
	f, err := New(Config{
		Prober: func(context.Context, vnet.Probe, netip.Addr) error { return nil },
		Timing: Timing{Interval: 10 * time.Millisecond, Eager: time.Millisecond}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer f.done.Wait()
	defer cancel()
	become := func(n vnet.Network) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.network = n
		f.keepTargets()
	}
	probe := func() {
		f.mu.Lock()
		f.reconcileProbes(ctx)
		f.mu.Unlock()
		eventually.Succeeds(t, 5*time.Second, func() error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(f.health) != 1 {
				return errors.New("not up")
			}
			return nil
		})
	}
	become(with)
	probe()
	become(vnet.Network{})
	become(with)
	probe()
}
