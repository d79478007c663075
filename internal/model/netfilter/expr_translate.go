package netfilter

import (
	"packetwalk.dev/internal/model/packet"
)

// TranslateTo makes a binding whose address and ports a rule computes (net/netfilter/nft_nat.c, nft_masq.c, nft_redir.c).
type TranslateTo struct {
	packet.Translation // what does not depend on the packet
	// Address gives an address or a range of them; nil to keep it. With WithPort it gives the ports behind it, too.
	Address  Expr
	WithPort bool
	Port     Expr // or gives the ports; nil to keep them
	// EtherType is the protocol of the packets that it translates, in tables that see others too; 0 for all.
	EtherType packet.EtherType
}

// Eval makes the binding, as far as the hook translates. Where a map has nothing for the packet, the rule does not apply; a packet of
// another family goes on as if the statement were not there (nft_nat_inet_eval).
func (t *TranslateTo) Eval(c *Context) Verdict {
	if c.Translate == nil {
		return Verdict{Kind: Undecided, Detail: "a translation outside of nat chains"}
	}
	n := t.Translation
	var spans []Span
	known := yes
	for _, e := range []Expr{t.Address, t.Port} {
		if e == nil {
			continue
		}
		var one truth
		if spans, one = e.value(c, spans); one == no {
			return Verdict{Kind: Break}
		}
		known = known.and(one)
	}
	if !ofEtherType(c.Packet, t.EtherType) {
		return Verdict{}
	}
	if known == maybe || len(spans) != t.fields() {
		return Verdict{Kind: Undecided, Detail: "not known to what: " + t.String()}
	}
	if t.Address != nil {
		ipv6 := c.Packet.IsIPv6()
		n.Low, n.High = spans[0].Low.Address(ipv6), spans[0].High.Address(ipv6)
		spans = spans[1:]
	}
	if len(spans) > 0 {
		n.PortLow, n.PortHigh = uint16(spans[0].Low.Lo), uint16(spans[0].High.Lo)
	}
	return c.Translate(n)
}

// fields returns the number of values that the expressions have to give.
func (t *TranslateTo) fields() int {
	n := 0
	for _, has := range []bool{t.Address != nil, t.WithPort, t.Port != nil} {
		if has {
			n++
		}
	}
	return n
}

// Effect tells that it modifies.
func (t *TranslateTo) Effect() EffectKind { return Modifies }

func (t *TranslateTo) String() string {
	text := "translate the " + side(t.Source) + " to "
	if t.Address != nil {
		text += t.Address.String()
	}
	if t.Port != nil {
		text += " port " + t.Port.String()
	}
	return text
}

func (t *TranslateTo) tracking() truth { return yes }

// RejectWith refuses the packet with an answer that depends on its family (nft's icmpx).
type RejectWith struct {
	IPv4, IPv6 string // as [Verdict.Detail] has them
}

// Eval refuses the packet.
func (r *RejectWith) Eval(c *Context) Verdict {
	if c.Packet.Destination.Is6() {
		return Verdict{Kind: Reject, Detail: r.IPv6}
	}
	return Verdict{Kind: Reject, Detail: r.IPv4}
}

// Effect tells that it decides.
func (r *RejectWith) Effect() EffectKind { return Decides }

func (r *RejectWith) String() string { return "reject with " + r.IPv4 + " or " + r.IPv6 }
