package proof

import (
	"context"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

// mostReceivers bounds the hosts that are watched only because the packet may arrive there.
const mostReceivers = 64

// isUndecided reports whether one of the outcomes ends at something unknown, so that the packet may arrive where no outcome has it.
func isUndecided(result *walk.Result) bool {
	return slices.ContainsFunc(result.Outcomes, func(o walk.Outcome) bool {
		return o.End.Kind == walk.Undecided || o.BackEnd != nil && o.BackEnd.Kind == walk.Undecided
	})
}

// watchable returns those of the receivers that can be watched. Hosts are read for this only where the walk does not know who gets the
// packet.
func watchable(ctx context.Context, subject Subject, result *walk.Result, receivers []string) []string {
	receivers = receivers[:min(len(receivers), mostReceivers)]
	if isUndecided(result) {
		return subject.Read(ctx, receivers)
	}
	return readable(subject.Source(), receivers)
}

// readable returns those of some hosts whose states a source has.
func readable(source snapshot.Source, hosts []string) []string {
	return slices.DeleteFunc(slices.Clone(hosts), func(host string) bool {
		_, err := source.Host(host)
		return err != nil
	})
}

// arrivalFilter chooses the probe's packet whatever addresses and ports it got on the way, and others like it.
func arrivalFilter(sent packet.Tuple, payload []byte) witness.PacketFilter {
	f := witness.PacketFilter{Tuple: packet.Tuple{Protocol: sent.Protocol, Type: sent.Type, Source: netip.IPv4Unspecified()}}
	if sent.Destination.Is6() {
		f.Source = netip.IPv6Unspecified()
	}
	if sent.Protocol != packet.TCP {
		f.Payload = payload
	}
	return f
}

// departureFilter chooses the probe's packet at its sender, wherever that sends it.
func departureFilter(sent packet.Tuple, payload []byte) witness.PacketFilter {
	f := arrivalFilter(sent, payload)
	f.SourcePort = sent.SourcePort
	return f
}

// findReceiver finds the host that the packet was seen to arrive at: the predicted one, or one of the receivers.
func (a *attempt) findReceiver(report *Report, o *Observation) {
	id := identifyAny(o, a.predicted)
	report.Receiver, report.Missed = "", nil
	hosts := a.receivers
	if end := &report.Way.End; end.Kind == walk.Delivered && !slices.Contains(hosts, end.Host) {
		hosts = append([]string{end.Host}, hosts...)
	}
	for _, name := range hosts {
		if o.Hosts[name] == nil {
			continue
		}
		last := lastSeen(o.Hosts[name], id)
		switch {
		case last == nil:
			report.Missed = append(report.Missed, name)
		case report.Receiver == "" && !last.Out: // the host did not send it on
			report.Receiver, report.Received = name, last.Packet.Tuple
		}
	}
	if id.request.Protocol == packet.TCP && !id.hasSeq {
		report.Missed = nil // it cannot be told there: it was not seen at its sender
	}
}

// lastSeen returns the packet as a host's capture shows it last; nil where it does not.
func lastSeen(h *Host, id *identity) *witness.CapturedPacket {
	if all := requests(h, id.of); len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}
