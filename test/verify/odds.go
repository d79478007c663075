package verify

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// How many flows meet a random choice, the first of their source ports, and the probability below which what they met is not chance.
const (
	oddsFlows  = 2000
	oddsPorts  = 40000
	unlikelier = 1e-6
	// fewestPorts is how many ports a translation needs to have for so many flows: none of them is in the way of another.
	fewestPorts = 20000
)

// connectionResult is a connection as one host made it, by what does not differ from one flow of an experiment to another: the way that the
// flow took. The zero value is of flows that the host made no connection for.
type connectionResult struct {
	source, destination netip.Addr // of answers
	port                packet.Port
	mark                uint32
}

// Odds is an experiment: many flows that differ in their source ports, and how often each way is predicted in one host.
type Odds struct {
	host, at  string // the sender, and where ways are told apart
	packet    packet.Packet
	originals []packet.Tuple // of the flows at that host; source ports do not count
	ways      map[connectionResult]float64
}

// oddsOf looks for an experiment: a packet of the world on whose way there are random choices, and no others, that lead to connections that
// differ. It is nil where there is none.
func oddsOf(source snapshot.Source, w *World) (*Odds, error) {
	tried := map[string]bool{}
	for _, line := range w.Packets {
		host, p, err := parsePacket(line)
		if err != nil {
			return nil, err
		}
		if p.In != "" {
			continue // it comes out of a wire: no socket sends from its source
		}
		for _, protocol := range []packet.Protocol{packet.UDP, packet.TCP} {
			p := packet.Packet{Tuple: packet.Tuple{
				Protocol: protocol, Source: p.Source, Destination: p.Destination, DestinationPort: p.DestinationPort,
			}}
			key := fmt.Sprint(host, p.Tuple)
			if tried[key] || p.DestinationPort.Number == 0 {
				continue
			}
			tried[key] = true
			if o, err := oddsOfPacket(source, host, p); o != nil || err != nil {
				return o, err
			}
		}
	}
	return nil, nil
}

func oddsOfPacket(source snapshot.Source, host string, p packet.Packet) (*Odds, error) {
	var found *Odds
	p.HasOwner = true // root's
	for _, offset := range []uint16{0, oddsFlows / 2, oddsFlows - 1} {
		p.SourcePort = packet.Exactly(oddsPorts + offset)
		if p.TCPFlags = 0; p.Protocol == packet.TCP {
			p.TCPFlags = packet.SYN
		} else {
			p.Length = datagramLength(&p)
		}
		result, err := walk.Walk(source, walk.Request{Host: host, Packet: p, OneWay: true})
		if err != nil {
			return nil, err
		}
		o := oddsOfResult(result)
		if o == nil || found != nil && !maps.Equal(found.ways, o.ways) {
			return nil, nil // what becomes of a flow hangs on its port
		}
		found = o
	}
	return found, nil
}

// withoutOdds tells of an outcome that many flows do not have as often as one has it: its chance is not known or not chance alone, or it
// is whether a neighbour is found, which is chance once for all flows, or a rule notes where the client is, to send its other flows there.
func withoutOdds(o walk.Outcome) bool {
	for s := range o.Steps() {
		if s.Visit != nil && s.Visit.Rule != nil && slices.ContainsFunc(s.Visit.Rule.Statements, remembers) {
			return true
		}
	}
	unresolved := o.End.Kind == walk.Dropped && o.End.Reject == "icmp-host-unreachable"
	return unresolved || o.Probability == nil ||
		slices.ContainsFunc(o.Choices, func(c walk.Decision) bool { return c.Kind != netfilter.Random })
}

func remembers(s netfilter.Statement) bool {
	switch s := s.(type) {
	case *netfilter.Note:
		return s.Remembers
	case *netfilter.Recent:
		return s.Action != netfilter.RecentCheck
	}
	return false
}

// oddsOfResult returns the experiment that a prediction allows: at the host that tells most ways apart.
func oddsOfResult(result *walk.Result) *Odds {
	if result.More || len(result.Outcomes) < 2 || len(result.Assumed) > 0 || slices.ContainsFunc(result.Outcomes, withoutOdds) {
		return nil
	}
	hosts := map[string]bool{}
	for i := range result.Outcomes {
		for _, s := range result.Outcomes[i].There {
			hosts[s.Host] = true
		}
	}
	var best *Odds
	for _, host := range slices.Sorted(maps.Keys(hosts)) {
		o := &Odds{host: result.Request.Host, at: host, packet: result.Request.Packet, ways: map[connectionResult]float64{}}
		for i := range result.Outcomes {
			way, original, ok := wayOf(&result.Outcomes[i], host)
			if !ok {
				return nil
			}
			p, _ := result.Outcomes[i].Probability.Float64()
			o.ways[way] += p
			if original.Destination.IsValid() && !slices.Contains(o.originals, original) {
				o.originals = append(o.originals, original)
			}
		}
		if len(o.ways) > 1 && (best == nil || len(o.ways) > len(best.ways)) {
			best = o
		}
	}
	return best
}

