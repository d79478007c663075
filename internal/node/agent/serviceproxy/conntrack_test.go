package serviceproxy

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/service"
)

// TestStaleFlowsLater: stale flows that could not be deleted after a sync are a fault, and are looked for again without another one.
func TestStaleFlowsLater(t *testing.T) {
	ns := newTestNamespace(t)
	p, _ := newTestProxy(t, options.BackendNFTables, nil)
	f := &family{common: p.common, Family: service.IPv4, ports: service.NewPorts(), syncer: failingSyncer{}, udp: true,
		triggered: map[service.Key]time.Time{}}
	p.families = []*family{f}
	f.ports.Put(service.Key{Namespace: "default", Service: "dns"}, []service.Port{{Protocol: service.UDP, Port: 53,
		ClusterIP: netip.MustParseAddr("10.0.0.10"),
		Endpoints: []service.Endpoint{{Serving: true, Addr: netip.MustParseAddrPort("10.1.0.1:53")}}}})
	if err := ns.Do(func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // this thread
		var had [2]unix.CapUserData
		if err := unix.Capget(&header, &had[0]); err != nil {
			return err
		}
		less := had
		less[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		if err := unix.Capset(&header, &less[0]); err != nil {
			return err
		}
		f.cleanFlows()
		err := unix.Capset(&header, &had[0])
		if faults := faultsOf(p); !f.udp || !strings.Contains(faults, "stale IPv4 UDP flows") {
			t.Errorf("without the right to: stale flows %v, faults %s", f.udp, faults)
		}
		p.repair(t.Context())
		if f.udp || faultsOf(p) != noFaults {
			t.Errorf("after a look: stale flows %v, faults %v", f.udp, faultsOf(p))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
