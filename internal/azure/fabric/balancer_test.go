package fabric_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
)

func TestLoadBalancer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 3)
	w.update(addService)
	probes := map[string]net.Listener{"node0": w.node("node0"), "node1": w.node("node1")}
	w.awaitUp("node0", "node1")

	// Both take flows; the packet arrives with the client as source and the VIP as destination.
	established := map[string]*conn{}
	for i := 0; len(established) < 2; i++ {
		if i == 60 {
			t.Fatal("60 flows, all to one back end")
		}
		c, err := w.dial("client", "", vip+":80")
		if err != nil {
			t.Fatal(err)
		}
		f, err := c.ask()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(f[1], client+":") || f[2] != vip+":80" {
			t.Fatalf("the back end saw %s > %s", f[1], f[2])
		}
		established[f[0]] = c
	}

	// One dies for the probe: new flows go to the other, established ones stay.
	dead, alive := "node0", "node1"
	probes[dead].Close()
	w.awaitAll(false, dead)
	for range 20 {
		if host, _, _ := w.mustAsk("client", vip+":80"); host != alive {
			t.Fatalf("a new flow went to %s", host)
		}
	}
	for host, c := range established {
		if f, err := c.ask(); err != nil || f[0] != host {
			t.Errorf("the flow established with %s: %v %v", host, f, err)
		}
	}
	// It comes back.
	probes[dead] = w.listen(dead, fmt.Sprintf("0.0.0.0:%d", nodePort))
	w.awaitAll(true, dead)
	seen := map[string]bool{}
	for i := 0; len(seen) < 2 && i < 60; i++ {
		host, _, _ := w.mustAsk("client", vip+":80")
		seen[host] = true
	}
	if len(seen) != 2 {
		t.Error("the back end that is up again gets nothing")
	}
	for host, c := range established {
		if f, err := c.ask(); err != nil || f[0] != host {
			t.Errorf("the flow established with %s: %v %v", host, f, err)
		}
	}
	// From inside, the front end is reached by way of outbound, and the source is public.
	if _, remote, _ := w.mustAsk("testvm", vip+":80"); remote != vnet.DefaultOutboundAddress.String() {
		t.Errorf("the back end saw %s", remote)
	}
	// All down: Basic ends established flows too.
	for _, l := range probes {
		l.Close()
	}
	w.awaitAll(false, "node0", "node1")
	for host, c := range established {
		c.SetDeadline(time.Now().Add(200 * time.Millisecond))
		fmt.Fprintln(c.Conn)
		if _, err := c.r.ReadString('\n'); err == nil {
			t.Errorf("the flow established with %s goes on without any back end up", host)
		}
	}
	if _, err := w.dialShort("client", "", vip+":80"); err == nil {
		t.Error("connected without any back end up")
	}
}

func (w *world) up() int {
	_, h := w.fabric.Snapshot()
	up := 0
	for _, v := range h {
		if v {
			up++
		}
	}
	return up
}

func TestProbeHTTP(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 2)
	status := make(chan int, 1)
	status <- http.StatusServiceUnavailable
	var mu sync.Mutex
	var from, path string
	l, err := w.ns["node0"].Listen(t.Context(), "tcp4", "0.0.0.0:31000")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		s := <-status
		status <- s
		mu.Lock()
		from, path = r.RemoteAddr, r.URL.Path
		mu.Unlock()
		rw.WriteHeader(s)
	})}
	go srv.Serve(l)
	defer srv.Close()
	w.update(func(n *vnet.Network) error {
		addService(n)
		lb, _ := n.LoadBalancer("kubernetes")
		lb.Probes[0] = vnet.Probe{Name: "a1-TCP-80", Protocol: vnet.ProtocolHTTP, Port: 31000, RequestPath: "/healthz", IntervalSeconds: 5,
			Count: 2}
		return nil
	})
	for _, s := range []struct {
		status int
		up     bool
	}{{200, true}, {503, false}, {200, true}, {204, false}} {
		<-status
		status <- s.status
		w.awaitAll(s.up, "node0")
	}
	mu.Lock()
	defer mu.Unlock()
	if !strings.HasPrefix(from, vnet.ProbeSource.String()+":") || path != "/healthz" {
		t.Errorf("probed from %s on %s", from, path)
	}
}

