package proof

import (
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/witness"
)

// Connections returns the connections that matter: those that one of the tuples may have begun or answered.
func (w WatchRequest) Connections(all []witness.Flow) []witness.Flow {
	if len(w.Flows) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(f witness.Flow) bool {
		return !slices.ContainsFunc(w.Flows, func(t packet.Tuple) bool {
			return matters(t, f.Protocol, f.Source, f.Destination) || matters(t, f.Protocol, f.ReplySource, f.ReplyDestination)
		})
	})
}

// matters reports whether a tuple may be that of a connection's direction. Addresses tell where there are no ports.
func matters(t packet.Tuple, protocol uint8, source, destination netip.AddrPort) bool {
	address := func(want, a netip.Addr) bool { return !want.IsValid() || want == a }
	port := func(want packet.Port, n uint16) bool {
		low, high := want.Span()
		return want == packet.Port{} || low <= n && n <= high
	}
	if uint8(t.Protocol) != protocol || !address(t.Source, source.Addr()) || !address(t.Destination, destination.Addr()) {
		return false
	}
	return !t.Protocol.HasPorts() || port(t.SourcePort, source.Port()) && port(t.DestinationPort, destination.Port())
}
