package fabric

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
)

// Prober tries one back end once: nil means that it answered as a healthy one.
type Prober func(ctx context.Context, p vnet.Probe, member netip.Addr) error

// Timing of the probes. Zero fields mean Azure's own.
//
// A member is down until its first success, goes down after Probe.Count failures in a row and comes up again at one success:
// Azure's probeThreshold, which would ask for more successes, is 1 unless set ("Azure Load Balancer health probes",
// learn.microsoft.com).
type Timing struct {
	// Interval replaces every probe's IntervalSeconds.
	Interval time.Duration
	// Eager is how often a member that has never been up is probed, and EagerFor for how long (250 ms, for 30 s). So no client
	// has to wait for the first answer of a new back end. When more than 50 are probed so, each is probed less often in proportion,
	// down to the regular interval. Azure has no such thing: its members come up at the first regular probe.
	Eager, EagerFor time.Duration
}

func (t Timing) withDefaults() Timing {
	t.Eager = cmp.Or(t.Eager, 250*time.Millisecond)
	t.EagerFor = cmp.Or(t.EagerFor, 30*time.Second)
	return t
}

func (t Timing) interval(p vnet.Probe) time.Duration {
	return cmp.Or(t.Interval, time.Duration(p.IntervalSeconds)*time.Second)
}

// memberProbe is one member under one probe being tried.
type memberProbe struct {
	probe   vnet.Probe
	address netip.Addr
	cancel  context.CancelFunc
}

// targets returns the members that the network's rules want probed.
func targets(n vnet.Network) map[vnet.ProbeTarget]memberProbe {
	all := map[vnet.ProbeTarget]memberProbe{}
	for _, lb := range n.LoadBalancers {
		for _, r := range lb.Rules {
			for _, p := range lb.Probes {
				if p.Name == r.Probe {
					addTargets(all, n, lb, r.BackendPool, p)
				}
			}
		}
	}
	return all
}

func addTargets(all map[vnet.ProbeTarget]memberProbe, n vnet.Network, lb vnet.LoadBalancer, pool string, p vnet.Probe) {
	for _, bp := range lb.BackendPools {
		if bp.Name != pool {
			continue
		}
		for _, m := range bp.Members {
			nic, _ := n.NIC(m.NIC)
			for _, c := range nic.IPConfigs {
				if c.Name == m.IPConfig {
					all[vnet.ProbeTarget{LoadBalancer: lb.Name, Probe: p.Name, Member: m}] = memberProbe{probe: p, address: c.Address}
				}
			}
		}
	}
}

// forgetStale deletes the health of members that are no longer probed, or whose probe or address changed, and returns the targets of their
// probes. Held: mu.
func (f *Fabric) forgetStale() (stale []vnet.ProbeTarget) {
	want := targets(f.network)
	for t, now := range f.probes {
		if w, ok := want[t]; !ok || w.probe != now.probe || w.address != now.address {
			delete(f.health, t)
			stale = append(stale, t)
		}
	}
	for t := range f.health {
		if _, ok := want[t]; !ok {
			delete(f.health, t)
		}
	}
	return stale
}

// endProbes ends probes and drops what they reported and is not yet applied. A member that returns is probed anew, even before followHealth
// has seen that it left. Held: mu.
func (f *Fabric) endProbes(stale []vnet.ProbeTarget) {
	for _, t := range stale {
		f.probes[t].cancel()
		delete(f.probes, t)
	}
	f.changes = slices.DeleteFunc(f.changes, func(c healthChange) bool { return slices.Contains(stale, c.target) })
}

// wakeProbes makes followHealth look at the network again.
func (f *Fabric) wakeProbes() {
	select {
	case f.dirty <- struct{}{}:
	default:
	}
}

// startProbes starts a probe for each target that has none. Held: mu.
func (f *Fabric) startProbes(ctx context.Context) {
	for t, w := range targets(f.network) {
		if f.probes[t] != nil {
			continue
		}
		p := &memberProbe{probe: w.probe, address: w.address}
		ctx, cancel := context.WithCancel(ctx)
		p.cancel = cancel
		f.probes[t] = p
		up := f.health[t]
		f.done.Go(func() { f.try(ctx, t, p, up) })
	}
}

// try tries one member for as long as it is wanted.
func (f *Fabric) try(ctx context.Context, t vnet.ProbeTarget, p *memberProbe, up bool) {
	probe := f.cfg.Prober
	if probe == nil {
		probe = hostProber(f.Namespace())
	}
	interval := f.cfg.Timing.interval(p.probe)
	if !up && f.tryEagerly(ctx, p, probe, interval) {
		up = true
		f.report(t, p, healthChange{t, true, ""})
	}
	for failures := 0; ctx.Err() == nil; {
		next := time.Now().Add(interval)
		attempt, cancel := context.WithTimeout(ctx, max(interval, time.Second))
		err := probe(attempt, p.probe, p.address)
		cancel()
		if err == nil {
			failures = 0
		} else {
			failures++
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && !up:
			up = true
			f.report(t, p, healthChange{t, true, ""})
		case err != nil && up && failures >= p.probe.Count:
			up = false
			f.report(t, p, healthChange{t, false, err.Error()})
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(next)):
		}
	}
}

