package explain

import (
	"strings"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
)

// Live holds what the kernel showed of the packet when it was really sent. The conclusion rests on it where the walk does not know what
// becomes of the packet, or predicts something else.
type Live struct {
	// Parted is the host where walk and kernel part, "" where they agree; with Back on the reply's way.
	Parted string
	Back   bool
	// Receiver is the host that was seen to get the packet, "" where none was, and Received the packet as it came there.
	Receiver string
	Received packet.Tuple
	// Disguise says which programs may show the receiving process another packet than Received; "" for none.
	Disguise string
	// Source is the end of the way on which walk and kernel agree, with the ports that were seen in place of those that the kernel may
	// choose.
	Source *walk.End
	// Missed are the hosts that may get the packet, were watched, and did not get it.
	Missed []string
	Answer string // what the sender learnt, in words: "the connection was established"
}

// decides reports whether the conclusion is about what the kernel showed, in place of the walk's.
func (l *Live) decides(o *walk.Outcome) bool {
	return l != nil && (l.Parted != "" || o.End.Kind == walk.Undecided)
}

// requestHolds reports whether walk and kernel agree on the request, and part on the reply's way.
func (l *Live) requestHolds(o *walk.Outcome) bool {
	receiver := ""
	if o.End.Kind == walk.Delivered {
		receiver = o.End.Host
	}
	return l.Parted != "" && l.Back && o.End.Kind != walk.Undecided && l.Receiver == receiver
}

// source returns an end's packet as the kernel showed it: with the port that it chose, and the address where the walk knows none.
func (l *Live) source(end *walk.End) packet.Tuple {
	t := end.Packet.Tuple
	if l == nil || l.Source == nil || l.Source.Host != end.Host || l.Source.Kind != end.Kind {
		return t
	}
	seen := l.Source.Packet.Tuple
	low, high := t.SourcePort.Span()
	if port := seen.SourcePort; (seen.Source == t.Source || !known(t.Source)) && port.Known() && low <= port.Number && port.Number <= high {
		t.Source, t.SourcePort = seen.Source, port
	}
	return t
}

// shown concludes from what the kernel showed. It has no more of the walk's than both agree on.
func (s *explanation) shown() summary {
	l := s.live
	parted := ""
	if l.Parted != "" {
		parted = "walk and kernel part on " + hostName(l.Parted)
	}
	if l.requestHolds(s.outcome) {
		a := s.conclusion()
		a.conditions = a.before(afterRequest)
		a.add(afterReply, "what becomes of the reply is unknown: %s; %s", parted, l.Answer)
		return a
	}
	var a summary
	switch {
	case l.Receiver != "":
		a.sentence = "the receiver saw " + l.Received.SourceEnd() + " (" + hostName(l.Receiver) + ")"
		if l.Disguise != "" {
			a.sentence = "the kernel of " + hostName(l.Receiver) + " saw " + l.Received.SourceEnd() + disguised(l.Disguise)
		}
		if parted == "" {
			a.add(afterRequest, "how it got there is unknown: %s", s.ended())
		} else {
			a.add(afterRequest, "why is unknown: %s", parted)
		}
	case parted != "":
		a.sentence = "it is unknown what the destination sees: " + parted
	default:
		a = s.conclusion()
		a.conditions = a.before(afterRequest)
	}
	if l.Receiver == "" && len(l.Missed) > 0 {
		a.add(afterRequest, "it was not seen to arrive at %s", strings.Join(hostNames(l.Missed), ", "))
	}
	a.add(afterReply, "%s", l.Answer)
	return a
}

// disguised says that it is unknown what a process sees of a packet, and why; "" without a reason.
func disguised(why string) string {
	if why == "" {
		return ""
	}
	return "; what its program sees is unknown: " + why
}

func hostNames(hosts []string) []string {
	names := make([]string, len(hosts))
	for i, h := range hosts {
		names[i] = hostName(h)
	}
	return names
}
