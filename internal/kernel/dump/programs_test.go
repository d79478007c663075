package dump_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/dump"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/testing/bpftest"
	"packetwalk.dev/internal/testing/netnstest"
)

// TestProgramsAtSockets: where a program in a pod's control group takes connections elsewhere, as those of Cilium do for services, the walk
// does not say where a packet goes. The kernel shows that the program does it.
func TestProgramsAtSockets(t *testing.T) {
	a, b := netnstest.Pair(t)
	group, path := bpftest.Group(t, "packetwalk-pod")
	bpftest.Start(t, a, group, "sleep", "600") // the pod's
	walkTo := func(to string) *walk.Result {
		t.Helper()
		origin := dump.Origin(t.Context(), map[string]string{"pod/shop/web": a.Path(), "node/n": b.Path()}, "")
		d := netip.MustParseAddrPort(to)
		p := packet.Packet{TCPFlags: packet.SYN}
		p.Tuple = packet.Tuple{Protocol: packet.TCP, Destination: d.Addr(), DestinationPort: packet.Exactly(d.Port())}
		r, err := walk.Walk(capture.NewSource(origin), walk.Request{Host: "pod/shop/web", Packet: p})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := walkTo("10.9.0.9:80"); len(r.Outcomes) != 1 || r.Outcomes[0].End.Kind != walk.Dropped {
		t.Fatalf("without a program: %d outcomes: %+v", len(r.Outcomes), r.Outcomes[0].End)
	}

	bpftest.AttachToGroup(t, group, "service", ebpf.AttachCGroupInet4Connect, bpftest.Redirect(netip.MustParseAddr("10.9.0.9"), netip.MustParseAddrPort("10.9.0.2:8080")))
	r := walkTo("10.9.0.9:80")
	end := r.Outcomes[len(r.Outcomes)-1].End
	if len(r.Outcomes) != 2 || end.Kind != walk.Undecided || !strings.Contains(end.Why, "BPF program service (id ") ||
		!strings.Contains(end.Why, "connect4, control group "+path+")") {
		t.Errorf("with a program: %d outcomes: %+v", len(r.Outcomes), end)
	}
	var listener net.Listener
	if err := b.Do(func() (err error) { listener, err = net.Listen("tcp4", "10.9.0.2:8080"); return err }); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_ = listener.(*net.TCPListener).SetDeadline(time.Now().Add(10 * time.Second))
	bpftest.Start(t, a, group, "bash", "-c", "exec 3<>/dev/tcp/10.9.0.9/80; sleep 1")
	conn, err := listener.Accept()
	if err != nil {
		t.Fatalf("the program did not take the connection to the listener: %v", err)
	}
	conn.Close()
}

// TestAttachedByName: a program of tcx is read with its name.
func TestAttachedByName(t *testing.T) {
	a, _ := netnstest.Pair(t)
	id := bpftest.AttachToLink(t, a, "eth0", "cil_test", ebpf.AttachTCXIngress)
	raw, err := new(dump.Dumper).All(t.Context(), "node/a", a)
	if err != nil {
		t.Fatal(err)
	}
	host := capture.NewLoader("node/a").Load(raw)
	want := (&snapshot.Program{Attach: "tcx", Name: "cil_test", ID: id}).String()
	if l := host.FIB.Link("eth0"); l.Program != want || l.ProgramOut != "" {
		t.Errorf("in %q, out %q, want in %q", l.Program, l.ProgramOut, want)
	}
}
