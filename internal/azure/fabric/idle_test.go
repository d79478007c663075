package fabric_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
)

// TestIdle: what belongs to a flow that the fabric has forgotten, because it was idle for too long, is dropped by a Basic load balancer,
// and answered with a reset where a Standard one's outbound rule says so.
func TestIdle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 1)
	w.update(addService)
	w.listen("server", "0.0.0.0:80")
	forgotten := func() error {
		t.Helper()
		c, err := w.dial("node0", "", server+":80")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.ask(); err != nil {
			t.Fatal(err)
		}
		if _, err := w.fabric.Namespace().DeleteFlows(netns.FlowFilter{Protocol: unix.IPPROTO_TCP, DestinationPort: 80}); err != nil {
			t.Fatal(err)
		}
		_, err = c.ask()
		return err
	}
	if err := forgotten(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Basic: %v, want silence", err)
	}
	w.update(func(n *vnet.Network) error {
		lb, _ := n.LoadBalancer("kubernetes")
		lb.SKU = vnet.SKUStandard
		lb.OutboundRules = []vnet.OutboundRule{{Name: "r", Frontends: []string{"a1"}, BackendPool: "kubernetes", IdleTimeoutMinutes: 30,
			TCPReset: true}}
		return nil
	})
	if err := forgotten(); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("Standard: %v, want a reset", err)
	}
}

// TestIdleReset: when the idle time of a flow is over, both its ends get a reset at once, where az shows enableTcpReset: flows to a front
// end and flows that leave by one; not where it does not, and not flows that are in use.
func TestIdleReset(t *testing.T) {
	for _, reset := range []bool{true, false} {
		t.Run(fmt.Sprint(reset), func(t *testing.T) { testIdleReset(t, reset) })
	}
}

func testIdleReset(t *testing.T, reset bool) {
	t.Parallel()
	w := newWorld(t, 1, 1)
	w.update(addService)
	w.update(func(n *vnet.Network) error {
		lb, _ := n.LoadBalancer("kubernetes")
		lb.SKU, lb.Rules[0].TCPReset = vnet.SKUStandard, reset
		lb.OutboundRules = []vnet.OutboundRule{{Name: "r", Frontends: []string{"a1"}, BackendPool: "kubernetes", IdleTimeoutMinutes: 30,
			TCPReset: reset}}
		return nil
	})
	run(t, w.ns["node0"], "ip", "addr", "replace", vip+"/32", "dev", "lo")
	w.listen("node0", fmt.Sprintf("0.0.0.0:%d", nodePort))
	w.awaitUp("node0")
	open := func(from, host, to string) (near, far net.Conn) {
		l, err := w.ns[host].Listen(t.Context(), "tcp4", to)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if near, err = w.dial(from, "", to); err != nil {
			t.Fatal(err)
		}
		if far, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { far.Close() })
		return near, far
	}
	leaves, left := open("node0", "server", server+":82")
	comes, came := open("client", "node0", vip+":80")
	uses, used := open("client", "node0", vip+":80")
	use := func() error {
		if _, err := uses.Write([]byte("x")); err != nil {
			return err
		}
		used.SetReadDeadline(time.Now().Add(20 * time.Second))
		_, err := used.Read(make([]byte, 1))
		return err
	}
	w.leave(3)
	if err := errors.Join(use(), w.fabric.Close()); err != nil {
		t.Fatal(err)
	}
	w.start() // looks at all flows at once
	w.awaitFlows(1)
	patience, want := time.Second, os.ErrDeadlineExceeded
	if reset {
		patience, want = 30*time.Second, unix.ECONNRESET
	}
	for who, end := range map[string]net.Conn{"machine": leaves, "server": left, "client": comes, "back end": came} {
		end.SetReadDeadline(time.Now().Add(patience))
		if _, err := end.Read(make([]byte, 1)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", who, err, want)
		}
	}
	if err := use(); err != nil {
		t.Error("the flow that is in use: ", err)
	}
}

// awaitFlows waits until no more than so many established flows of TCP are there, of those that machines and the internet have.
func (w *world) awaitFlows(count int) {
	w.t.Helper()
	eventually.Succeeds(w.t, 30*time.Second, func() error {
		flows, err := w.fabric.Namespace().Flows(netns.FlowFilter{Protocol: unix.IPPROTO_TCP})
		flows = slices.DeleteFunc(flows, func(f netns.Flow) bool { return f.TCPState != 3 || f.Source.Addr() == vnet.ProbeSource })
		if err != nil {
			return err
		}
		if len(flows) > count {
			return fmt.Errorf("%d flows, want %d: %+v", len(flows), count, flows)
		}
		return nil
	})
}

// leave gives all established flows of TCP so many seconds.
func (w *world) leave(seconds uint32) {
	w.t.Helper()
	var c *conntrack.Conn
	err := w.fabric.Namespace().Do(func() (err error) {
		c, err = conntrack.Dial(nil)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	flows, err := c.Dump(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range flows {
		if f.ProtoInfo.TCP == nil || f.ProtoInfo.TCP.State != 3 {
			continue
		}
		if err := c.Update(conntrack.Flow{TupleOrig: f.TupleOrig, Timeout: seconds}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// TestIdleTimes: the fabric keeps each flow for the idle time of the rule that it goes by, as az shows it, and goes on doing so when the
// network is changed: a packet refreshes the time.
func TestIdleTimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 1)
	w.update(addService)
	w.update(func(n *vnet.Network) error {
		lb, _ := n.LoadBalancer("kubernetes")
		lb.SKU, lb.Rules[0].IdleTimeoutMinutes = vnet.SKUStandard, 10
		lb.OutboundRules = []vnet.OutboundRule{{Name: "r", Frontends: []string{"a1"}, BackendPool: "kubernetes", IdleTimeoutMinutes: 30,
			TCPReset: true}}
		return nil
	})
	w.node("node0")
	w.awaitAll(true, "node0")
	w.listen("server", "0.0.0.0:80")
	type flow struct {
		minutes int
		*conn
		to netip.AddrPort
	}
	var flows []flow
	for _, f := range []struct {
		from, to string
		minutes  int
	}{{"client", vip + ":80", 10}, {"node0", server + ":80", 30}, {"testvm", server + ":80", 4}} {
		c, err := w.dial(f.from, "", f.to)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		flows = append(flows, flow{f.minutes, c, netip.MustParseAddrPort(f.to)})
	}
	for _, change := range []func(*vnet.Network) error{
		func(*vnet.Network) error { return nil },
		func(n *vnet.Network) error {
			n.PublicIPs = append(n.PublicIPs, vnet.PublicIP{Name: "more", Address: netip.MustParseAddr("203.0.113.99")})
			return nil
		},
		func(n *vnet.Network) error { n.LoadBalancers[0].Rules[0].IdleTimeoutMinutes = 20; return nil }, // of flows that begin from now on
	} {
		w.update(change)
		for _, f := range flows {
			if _, err := f.ask(); err != nil {
				t.Fatal(err)
			}
			all, err := w.fabric.Namespace().Flows()
			if err != nil {
				t.Fatal(err)
			}
			from := netip.MustParseAddrPort(f.LocalAddr().String()).Port()
			i := slices.IndexFunc(all, func(k netns.Flow) bool { return k.Source.Port() == from && k.Destination == f.to })
			if i < 0 {
				t.Fatalf("no flow to %s from port %d: %v", f.to, from, all)
			}
			if got := int(all[i].TimeoutSeconds); got <= f.minutes*60-60 || got > f.minutes*60 {
				t.Errorf("flow to %s has %d s left, want those of %d min", f.to, got, f.minutes)
			}
		}
	}
}
