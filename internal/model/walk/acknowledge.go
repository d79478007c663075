package walk

import (
	"slices"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// Acknowledge walks the packet with which a TCP client acknowledges the answer of an outcome: the second in its direction, for which the
// nat chains are not asked, so that marks which they set are not on it, and it may take another way. Of other outcomes than those in which
// an answer comes back it is nil.
func Acknowledge(src snapshot.Source, req Request, o *Outcome) (*Result, error) {
	if o.BackEnd == nil || o.BackEnd.Kind != Delivered || o.BackEnd.Packet.TCPFlags != packet.SYN|packet.ACK || req.Forwarded {
		return nil, nil
	}
	req.Packet.Tuple, req.Packet.TCPFlags = o.There[0].Packet.Tuple, packet.ACK
	req.OneWay, req.Pin, req.Flows = true, nil, map[string][]packet.Flow{}
	for s := range o.Steps() {
		if s.Flow() != nil && s.Flow().Status&packet.Confirmed != 0 {
			req.Flows[s.Host] = with(req.Flows[s.Host], *s.Flow())
		}
	}
	return Walk(src, req)
}

// Forgets gives the ends of the acknowledgement of an outcome's answer that end the connection, too, and whether it ends in any case, on
// one and the same host.
func Forgets(src snapshot.Source, req Request, o *Outcome) (ends []End, always bool, err error) {
	next, err := Acknowledge(src, req, o)
	if next == nil {
		return nil, false, err
	}
	always = !next.More
	for i := range next.Outcomes {
		end := next.Outcomes[i].End
		if end.Forgotten {
			ends = append(ends, end)
		}
		always = always && end.Forgotten && end.Host == ends[0].Host
	}
	return ends, always, nil
}

// with returns a list of flows with one as it is now.
func with(flows []packet.Flow, now packet.Flow) []packet.Flow {
	i := slices.IndexFunc(flows, func(f packet.Flow) bool { return f.Original == now.Original && f.Zone == now.Zone })
	if i < 0 {
		return append(flows, now)
	}
	flows[i] = now
	return flows
}