// TestProbing scripts a back end's answers.
func TestProbing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 1)
	if err := w.fabric.Close(); err != nil {
		t.Fatal(err)
	}
	script := []bool{false, true, false, true, false, false, false, true, true}
	var tried atomic.Int64
	w.cfg.Prober = func(_ context.Context, p vnet.Probe, member netip.Addr) error {
		i := int(tried.Add(1)) - 1
		if p.Port != nodePort || member.String() != "10.13.64.4" {
			t.Errorf("probed %s %d", member, p.Port)
		}
		if script[min(i, len(script)-1)] {
			return nil
		}
		return fmt.Errorf("try %d", i)
	}
	w.start()
	w.update(addService)
	for _, want := range []struct {
		up     bool
		reason string
	}{{true, ""}, {false, "try 5"}, {true, ""}} {
		select {
		case c := <-w.health:
			if c.up != want.up || c.reason != want.reason {
				t.Errorf("got %+v, want %+v", c, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("no change")
		}
	}
	w.update(func(n *vnet.Network) error {
		lb, _ := n.LoadBalancer("kubernetes")
		lb.Frontends, lb.Rules, lb.Probes = nil, nil, nil
		return nil
	})
	if _, h := w.fabric.Snapshot(); len(h) != 0 {
		t.Errorf("health of what is no longer probed: %v", h)
	}
}

func TestWithoutFloatingIP(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 1)
	w.listen("node0", "0.0.0.0:8080")
	w.listen("node1", "0.0.0.0:8080")
	w.update(func(n *vnet.Network) error {
		addService(n)
		lb, _ := n.LoadBalancer("kubernetes")
		lb.Rules[0].FloatingIP, lb.Rules[0].BackendPort, lb.Rules[0].Probe = false, 8080, ""
		return nil
	})
	seen := map[string]bool{}
	for i := 0; len(seen) < 2 && i < 60; i++ {
		host, remote, local := w.mustAsk("client", vip+":80")
		if remote != client || local != w.address(host)+":8080" {
			t.Fatalf("%s saw %s > %s", host, remote, local)
		}
		seen[host] = true
	}
	if len(seen) != 2 {
		t.Error("all flows went to one back end")
	}
}

func TestUDPAndAffinity(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 1)
	for _, name := range []string{"node0", "node1"} {
		run(t, w.ns[name], "ip", "addr", "add", vip+"/32", "dev", "lo")
		p, err := w.ns[name].ListenPacket(t.Context(), "udp4", vip+":53")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		go func() {
			buf := make([]byte, 100)
			for {
				_, from, err := p.ReadFrom(buf)
				if err != nil {
					return
				}
				p.WriteTo([]byte(name), from)
			}
		}()
	}
	rule := func(distribution string) {
		w.update(func(n *vnet.Network) error {
			addService(n)
			lb, _ := n.LoadBalancer("kubernetes")
			r := &lb.Rules[0]
			r.Probe, r.Protocol, r.FrontendPort, r.BackendPort, r.LoadDistribution = "", vnet.ProtocolUDP, 53, 53, distribution
			return nil
		})
	}
	answers := func(flows int) map[string]int {
		seen := map[string]int{}
		for range flows {
			c, err := w.ns["client"].Dial(t.Context(), "udp", vip+":53")
			if err != nil {
				t.Fatal(err)
			}
			var last string
			for range 3 { // every datagram of a flow goes to the same back end
				fmt.Fprint(c, "?")
				buf := make([]byte, 100)
				c.SetReadDeadline(time.Now().Add(20 * time.Second))
				n, err := c.Read(buf)
				if err != nil {
					t.Fatal(err)
				}
				if last != "" && last != string(buf[:n]) {
					t.Errorf("a flow moved from %s to %s", last, buf[:n])
				}
				last = string(buf[:n])
			}
			c.Close()
			seen[last]++
		}
		return seen
	}
	rule(vnet.DistributionDefault)
	if seen := answers(40); len(seen) != 2 {
		t.Errorf("5-tuple: %v", seen)
	}
	rule(vnet.DistributionSourceIP)
	// A port that comes again would find its flow of before, which stays where it is.
	if _, err := w.fabric.Namespace().DeleteFlows(netns.FlowFilter{Protocol: unix.IPPROTO_UDP}); err != nil {
		t.Fatal(err)
	}
	if seen := answers(40); len(seen) != 1 {
		t.Errorf("source address: %v", seen)
	}
}
