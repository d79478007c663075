package fabric

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/testing/eventually"
)

// TestProbedAnew: a member that leaves and returns before followHealth sees that it was gone is probed anew.
func TestProbedAnew(t *testing.T) {
	with := vnet.Network{LoadBalancers: []vnet.LoadBalancer{{
		Name: "kubernetes", Rules: []vnet.Rule{{Probe: "tcp", BackendPool: "kubernetes"}},
		Probes:       []vnet.Probe{{Name: "tcp", Protocol: vnet.ProtocolTCP, Port: 31538, IntervalSeconds: 5, Count: 2}},
		BackendPools: []vnet.BackendPool{{Name: "kubernetes", Members: []vnet.IPConfigRef{{NIC: "node", IPConfig: "ipconfig1"}}}},
	}}, NICs: []vnet.NIC{{Name: "node", IPConfigs: []vnet.IPConfig{{Name: "ipconfig1", Address: netip.MustParseAddr("10.13.76.4")}}}}}
	target := vnet.ProbeTarget{LoadBalancer: "kubernetes", Probe: "tcp", Member: vnet.IPConfigRef{NIC: "node", IPConfig: "ipconfig1"}}
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
	setNetwork := func(n vnet.Network) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.network = n
		f.endProbes(f.forgetStale())
		if len(f.health) > 0 || len(f.changes) > 0 {
			t.Errorf("health %v and changes %v of a member that is not probed", f.health, f.changes)
		}
	}
	ended := make(chan struct{})
	waitUp := func() {
		f.mu.Lock()
		f.startProbes(ctx)
		probe := f.probes[target]
		end := probe.cancel
		probe.cancel = func() { end(); close(ended) }
		f.mu.Unlock()
		eventually.Succeeds(t, 30*time.Second, func() error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(f.changes) == 0 {
				return errors.New("not up")
			}
			if f.health[target] {
				t.Error("the member is healthy before the kernel sends to it")
			}
			return nil
		})
	}
	setNetwork(with)
	waitUp()
	setNetwork(vnet.Network{})
	setNetwork(with)
	select {
	case <-ended:
	default:
		t.Error("the first probe goes on")
	}
	waitUp()
}

// TestEagerProbe: a member that has never been up is found up by the next attempt, also while an earlier one hangs.
func TestEagerProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts atomic.Int64
		f, err := New(Config{Log: slog.New(slog.DiscardHandler), Prober: func(ctx context.Context, _ vnet.Probe, _ netip.Addr) error {
			if attempts.Add(1) == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if !f.tryEagerly(t.Context(), &memberProbe{}, f.cfg.Prober, 5*time.Second) {
			t.Fatal("the member is not up")
		}
		if took := time.Since(began); took != f.cfg.Timing.Eager || attempts.Load() != 2 {
			t.Errorf("up after %v and %d attempts, want %v and 2", took, attempts.Load(), f.cfg.Timing.Eager)
		}
	})
}

// TestEagerProbeEnds: a member that never answers is tried often for a while only.
func TestEagerProbeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := New(Config{Log: slog.New(slog.DiscardHandler), Prober: func(context.Context, vnet.Probe, netip.Addr) error { return errors.New("no") }})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if f.tryEagerly(t.Context(), &memberProbe{}, f.cfg.Prober, 5*time.Second) {
			t.Fatal("the member is up")
		}
		if took, want := time.Since(began), f.cfg.Timing.EagerFor; took < want || took > want+time.Second {
			t.Errorf("tried for %v, want %v", took, want)
		}
	})
}
