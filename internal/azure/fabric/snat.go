package fabric

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
)

// PortUses says how far the outbound ports of each machine are used.
func (f *Fabric) PortUses() ([]vnet.PortUse, error) {
	f.mu.Lock()
	ns, n := f.fabric, f.network
	f.mu.Unlock()
	if ns == nil {
		return nil, errNotStarted
	}
	flows, err := translated(ns)
	return vnet.PortUses(n, flows), err
}

// translated lists the flows of the fabric that left with another source.
func translated(ns *netns.Namespace) ([]vnet.TranslatedFlow, error) {
	flows, err := ns.Flows()
	var all []vnet.TranslatedFlow
	for _, f := range flows {
		if f.ReplyDestination != f.Source && (f.Protocol == unix.IPPROTO_TCP || f.Protocol == unix.IPPROTO_UDP) {
			all = append(all, vnet.TranslatedFlow{Protocol: f.Protocol, Private: f.Source, Public: f.ReplyDestination, Destination: f.Destination})
		}
	}
	return all, err
}

// How often spare ports are looked for. A flow that found no port is lost; a TCP sender tries again after a second, and shall find one
// then.
const (
	lookForSpares = 250 * time.Millisecond
	// lookAgain is for when ports are being used up: those who want them at the same time shall not wait in line.
	lookAgain = 20 * time.Millisecond
	// lookAnyway is for when there are many flows, and the kernel has found a port for each.
	lookAnyway = time.Second
)

// sparePorts keeps the table's spare ports. It looks at all flows, which takes the kernel some 10 ms, only when it has just failed to find
// a port for some, when there are so many flows that few ports may be left, and for as long as that is so. Without it the kernel finds one
// of the last ports by chance.
type sparePorts struct {
	f       *Fabric
	dropped uint64
	looked  time.Time
	spares  []vnet.Spare // what the table has
}

// keepSpares runs until ctx ends.
func (f *Fabric) keepSpares(ctx context.Context) {
	l := sparePorts{f: f}
	wait := lookForSpares
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		changed, err := l.refresh(time.Now())
		if ctx.Err() == nil {
			f.fault("look for spare outbound ports", err)
		}
		wait = lookForSpares
		if changed {
			wait = lookAgain
		}
	}
}

// refresh writes the spare ports to the table. changed reports whether they differ from those before.
func (l *sparePorts) refresh(now time.Time) (changed bool, err error) {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	if l.f.fabric == nil {
		return false, nil
	}
	needed, err := l.needed(now)
	if err != nil || !needed {
		return false, err
	}
	l.looked = now
	flows, err := translated(l.f.fabric)
	if err != nil {
		return false, err
	}
	spares := vnet.Spares(l.f.network, flows)
	changed = !slices.Equal(spares, l.spares)
	if len(spares) == 0 && !changed {
		return false, nil
	}
	l.spares = spares
	if err := ruleset.ApplyNFT(l.f.life, l.f.fabric, vnet.SpareScript(spares)); err != nil {
		return false, err
	}
	return changed, l.f.fabric.KeepEnded(towards(spares)...)
}

// towards returns the flows whose destinations are nearly used up.
func towards(spares []vnet.Spare) []netns.FlowFilter {
	var all []netns.FlowFilter
	for _, s := range spares {
		private, destination := netip.PrefixFrom(s.Private, s.Private.BitLen()),
			netip.PrefixFrom(s.Destination.Addr(), s.Destination.Addr().BitLen())
		all = append(all, netns.FlowFilter{Protocol: s.Protocol, Source: private, Destination: destination,
			DestinationPort: s.Destination.Port()})
	}
	return all
}

// needed reports whether it is worth looking at all flows.
func (l *sparePorts) needed(now time.Time) (bool, error) {
	dropped, err := l.f.fabric.DroppedFlows()
	if err != nil {
		return false, err
	}
	lost := dropped != l.dropped
	l.dropped = dropped
	if lost || len(l.spares) > 0 {
		return true, nil
	}
	from := vnet.SparesFrom(l.f.network)
	if from == 0 || now.Sub(l.looked) < lookAnyway {
		return false, nil
	}
	flows, err := l.f.fabric.CountFlows()
	return flows >= from, err
}
