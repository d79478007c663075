package walk_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/testing/capturetest"
)

// TestWithout: from a capture in which a dump failed in any way, or a host was not read, no walk concludes another thing than from the whole
// one without saying that something is not known.
func TestWithout(t *testing.T) {
	whole := capturetest.Open(t, "../../capture/testdata/world-a.pwcap.tar.gz").Complete()
	source := capture.NewSource(whole.Origin())
	packets := worldAPackets(t, source)
	want := make([]outcomes, len(packets))
	for i := range packets {
		var sure bool
		if want[i], sure = conclude(t, source, packets[i]); !sure {
			t.Errorf("%s: the whole capture does not suffice", packets[i].Packet.Tuple)
		}
	}
	differ := map[string]bool{}
	check := func(t *testing.T, without string, o capture.Origin) {
		source := capture.NewSource(o)
		for i := range packets {
			if _, there := o.Hosts[packets[i].Host]; !there {
				continue
			}
			got, sure := conclude(t, source, packets[i])
			same := maps.Equal(got, want[i])
			if sure && !same {
				t.Errorf("from %s: %s: got %v\nwant %v, or that something is not known", packets[i].Host, packets[i].Packet.Tuple, got, want[i])
			}
			differ[without] = differ[without] || !same
		}
	}
	for way, fail := range map[string]func(*capture.Output){
		"error": func(o *capture.Output) { *o = capture.Output{Error: "nft was killed by SIGSEGV"} },
		"half": func(o *capture.Output) {
			o.Error, o.Data = "it did not end within 2m0s and was killed", o.Data[:len(o.Data)/2]
		},
		"unreadable": func(o *capture.Output) { o.Data = []byte("Segmentation fault\n") },
	} {
		for _, row := range capture.Dumps {
			t.Run(row.File+" "+way, func(t *testing.T) {
				o := whole.Origin()
				fetch := o.Fetch
				o.Fetch = func(name string) (*capture.Raw, error) {
					raw, err := fetch(name)
					if err != nil {
						return nil, err
					}
					changed := *raw
					changed.Outputs = maps.Clone(raw.Outputs)
					out := raw.Outputs[row.File]
					fail(&out)
					changed.Outputs[row.File] = out
					return &changed, nil
				}
				check(t, row.File, o)
			})
		}
	}
	for _, raw := range whole.Hosts {
		t.Run(raw.Name, func(t *testing.T) {
			o := whole.Origin()
			o.Hosts = maps.Clone(o.Hosts)
			delete(o.Hosts, raw.Name)
			check(t, raw.Name, o)
		})
	}
	for _, without := range []string{"ip-route.json", "iptables-save.txt", capture.WiresFile, capture.ListenersFile} {
		if !differ[without] {
			t.Errorf("without %s, all outcomes are the same: does the test see it?", without)
		}
	}
}

// outcomes are how often a request and its reply end so.
type outcomes map[string]int

// conclude walks a packet. The conclusion is sure where all outcomes say how it ends, and none met anything that is not known.
func conclude(t *testing.T, source *capture.Lazy, r walk.Request) (got outcomes, sure bool) {
	t.Helper()
	result, err := walk.Walk(source, r)
	if err != nil {
		t.Fatal(err)
	}
	got, sure = outcomes{}, true
	for i := range result.Outcomes {
		o := &result.Outcomes[i]
		there := fmt.Sprint(o.End.Kind, " ", o.End.Host, " ", o.End.Packet.Tuple, " ", o.End.Refused)
		got[there]++
		sure = sure && len(o.Unshown) == 0 && o.End.Kind != walk.Undecided && o.End.Kind != walk.Left &&
			!slices.ContainsFunc(o.Choices, func(c walk.Decision) bool { return c.Kind == netfilter.Unknown })
	}
	return got, sure
}

// worldAPackets go from each host to each other's address, and to the services.
func worldAPackets(t *testing.T, source *capture.Lazy) []walk.Request {
	t.Helper()
	var to []netip.AddrPort
	for _, s := range source.Objects().Services {
		for _, p := range s.Ports {
			for _, a := range slices.Concat(s.ClusterIPs, s.External) {
				to = append(to, netip.AddrPortFrom(a, p.Port))
			}
		}
	}
	for _, p := range source.Objects().Pods {
		for _, a := range p.IPs {
			to = append(to, netip.AddrPortFrom(a, 80), netip.AddrPortFrom(a, 81)) // nothing listens on 81
		}
	}
	var all []walk.Request
	for _, name := range source.Names() {
		h, err := source.Host(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, end := range to {
			p := packet.Packet{Tuple: packet.Tuple{Protocol: packet.TCP, Destination: end.Addr(), DestinationPort: packet.Exactly(end.Port()),
				SourcePort: packet.Exactly(40000)}, TTL: 64, TCPFlags: packet.SYN}
			for _, a := range h.FIB.Addresses {
				if a.Scope == "global" && a.Prefix.Addr().Is4() == end.Addr().Is4() && !p.Source.IsValid() {
					p.Source = a.Prefix.Addr()
				}
			}
			if p.Source.IsValid() {
				all = append(all, walk.Request{Host: name, Packet: p, OneWay: true})
			}
		}
	}
	const few = 40
	rand.New(rand.NewPCG(1, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(few, len(all))]
}