// wayOf returns the connection that a host makes of a packet. ok is false where it makes several, one that existed before, or one that
// other flows could be in the way of.
func wayOf(o *walk.Outcome, host string) (way connectionResult, original packet.Tuple, ok bool) {
	var flow *packet.Flow
	for i := range o.There {
		s := &o.There[i]
		if s.Packet.Track.State == packet.Established || few(s.Packet.SourcePort) || few(s.Packet.DestinationPort) {
			return way, original, false
		}
		if s.Host != host || s.Flow() == nil || s.Flow().Status&packet.Confirmed == 0 {
			continue
		}
		if flow != nil && flow.Original != s.Flow().Original {
			return way, original, false
		}
		if flow == nil {
			flow = s.Flow()
		}
	}
	if flow == nil { // an error for the reset, should that be rejected, would make the connection after all (nf_conntrack_attach)
		return connectionResult{}, original, o.End.Host != host || o.End.Reject != "tcp-reset"
	}
	original = flow.Original
	original.SourcePort = packet.Port{}
	return connectionResult{flow.Reply.Source, flow.Reply.Destination, flow.Reply.SourcePort, flow.Mark}, original, true
}

// few tells of a port out of a range that the flows of an experiment would use up.
func few(p packet.Port) bool {
	low, high := p.Span()
	return low != high && int(high)-int(low) < fewestPorts
}

// test makes the experiment: text says what was expected and observed, p how probable that is.
func (o *Odds) test(ctx context.Context, b *builtWorld) (p float64, text string, err error) {
	patience := busier
	if o.ways[connectionResult{}] > 0 {
		patience = busy
	}
	seen, err := b.flows(ctx, o.host, &o.packet, o.at, patience)
	if err != nil {
		return 0, "", err
	}
	counted, total := map[connectionResult]float64{}, 0.0
	for _, f := range seen {
		if !o.ofExperiment(&f) {
			continue
		}
		way := connectionResult{f.ReplySource.Addr(), f.ReplyDestination.Addr(), packet.Exactly(f.ReplySource.Port()), f.Mark}
		for w := range o.ways {
			if w.has(&way) {
				way = w
			}
		}
		counted[way]++
		total++
	}
	counted[connectionResult{}] = oddsFlows - total
	for w := range o.ways {
		counted[w] += 0 // also what was never observed
	}
	var cells []cell
	var lines []string
	for w, n := range counted {
		cells = append(cells, cell{o.ways[w] * oddsFlows, n})
		lines = append(lines, fmt.Sprintf("%s: expected %.0f, observed %.0f", w, o.ways[w]*oddsFlows, n))
	}
	slices.Sort(lines)
	p = chiSquare(cells)
	text = fmt.Sprintf("%d flows %s %s at %s (p = %.2g)\n  ", oddsFlows, o.host, o.packet.Tuple, o.at, p)
	return p, text + strings.Join(lines, "\n  "), nil
}

// ofExperiment reports whether a connection is one of the experiment's.
func (o *Odds) ofExperiment(f *netns.Flow) bool {
	return slices.ContainsFunc(o.originals, func(t packet.Tuple) bool {
		to := netip.AddrPortFrom(t.Destination, t.DestinationPort.Number)
		return uint8(t.Protocol) == f.Protocol && t.Source == f.Source.Addr() && to == f.Destination
	})
}

// has reports whether a connection is one of those that went this way.
func (m *connectionResult) has(real *connectionResult) bool {
	low, high := m.port.Span()
	return m.source == real.source && m.destination == real.destination && m.mark == real.mark &&
		low <= real.port.Number && real.port.Number <= high
}

func (m connectionResult) String() string {
	if m == (connectionResult{}) {
		return "no connection"
	}
	return fmt.Sprintf("answered by %s:%s to %s, mark %#x", m.source, m.port, m.destination, m.mark)
}
