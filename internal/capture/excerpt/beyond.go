package excerpt

import (
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/capture/pastedtext"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/iptables"
)

// beyond tells by rules which networks are behind which interfaces, where the text shows neither routes nor interfaces. Docker, podman and
// libvirt write it: they masquerade what comes from a bridge's network and leaves by another interface, and accept what enters and leaves a
// network by its bridge.
func (rd *reader) beyond(families ...[]iptables.Table) {
	if len(rd.Host.FIB.Routes)+len(rd.Host.FIB.Links) > 0 {
		return
	}
	var from, to []snapshot.AssumedNetwork
	for r := range pastedtext.Rules(families) {
		switch {
		case masqueradesNetwork(r):
			rd.addBeyond(snapshot.AssumedNetwork{Prefix: r.Source.Prefix, Link: r.Out.Name}, "by MASQUERADE for what leaves it")
		case named(r.Out) && r.In.Not && r.In.Name == r.Out.Name && isPlace(r.Destination) && r.Target.Name == "ACCEPT":
			rd.addBeyond(snapshot.AssumedNetwork{Prefix: r.Destination.Prefix, Link: r.Out.Name}, "by ACCEPT for what comes to it")
		case named(r.In) && isPlace(r.Source) && r.Target.Name == "ACCEPT":
			from = append(from, snapshot.AssumedNetwork{Prefix: r.Source.Prefix, Link: r.In.Name})
		case named(r.Out) && isPlace(r.Destination) && r.Target.Name == "ACCEPT":
			to = append(to, snapshot.AssumedNetwork{Prefix: r.Destination.Prefix, Link: r.Out.Name})
		}
	}
	for _, b := range from {
		if slices.Contains(to, b) {
			rd.addBeyond(b, "by ACCEPT both ways")
		}
	}
}

// masqueradesNetwork tells of -s NETWORK ! -o BRIDGE -j MASQUERADE.
func masqueradesNetwork(r *iptables.Rule) bool {
	return r.Target.Name == "MASQUERADE" && isPlace(r.Source) && r.Out.Not && r.In.Name == "" && !strings.HasSuffix(r.Out.Name, "+")
}

func named(m iptables.NameMatch) bool {
	return m.Name != "" && !m.Not && !strings.HasSuffix(m.Name, "+")
}

func isPlace(m iptables.AddressMatch) bool {
	return m.Prefix.IsValid() && !m.Not && m.Prefix.Bits() > 0
}

// addBeyond records where a network is, unless that is recorded or in the interface's own network.
func (rd *reader) addBeyond(b snapshot.AssumedNetwork, why string) {
	inside := func(known snapshot.AssumedNetwork) bool {
		return known.Prefix.Bits() <= b.Prefix.Bits() && known.Prefix.Contains(b.Prefix.Addr()) && known.Link == b.Link
	}
	if slices.ContainsFunc(rd.Host.Beyond, inside) {
		return
	}
	rd.Host.Beyond = append(rd.Host.Beyond, b)
	alone := " and to no other"
	if b.Prefix.IsSingleIP() {
		alone = ""
	}
	rd.Assume("no routes in the text; assuming %s leads to %s%s, %s", b.Link, addressText(b.Prefix), alone, why)
}

func addressText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}