// tryEagerly tries a member until it answers, and reports whether it did while that time lasts. An attempt does not wait for the ones before
// it: while a Service has no endpoints its node rejects packets, but sends few ICMP errors a second to one address (icmp_ratelimit), so that
// an attempt may hang for a second.
func (f *Fabric) tryEagerly(ctx context.Context, p *memberProbe, probe Prober, interval time.Duration) bool {
	eager := f.beEager()
	defer eager.end()
	var attempts sync.WaitGroup
	defer attempts.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	up := make(chan struct{}, 1)
	for wait := eager.wait(interval); eager.on; wait = eager.wait(interval) {
		attempts.Go(func() {
			attempt, cancel := context.WithTimeout(ctx, max(wait, min(interval, time.Second)))
			defer cancel()
			if probe(attempt, p.probe, p.address) == nil {
				select {
				case up <- struct{}{}:
				default:
				}
			}
		})
		select {
		case <-ctx.Done():
			return false
		case <-up:
			return true
		case <-time.After(wait):
		}
	}
	return false
}

// eagerProbing is one member's time of being tried often.
type eagerProbing struct {
	f     *Fabric
	on    bool
	until time.Time
}

// manyEager is how many members are tried at Timing.Eager before each is tried less often: 200 probes a second.
const manyEager = 50

func (f *Fabric) beEager() *eagerProbing {
	f.eager.Add(1)
	return &eagerProbing{f, true, time.Now().Add(f.cfg.Timing.EagerFor)}
}

func (e *eagerProbing) end() {
	if e.on {
		e.on = false
		e.f.eager.Add(-1)
	}
}

// wait returns how long after this try the next one comes.
func (e *eagerProbing) wait(interval time.Duration) time.Duration {
	if e.on && time.Now().After(e.until) {
		e.end()
	}
	if !e.on {
		return interval
	}
	slower := max(1, time.Duration(e.f.eager.Load())/manyEager)
	return min(e.f.cfg.Timing.Eager*slower, interval)
}

// report notes a change for followHealth, unless the member is probed otherwise by now.
func (f *Fabric) report(t vnet.ProbeTarget, p *memberProbe, c healthChange) {
	f.mu.Lock()
	if f.probes[t] == p {
		f.changes = append(f.changes, c)
	}
	f.mu.Unlock()
	f.wakeProbes()
}

// followHealth brings changes of health to the kernel, all that there are at once, and then logs them. What the kernel
// refuses is tried again, because back ends that are down must not get flows.
func (f *Fabric) followHealth(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.dirty:
		}
		f.mu.Lock()
		f.startProbes(ctx)
		changes := f.changes
		err := f.applyChanges()
		f.mu.Unlock()
		f.fault("bring the back ends' health to the kernel", err)
		if err != nil {
			time.AfterFunc(time.Second, f.wakeProbes)
			continue
		}
		for _, c := range changes {
			f.cfg.Log.Info("back end changed", "probe", c.target.Probe, "nic", c.target.Member.NIC, "up", c.up, "reason", c.reason)
		}
	}
}

// applyChanges brings the changes of health to the kernel. The health stays what the kernel has: status must not name a back end that gets no
// flow yet, nor leave out one that still gets them. Held: mu.
func (f *Fabric) applyChanges() error {
	if len(f.changes) == 0 {
		return nil
	}
	before := maps.Clone(f.health)
	for _, c := range f.changes {
		f.health[c.target] = c.up
	}
	if err := f.apply(); err != nil {
		f.health = before
		return err
	}
	f.changes = nil
	return nil
}

// hostProber probes as Azure's host does: from 168.63.129.16, Tcp by a connection that is accepted, Http by a GET that is
// answered with 200 and nothing else.
func hostProber(ns *netns.Namespace) Prober {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		return ns.DialFrom(ctx, network, vnet.ProbeSource, addr)
	}
	client := &http.Client{
		Transport:     &http.Transport{DialContext: dial, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context, p vnet.Probe, member netip.Addr) error {
		addr := net.JoinHostPort(member.String(), strconv.Itoa(int(p.Port)))
		if p.Protocol == vnet.ProtocolTCP {
			c, err := dial(ctx, "tcp", addr)
			if err != nil {
				return err
			}
			return c.Close()
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+p.RequestPath, nil)
		if err != nil {
			return err
		}
		req.Header.Set("User-Agent", "Load Balancer Agent")
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("GET http://%s%s: %s", addr, p.RequestPath, resp.Status)
		}
		return nil
	}
}
