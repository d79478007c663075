package netfilter

import (
	"fmt"

	"packetwalk.dev/internal/model/packet"
)

// Translate makes a binding for the packet's connection: SNAT, DNAT, MASQUERADE, REDIRECT, NETMAP.
type Translate struct {
	packet.Translation
}

// Eval makes the binding, as far as the hook translates. A packet of another family than the address goes on as if the statement were not
// there (net/netfilter/nft_nat.c: nft_nat_inet_eval).
func (t *Translate) Eval(c *Context) Verdict {
	if c.Translate == nil {
		return Verdict{Kind: Undecided, Detail: "a translation outside of nat chains"}
	}
	if t.Low.IsValid() && t.Low.Is6() != c.Packet.IsIPv6() {
		return Verdict{}
	}
	n := t.Translation
	if n.Netmap { // NETMAP does not say which end: the hook does (net/netfilter/xt_nat.c, HOOK2MANIP)
		n.Source = c.Hook == Postrouting || c.Hook == Input
	}
	return c.Translate(n)
}

// Effect tells that it modifies.
func (t *Translate) Effect() EffectKind { return Modifies }

func (t *Translate) String() string {
	text := "translate the " + side(t.Source) + " to " + t.target()
	switch {
	case t.FullyRandom:
		text += ", port at random"
	case t.Random:
		text += ", port by random offset"
	}
	if t.Persistent {
		text += ", the same for every connection of a client"
	}
	return text
}

func (t *Translate) target() string {
	var text string
	switch {
	case t.Chosen == "masquerade":
		text = "the address of the outgoing interface"
	case t.Chosen == "redirect":
		text = "this machine"
	case t.Netmap:
		text = fmt.Sprintf("the same host of %s-%s", t.Low, t.High)
	case t.Low.IsValid() && t.Low != t.High:
		text = t.Low.String() + "-" + t.High.String()
	case t.Low.IsValid():
		text = t.Low.String()
	}
	if t.PortLow == 0 && t.PortHigh == 0 {
		return text
	}
	if text != "" {
		text += " "
	}
	if t.PortLow == t.PortHigh {
		return fmt.Sprintf("%sport %d", text, t.PortLow)
	}
	return fmt.Sprintf("%sports %d-%d", text, t.PortLow, t.PortHigh)
}
