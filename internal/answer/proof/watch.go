package proof

import (
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
)

// tuples lists, for each host, what the packets of every outcome look like when they come in, are sent or leave. The sender's own are
// listed without their source: whether the kernel chooses the predicted one is to be seen.
func tuples(result *walk.Result) map[string][]packet.Tuple {
	all := map[string][]packet.Tuple{}
	seen := map[string]map[packet.Tuple]bool{}
	add := func(s *walk.Step) {
		t := s.Packet.Tuple
		if s.Packet.About != nil {
			t = *s.Packet.About // errors are watched with what they are about
		}
		if s.Stage == walk.Sent && s.Host == result.Request.Host && t.SourcePort == result.Request.Packet.SourcePort {
			t.Source, t.Code = netip.Addr{}, 0
		}
		if seen[s.Host] == nil {
			seen[s.Host] = map[packet.Tuple]bool{}
		}
		if !seen[s.Host][t] {
			seen[s.Host][t] = true
			all[s.Host] = append(all[s.Host], t)
		}
	}
	for s := range result.Steps() {
		switch s.Stage {
		case walk.Sent, walk.Received, walk.Transmit, walk.Encapsulated:
			add(s)
		}
	}
	return all
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

// watcher is what sees one host.
type watcher struct {
	name string
	Watcher
}

// watch opens traces and captures in every host of the prediction that can be had. With others it traces everything of the protocol and
// captures all packets, and in those hosts, too: what the kernel did may be nothing that is predicted. Where more may happen than was
// enumerated, so are errors about whatever packet. The watchers are for closeAll also after an error.
func watch(
	ctx context.Context, places Places, tuples map[string][]packet.Tuple, chains map[string]map[ChainID]bool, others []string, more bool,
	activity chan<- struct{},
) ([]*watcher, error) {
	var watchers []*watcher
	at := map[string]Place{}
	for _, host := range union(tuples, others) {
		place, err := places(host)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", host, err)
		}
		at[host] = place
		watchers = append(watchers, &watcher{name: host})
	}
	kinds := alike(tuples)
	err := inParallel(watchers, func(w *watcher) (err error) {
		predicted := tuples[w.name]
		what := Watching{Captured: predicted, Traced: predicted, About: predicted, Flows: predicted}
		what.Chains = slices.Collect(maps.Keys(chains[w.name]))
		if more {
			what.About, what.Flows = append(slices.Clone(predicted), kinds...), toAnywhere(predicted)
		}
		if len(others) > 0 {
			what.Captured, what.Traced, what.Flows = nil, kinds, nil
		}
		w.Watcher, err = at[w.name].Watch(ctx, what, activity)
		return err
	})
	return slices.DeleteFunc(watchers, func(w *watcher) bool { return w.Watcher == nil }), err
}

// toAnywhere are tuples whose packets may go elsewhere: where there are more outcomes than were looked at, to another endpoint.
func toAnywhere(tuples []packet.Tuple) (all []packet.Tuple) {
	for _, t := range tuples {
		t.Destination, t.DestinationPort = netip.Addr{}, packet.Port{}
		all = append(all, t)
	}
	return all
}

// alike are tuples that all packets have which are of the protocol, or the ICMP type, of one of those predicted or of its answer.
func alike(tuples map[string][]packet.Tuple) (kinds []packet.Tuple) {
	seen := map[packet.Tuple]bool{}
	for _, list := range tuples {
		for _, t := range list {
			for _, t := range [...]packet.Tuple{t, t.Reply()} {
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

// union is the hosts of both, each once, sorted.
func union(tuples map[string][]packet.Tuple, others []string) []string {
	hosts := slices.AppendSeq(slices.Clone(others), maps.Keys(tuples))
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

func closeAll(watchers []*watcher) {
	_ = inParallel(watchers, func(w *watcher) error { return w.Close() })
}

// inParallel does something for each watcher. Errors name the hosts.
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
	return errors.Join(errs...)
}
