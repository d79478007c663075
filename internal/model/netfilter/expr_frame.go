package netfilter

import (
	"packetwalk.dev/internal/model/packet"
)

// SetFrame sets an address of the frame (ebtables' snat and dnat; net/bridge/netfilter/ebt_snat.c, ebt_dnat.c).
type SetFrame struct {
	Source bool // otherwise the destination
	MAC    packet.MAC
	ARP    bool // the sender's address inside of ARP packets, too (--snat-arp)
}

// Eval sets the address. With the destination the frame's cast changes, except for a frame that this machine sends.
func (s *SetFrame) Eval(c *Context) Verdict {
	p := c.Packet
	if s.Source {
		p.Frame.Source = s.MAC
		if s.ARP && p.Frame.ARP != nil {
			arp := *p.Frame.ARP
			arp.SenderMAC = s.MAC
			p.Frame.ARP = &arp
		}
		return Verdict{}
	}
	p.Frame.Destination = s.MAC
	switch {
	case s.MAC == packet.Broadcast:
		p.Cast = packet.BroadcastFrame
	case s.MAC.IsMulticast():
		p.Cast = packet.MulticastFrame
	case c.Hook == Prerouting:
		if bridge, ok := c.bridge(); ok {
			p.Cast = p.Frame.CastFor(bridge.MAC)
		}
	}
	return Verdict{}
}

// bridge returns the bridge of the port by which the frame came in, where its address is known.
func (c *Context) bridge() (Link, bool) {
	port, ok := c.link(c.Packet.In)
	if !ok {
		return Link{}, false
	}
	bridge, ok := c.link(port.Master)
	return bridge, ok && !bridge.MAC.IsZero()
}

// Effect tells that it modifies.
func (s *SetFrame) Effect() EffectKind { return Modifies }

func (s *SetFrame) String() string {
	return "set the frame's " + side(s.Source) + " to " + s.MAC.String() + negated(s.ARP, "", ", in ARP too")
}

// RedirectFrame makes the bridge the frame's destination (ebtables' redirect; ebt_redirect.c).
type RedirectFrame struct{}

// Eval sets the destination. Which address the bridge has the host needs to know.
func (RedirectFrame) Eval(c *Context) Verdict {
	p := c.Packet
	if bridge, ok := c.bridge(); ok {
		p.Frame.Destination, p.Cast = bridge.MAC, packet.Unicast
		return Verdict{}
	}
	return Verdict{Kind: Undecided, Detail: "the bridge's address is not known"}
}

// Effect tells that it modifies.
func (RedirectFrame) Effect() EffectKind { return Modifies }

func (RedirectFrame) String() string { return "make the bridge the frame's destination" }

// ARPReply answers ARP requests with an address (ebtables' arpreply; ebt_arpreply.c). Other packets go on with the next rule.
type ARPReply struct {
	MAC packet.MAC
	// Target is what becomes of the request after that: Drop, unless the rule says otherwise.
	Target VerdictKind
}

// Eval answers: the verdict is Stolen, its detail has the address.
func (a *ARPReply) Eval(c *Context) Verdict {
	if p := c.Packet; p.Frame.ARP == nil || p.Frame.ARP.Reply {
		return Verdict{}
	}
	return Verdict{Kind: Stolen, Detail: "answered with " + a.MAC.String()}
}

// Effect tells that it decides.
func (a *ARPReply) Effect() EffectKind { return Decides }

func (a *ARPReply) String() string { return "answer ARP requests with " + a.MAC.String() }
