package endpoint

import (
	"net/netip"
	"slices"
	"testing"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// TestReceivers: the hosts that may get a packet are the endpoints of its Service, or the owner of its destination's address.
func TestReceivers(t *testing.T) {
	w := world1()
	services := w.objects.Services
	for i := range services {
		if services[i].Name == "web" {
			services[i].Ports = []snapshot.ServicePort{{Protocol: packet.TCP, Port: 8080, NodePort: 30080, Endpoints: []netip.AddrPort{
				netip.MustParseAddrPort("10.13.76.4:8080"), // of a pod in its node's network
				netip.MustParseAddrPort("10.13.76.7:8080"), netip.MustParseAddrPort("10.13.76.9:8080"),
			}}}
		}
	}
	for to, want := range map[string][]string{
		"10.13.76.7:80":      {"pod/default/web-1"},
		"10.13.76.9:80":      nil, // its host is not at hand
		"10.13.76.4:22":      {"node/n0"},
		"10.13.1.4:22":       {"vm/testvm"},
		"10.0.0.6:80":        {"pod/default/web-1"},
		"10.0.0.9:8080":      {"pod/default/web-1", "node/n0"},
		"203.0.113.10:8080":  {"pod/default/web-1", "node/n0"},
		"10.13.76.5:30080":   {"pod/default/web-1", "node/n0"},
		"10.0.0.8:8080":      nil, // without endpoints
		"198.51.100.80:8080": {"internet/ifconfig.co"},
		"192.0.2.1:80":       nil,
	} {
		a := netip.MustParseAddrPort(to)
		tuple := packet.Tuple{Protocol: packet.TCP, Destination: a.Addr(), DestinationPort: packet.Exactly(a.Port())}
		if got := Receivers(World{Source: w}, tuple); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", to, got, want)
		}
	}
}
