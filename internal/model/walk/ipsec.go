package walk

import (
	"fmt"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// ipsec ends the way of a packet that a policy of IPsec in a direction may select: whether it is encrypted then, dropped, or meets a better
// policy first is not walked (xfrm_lookup, xfrm_policy_check). What stays on the host's lo meets none (net.ipv4.conf.lo.disable_xfrm).
func (t *transit) ipsec(direction string) *End {
	p := &t.p
	if p.In == "lo" || p.Out == "lo" {
		return nil
	}
	if end := t.needs(snapshot.IPsec); end != nil {
		return end
	}
	if why := t.m.Missing[snapshot.IPsec]; why != "" {
		t.m.assumeMissing(snapshot.IPsec, fmt.Sprintf("%s unknown (%s); assuming the packet is under none", snapshot.IPsec, why))
	}
	for i := range t.m.IPsec {
		policy := &t.m.IPsec[i]
		holds := func(tuple packet.Tuple) bool {
			return policy.Source.Contains(tuple.Source) && policy.Destination.Contains(tuple.Destination)
		}
		if policy.Direction == direction && (holds(p.Tuple) || direction != "out" && holds(t.onTheWire())) &&
			(policy.Protocol == 0 || policy.Protocol == p.Protocol) && p.Mark&policy.Mask == policy.Mark {
			return t.end(Undecided, fmt.Sprintf("IPsec's policy %s may hold it, and what that does is not walked", policy))
		}
	}
	return nil
}

// onTheWire returns the addresses that a packet came in with, as its connection has them: what came in is asked about by those
// (__xfrm_policy_check: nf_nat_decode_session).
func (t *transit) onTheWire() packet.Tuple {
	switch f := t.p.Track.Flow; {
	case f == nil:
		return t.p.Tuple
	case t.p.Track.Reply:
		return f.Reply
	default:
		return f.Original
	}
}
