package fabric

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/vnet"
)

// PortUses says how far the outbound ports of each machine are used.
func (f *Fabric) PortUses() ([]vnet.PortUse, error) {
	f.mu.Lock()
	ns, n := f.fabric, f.network
	f.mu.Unlock()
	if ns == nil {
		return nil, ErrNotStarted
	}
	flows, err := translated(ns)
	return vnet.PortUses(n, flows), err
}

// translated lists the flows of the fabric that left with another source.
func translated(ns *kernel.Namespace) ([]vnet.TranslatedFlow, error) {
	flows, err := ns.Flows()
	var all []vnet.TranslatedFlow
	for _, f := range flows {
		if f.ReplyDestination != f.Source && (f.Protocol == unix.IPPROTO_TCP || f.Protocol == unix.IPPROTO_UDP) {
			all = append(all, vnet.TranslatedFlow{
				Protocol: f.Protocol, Private: f.Source, Public: f.ReplyDestination, Destination: f.Destination, Ended: f.TCPState == kernel.TCPTimeWait,
			})
		}
	}
	return all, err
}

// lookForSpares is how often lost flows are looked for: a TCP sender tries again after a second, and shall find a port then.
const lookForSpares = 250 * time.Millisecond

// spareLooker keeps the table's spare ports. It looks at all flows only when the kernel has just failed to find a port for some, and for as
// long as there are destinations with few ports left. Without it, or between two looks, the kernel finds one of the last ports by chance.
type spareLooker struct {
	f       *Fabric
	dropped uint64
	until   time.Time // look at all flows until then
	set     bool      // the table may have spares
}

// keepSpares runs until ctx ends.
func (f *Fabric) keepSpares(ctx context.Context) {
	t := time.NewTicker(lookForSpares)
	defer t.Stop()
	l := spareLooker{f: f}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if err := l.look(time.Now()); err != nil && ctx.Err() == nil {
			f.cfg.Log.Warn("look for spare outbound ports", "err", err)
		}
	}
}

func (l *spareLooker) look(now time.Time) error {
	const good = vnet.SpareTimeoutSeconds * time.Second
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	if l.f.fabric == nil {
		return nil
	}
	dropped, err := l.f.fabric.DroppedFlows()
	if err != nil {
		return err
	}
	if dropped != l.dropped {
		l.dropped, l.until = dropped, now.Add(good)
	}
	if now.After(l.until) {
		return nil
	}
	flows, err := translated(l.f.fabric)
	if err != nil {
		return err
	}
	spares := vnet.Spares(l.f.network, flows)
	if len(spares) > 0 {
		l.until = now.Add(good)
	} else if !l.set {
		return nil
	}
	l.set = len(spares) > 0
	return l.f.fabric.ApplyNFT(vnet.SpareScript(spares))
}
