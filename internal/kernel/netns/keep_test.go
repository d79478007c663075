package netns_test

import (
	"context"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/testing/netnstest"
)

// TestKeepEnded: with all ports of a translation in use by connections that have ended, the kernel gives a new one the port of one of them,
// unless that is kept.
func TestKeepEnded(t *testing.T) {
	a, b := netnstest.Pair(t)
	if err := ruleset.ApplyNFT(t.Context(), a,
		"table ip t { chain c { type nat hook postrouting priority 100; ip protocol tcp snat to 10.9.0.1:7000-7001\n }\n }\n"); err != nil {
		t.Fatal(err)
	}
	l, err := b.Listen(t.Context(), "tcp", "10.9.0.2:80")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, c); c.Close() }()
		}
	}()
	// connect makes a connection and ends it from this side. It tries several times, because the kernel takes the port of a connection
	// only for one whose sequence numbers, which are random, are greater (nf_seq_has_advanced).
	connect := func(tries int) (err error) {
		for range tries {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			c, failed := a.Dial(ctx, "tcp", "10.9.0.2:80")
			cancel()
			if err = failed; err == nil {
				return c.Close()
			}
		}
		return err
	}
	ended := func() int {
		return strings.Count(netnstest.Run(t, a, "conntrack", "-L", "-p", "tcp"), "TIME_WAIT")
	}
	// fill has both ports in use by connections that have ended. It may take more than two: the kernel takes an ended one's port also where
	// the other is free.
	fill := func() {
		t.Helper()
		for range 100 {
			if ended() == 2 {
				return
			}
			if err := connect(40); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Fatalf("want 2 ended connections: %s", netnstest.Run(t, a, "conntrack", "-L"))
	}
	fill()
	if err := connect(40); err != nil {
		t.Errorf("with none kept: %v", err)
	}
	fill()
	if err := a.KeepEnded(netns.FlowFilter{Protocol: 6, Destination: netip.MustParsePrefix("10.9.0.3/32")}); err != nil {
		t.Fatal(err)
	}
	if err := connect(40); err != nil {
		t.Errorf("with those to somebody else kept: %v", err)
	}
	fill()
	if err := a.KeepEnded(netns.FlowFilter{Protocol: 6, Destination: netip.MustParsePrefix("10.9.0.2/32")}); err != nil {
		t.Fatal(err)
	}
	if err := connect(8); err == nil {
		t.Error("with both kept, a third connection got a port")
	}
	if n := ended(); n != 2 {
		t.Errorf("%d ended connections, want 2", n)
	}
}
