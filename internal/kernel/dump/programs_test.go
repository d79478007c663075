package dump_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/dump"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/testing/bpftest"
	"packetwalk.dev/internal/testing/eventually"
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

// TestDisguise: where a program in a pod's control group shows its processes other sources, as those of Cilium do for replies, the walk
// knows from where the packet comes, and not what the process sees. The kernel shows that the two differ.
func TestDisguise(t *testing.T) {
	if file := os.Getenv("PACKETWALK_TEST_SOURCE"); file != "" {
		writeSource(t, file)
		return
	}
	a, b := netnstest.Pair(t)
	group, path := bpftest.Group(t, "packetwalk-pod")
	bpftest.AttachToGroup(t, group, "shows", ebpf.AttachCGroupUDP4Recvmsg, bpftest.Redirect(netip.MustParseAddr("10.9.0.1"), netip.MustParseAddrPort("10.9.9.9:7")))
	file := t.TempDir() + "/source"
	t.Setenv("PACKETWALK_TEST_SOURCE", file)
	bpftest.Start(t, b, group, "/proc/self/exe", "-test.run=^TestDisguise$")
	var conn net.Conn
	if err := a.Do(func() (err error) { conn, err = net.Dial("udp4", "10.9.0.2:5300"); return err }); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	eventually.Succeeds(t, 20*time.Second, func() error {
		_, _ = conn.Write([]byte("x"))
		if seen, err := os.ReadFile(file); err != nil || string(seen) != "10.9.9.9:7" {
			return fmt.Errorf("the process saw %q: %w", seen, err)
		}
		return nil
	})
	origin := dump.Origin(t.Context(), map[string]string{"node/n": a.Path(), "pod/shop/db": b.Path()}, "")
	p := packet.Packet{}
	p.Tuple = packet.Tuple{Protocol: packet.UDP, Destination: netip.MustParseAddr("10.9.0.2"), DestinationPort: packet.Exactly(5300)}
	r, err := walk.Walk(capture.NewSource(origin), walk.Request{Host: "node/n", Packet: p})
	if err != nil {
		t.Fatal(err)
	}
	end := r.Outcomes[0].End
	if len(r.Outcomes) != 1 || end.Kind != walk.Delivered || end.Packet.Source.String() != "10.9.0.1" ||
		!strings.HasPrefix(end.Disguise, "BPF program shows (id ") ||
		!strings.HasSuffix(end.Disguise, "recvmsg4, control group "+path+") may show the program another source") {
		t.Errorf("%d outcomes: %+v", len(r.Outcomes), end)
	}
}

// writeSource writes to a file from where a datagram comes, as the process sees it.
func writeSource(t *testing.T, file string) {
	conn, err := net.ListenPacket("udp4", "10.9.0.2:5300")
	if err != nil {
		t.Fatal(err)
	}
	_, from, err := conn.ReadFrom(make([]byte, 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(from.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Hour) // the socket stays, for the walk
}

// TestAttachedByName: programs of tcx and of tc are read with their names.
func TestAttachedByName(t *testing.T) {
	a, _ := netnstest.Pair(t)
	id := bpftest.AttachToLink(t, a, "eth0", "cil_test", ebpf.AttachTCXIngress)
	filter := bpftest.Load(t, "filter", ebpf.AttachTCXEgress, bpftest.Return(0))
	info, err := filter.Info()
	if err != nil {
		t.Fatal(err)
	}
	filterID, _ := info.ID()
	addFilter(t, a, "eth0", filter.FD())
	raw, err := new(dump.Dumper).All(t.Context(), "node/a", a)
	if err != nil {
		t.Fatal(err)
	}
	host := capture.NewLoader("node/a").Load(raw)
	in := (&snapshot.Program{Attach: "tcx", Name: "cil_test", ID: id}).String()
	out := (&snapshot.Program{Attach: "tc", Name: "filter", ID: uint32(filterID)}).String()
	if l := host.FIB.Link("eth0"); l.Program != in || l.ProgramOut != out {
		t.Errorf("in %q, out %q, want %q and %q", l.Program, l.ProgramOut, in, out)
	}
}

// addFilter adds a filter of tc with a program where packets leave by a link.
func addFilter(t *testing.T, ns *netns.Namespace, name string, program int) {
	t.Helper()
	h, err := ns.Handle()
	if err != nil {
		t.Fatal(err)
	}
	index := netnstest.LinkIndex(t, ns, name)
	clsact := netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
	if err := h.QdiscAdd(&netlink.GenericQdisc{QdiscAttrs: clsact, QdiscType: "clsact"}); err != nil {
		t.Fatal(err)
	}
	attrs := netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Protocol: unix.ETH_P_ALL}
	if err := h.FilterAdd(&netlink.BpfFilter{FilterAttrs: attrs, Fd: program, Name: "object.o:[tc]", DirectAction: true}); err != nil {
		t.Fatal(err)
	}
}
