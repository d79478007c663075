package proof

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

// filters choose, for each host, the packets of every outcome as they come in, are sent or leave, with what they carry. The sender's own
// are chosen without their source: whether the kernel chooses the predicted one is to be seen.
func filters(result *walk.Result, payload []byte) map[string][]witness.PacketFilter {
	all := map[string][]witness.PacketFilter{}
	type key struct {
		host           string
		tuple, carried packet.Tuple
		payload        string
	}
	seen := map[key]bool{}
	add := func(s *walk.Step, back bool) {
		f := filterOf(&s.Packet, payload, back)
		if s.Stage == walk.Sent && s.Host == result.Request.Host && f.SourcePort == result.Request.Packet.SourcePort {
			f.Source, f.Code = netip.Addr{}, 0
		}
		k := key{host: s.Host, tuple: f.Tuple, payload: string(f.Payload)}
		if f.Carried != nil {
			k.carried = *f.Carried
		}
		if !seen[k] {
			seen[k] = true
			all[s.Host] = append(all[s.Host], f)
		}
	}
	way := func(steps []walk.Step, back bool) {
		for i := range steps {
			switch steps[i].Stage {
			case walk.Sent, walk.Received, walk.Transmit, walk.Encapsulated:
				add(&steps[i], back)
			}
		}
	}
	for i := range result.Outcomes {
		way(result.Outcomes[i].There, false)
		way(result.Outcomes[i].Back, true)
	}
	return all
}

// filterOf chooses a packet of the way there or back. Errors are chosen by what they are about. What answers a datagram is the program's
// business.
func filterOf(p *packet.Packet, payload []byte, back bool) witness.PacketFilter {
	switch {
	case p.About != nil:
		return witness.PacketFilter{Tuple: *p.About}
	case p.Tunnel != nil:
		carried := p.Tunnel.Inner.Tuple
		return witness.PacketFilter{Tuple: p.Tuple, Carried: &carried}
	case p.Protocol == packet.UDP && !back, p.Protocol == packet.ICMP, p.Protocol == packet.ICMPv6:
		return witness.PacketFilter{Tuple: p.Tuple, Payload: payload}
	}
	return witness.PacketFilter{Tuple: p.Tuple}
}

// policies lists, for each host, the base chains whose policy decides something.
func policies(result *walk.Result) map[string]map[ChainID]bool {
	all := map[string]map[ChainID]bool{}
	for s := range result.Steps() {
		if v := s.Visit; v == nil || v.Rule != nil || v.Chain.Base == nil {
			continue
		}
		if all[s.Host] == nil {
			all[s.Host] = map[ChainID]bool{}
		}
		all[s.Host][chainID(s.Visit.Chain)] = true
	}
	return all
}

// watcher sees one host.
type watcher struct {
	name string
	Watcher
	optional bool // only the packet's arrival is looked for: a comparison goes on without it
}

// watch opens traces and captures in every host of the prediction that can be had. With others it traces everything of the protocol and
// captures all packets, and in those hosts, too: what the kernel did may be nothing that is predicted. Where more may happen than was
// enumerated, so are errors about whatever packet. The watchers are for closeAll also after an error.
func (a *attempt) watch(ctx context.Context, places Places, result *walk.Result, others []string) ([]*watcher, error) {
	expected, chains := filters(result, a.payload), policies(result)
	arrives := arrivalFilter(a.tuple, a.payload)
	var watchers []*watcher
	at := map[string]Place{}
	for _, host := range union(expected, slices.Concat(others, a.receivers)) {
		optional := expected[host] == nil && !slices.Contains(others, host)
		place, err := places(host)
		if errors.Is(err, fs.ErrNotExist) || optional && err != nil {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", host, err)
		}
		at[host] = place
		watchers = append(watchers, &watcher{name: host, optional: optional})
	}
	kinds := alike(expected)
	err := inParallel(watchers, func(w *watcher) (err error) {
		predicted := witness.Tuples(expected[w.name])
		what := WatchRequest{Captured: expected[w.name], Traced: expected[w.name], About: predicted, Flows: predicted}
		what.Chains = slices.Collect(maps.Keys(chains[w.name]))
		if result.More {
			what.About, what.Flows = append(slices.Clone(predicted), kinds...), toAnywhere(predicted)
		}
		if w.name == result.Request.Host && !result.Request.Forwarded {
			what.Captured = append(slices.Clone(what.Captured), departureFilter(a.tuple, a.payload))
		}
		if slices.Contains(a.receivers, w.name) {
			what.Captured = append(slices.Clone(what.Captured), arrives)
		}
		if w.optional {
			what = WatchRequest{Captured: []witness.PacketFilter{arrives}, Flows: []packet.Tuple{a.tuple}}
		}
		if len(others) > 0 {
			what.Captured, what.Traced, what.Flows = nil, witness.Filters(kinds...), nil
		}
		if w.Watcher, err = at[w.name].Watch(ctx, what, a.activity); w.optional {
			return nil
		}
		return err
	})
	return slices.DeleteFunc(watchers, func(w *watcher) bool { return w.Watcher == nil }), err
}

// toAnywhere returns the tuples without their destinations: there may be more outcomes than were looked at, with other endpoints.
func toAnywhere(tuples []packet.Tuple) (all []packet.Tuple) {
	for _, t := range tuples {
		t.Destination, t.DestinationPort = netip.Addr{}, packet.Port{}
		all = append(all, t)
	}
	return all
}

// alike returns tuples for all packets with the protocol, or the ICMP type, of one of those predicted or of its answer.
func alike(expected map[string][]witness.PacketFilter) (kinds []packet.Tuple) {
	seen := map[packet.Tuple]bool{}
	for _, list := range expected {
		for _, f := range list {
			for _, t := range [...]packet.Tuple{f.Tuple, f.Reply()} {
				kind := packet.Tuple{Protocol: t.Protocol, Type: t.Type, Source: netip.IPv4Unspecified()}
				if t.Source.Is6() || t.Destination.Is6() {
					kind.Source = netip.IPv6Unspecified()
				}
				if !seen[kind] {
					seen[kind] = true
					kinds = append(kinds, kind)
				}
			}
		}
	}
	return kinds
}

// union returns the hosts of both, each once, sorted.
func union(expected map[string][]witness.PacketFilter, others []string) []string {
	hosts := slices.AppendSeq(slices.Clone(others), maps.Keys(expected))
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

func closeAll(watchers []*watcher) {
	_ = inParallel(watchers, func(w *watcher) error { return w.Close() })
}

// inParallel does something for each watcher. The error is the first one, with its host: as a rule the others have the same cause.
func inParallel(watchers []*watcher, do func(*watcher) error) error {
	errs := make([]error, len(watchers))
	var wg sync.WaitGroup
	for i, w := range watchers {
		wg.Go(func() {
			if err := do(w); err != nil {
				errs[i] = fmt.Errorf("%s: %w", w.name, err)
			}
		})
	}
	wg.Wait()
	return cmp.Or(errs...)
}
