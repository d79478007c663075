package walk

import (
	"fmt"
	"slices"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// copyUp returns the copy that a promiscuous bridge gives to the host of a frame that it also sends to a port (br_handle_frame_finish);
// false where there is none. The copy of a frame for another station is dropped by IP at once (ip_rcv), and is left out unless rules of the
// bridge's input look at it.
func (t transit) copyUp(b bridge) (transit, bool) {
	if !b.Promiscuous {
		return t, false
	}
	t.steps = nil
	if t.p.Cast == packet.OtherHost && len(t.m.Rules.Hook(netfilter.Bridge, netfilter.Input)) == 0 {
		return t, false
	}
	if t.p.Track.State != 0 && t.forgetsCopies() {
		t.p.Track = packet.Track{State: packet.Invalid}
	}
	return t, true
}

// forgetsCopies reports whether the copies that a promiscuous bridge gives to the host have lost their connection
// (net/bridge/br_netfilter_hooks.c, br_nf_local_in, since Linux 6.9: "br_netfilter: skip conntrack input hook for promisc packets").
func (t *transit) forgetsCopies() bool {
	since, known := t.m.FIB.KernelSince(6, 9)
	if !known {
		t.m.assume("kernel release unknown; assuming copies from a promiscuous bridge have no connection, as since Linux 6.9")
	}
	return since || !known
}

// withCopy returns the passage of a frame of which a copy goes through the host before the frame goes on. Where the frame has ended and the
// copy gets on, the copy is the packet from there.
func (p passage) withCopy(c transit, b bridge) passage {
	c.before = p.before + len(p.steps)
	way, err := runStages(c, func(t transit) passage { return t.passUp(b) })
	if err != nil {
		return passage{err: err}
	}
	why := b.Name + " is promiscuous: a copy goes up to the host"
	if p.end != nil && p.end.Kind == Dropped && way.end.Kind != Dropped {
		ended := len(p.steps) - 1
		on := p.steps[ended]
		on.Stage, on.Bridge, on.Why = Bridged, &BridgeStep{Bridge: b.Name, Ports: []string{b.Name}}, fmt.Sprintf("%s; %s", p.end.Why, why)
		steps := slices.Concat(p.steps[:ended], []Step{on}, way.steps)
		p.transit, p.end = way.last, &way.end
		p.steps = steps
		return p
	}
	p.steps = append(p.steps, c.record(Step{Stage: Copy, Copied: &CopyPath{Steps: way.steps, End: way.end}, Why: why}))
	return p
}

// remembersCopies reports whether a copy of a flooded frame may change what the others meet: they share the connection and the host's lists.
func (t *transit) remembersCopies() bool {
	return t.bridge != nil && t.m.Rules.Remembers(family(&t.p))
}

// flood is a frame that a bridge sends out of several ports. It came in by one, or with "" is the host's own.
type flood struct {
	frame  transit
	bridge bridge
	in     string
	ports  []string
}

// copies takes the copies for some of the ports through the hooks and out of their ports, one after the other (br_flood). What becomes of
// them there is not walked.
func (t *transit) copies(f *flood) {
	for _, port := range f.ports {
		c := f.frame
		c.steps, c.before = nil, t.before+len(t.steps)
		way := c.bridgeTo(f.bridge, f.in, port)
		end := way.end
		if end == nil {
			end = way.deviceHook(port, netfilter.Egress)
		}
		if end == nil {
			end = way.transit.end(Dropped, "no station there takes it")
		}
		path := CopyPath{Steps: way.steps, End: *end}
		t.steps = append(t.steps, c.record(Step{Stage: Copy, Copied: &path, Why: "a copy goes out of port " + port}))
	}
}

// egress runs the chains at the link by which a packet leaves. The rest of the copies of a flooded frame follow it.
func (t *transit) egress(link string) *End {
	end := t.deviceHook(link, netfilter.Egress)
	if f := t.others; f != nil {
		t.others = nil
		t.copies(f)
	}
	return end
}
