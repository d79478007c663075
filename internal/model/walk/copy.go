package walk

import (
	"fmt"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// frameCopy is a copy of a frame: the packet and what the kernel has found out about it.
type frameCopy struct {
	bridge string
	p      packet.Packet
	via    via
}

// copyUp is the copy that a promiscuous bridge gives to the host of a frame that it also sends to a port (br_handle_frame_finish), nil
// where there is none. The copy of a frame for another station is dropped by IP at once (ip_rcv), and is left out unless rules of the
// bridge's input look at it.
func (r *run) copyUp(bridge string) *frameCopy {
	l := r.m.FIB.Link(bridge)
	if l == nil || !l.Promiscuous {
		return nil
	}
	c := &frameCopy{bridge, r.p, r.via}
	c.p.Cast = packet.OtherHost
	if b := r.via.bridge; b != nil && b.toHost {
		c.p.Cast = packet.Unicast
	}
	if c.p.Cast == packet.OtherHost && len(r.m.Rules.Hook(netfilter.Bridge, netfilter.Input)) == 0 {
		return nil
	}
	if c.p.Track.State != 0 && r.forgetsCopies() {
		c.p.Track = packet.Track{State: packet.Invalid}
	}
	return c
}

// forgetsCopies tells whether the copies that a promiscuous bridge gives to the host have lost their connection
// (net/bridge/br_netfilter_hooks.c, br_nf_local_in, since Linux 6.9: "br_netfilter: skip conntrack input hook for promisc packets").
func (r *run) forgetsCopies() bool {
	since, known := r.m.FIB.KernelSince(6, 9)
	if !known {
		r.m.assume("its kernel's release is not known: a copy that a promiscuous bridge gives to the host is taken to have no connection, as since Linux 6.9")
	}
	return since || !known
}

// walkCopy takes the copy through the host while the frame itself waits before it leaves; next is the frame's next stage. Where the frame
// has ended and the copy gets on, the copy is the packet from there.
func (r *run) walkCopy(c *frameCopy, next stage) stage {
	p, via, end, from := r.p, r.via, r.end, len(r.steps)
	r.p, r.via = c.p, c.via
	steps, copyEnd := r.follow(func(r *run) stage { return r.passUp(c.bridge) })
	if r.err != nil {
		return nil
	}
	if next == nil && end != nil && end.Kind == Dropped && copyEnd.Kind != Dropped {
		last := &r.steps[from-1] // what ended the frame
		last.Stage, last.Bridge = Bridged, &BridgeStep{Bridge: c.bridge, Ports: []string{c.bridge}}
		last.Why = fmt.Sprintf("%s; %s is promiscuous: a copy goes up to the host", end.Why, c.bridge)
		return nil
	}
	copied := &Copied{Steps: append([]Step(nil), steps...), End: copyEnd}
	r.steps, r.p, r.via = r.steps[:from], c.p, c.via
	r.step(Step{Stage: Copy, Copied: copied, Why: c.bridge + " is promiscuous: a copy goes up to the host"})
	r.p, r.via, r.end = p, via, end
	return next
}
