package packetlog

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/testing/eventually"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestRead: packets that a rule logs are read, with the rule's prefix, until the context ends.
func TestRead(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns, err := netns.Create(t.TempDir() + "/ns")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Remove()
	if err := ns.Apply(netns.State{Links: []string{"lo"}}); err != nil {
		t.Fatal(err)
	}
	if err := ruleset.ApplyNFT(t.Context(), ns, "table ip t {\nchain c {\ntype filter hook output priority 0\n"+
		"tcp flags & (syn | ack) == syn tcp dport 9 log prefix \"seen \" group 7\n}\n}\n"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	entries, done := make(chan Entry, 10), make(chan error, 1)
	go func() { done <- Read(ctx, ns, 7, func(e Entry) { entries <- e }) }()
	var got Entry
	eventually.Succeeds(t, time.Minute, func() error {
		dialCtx, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		if c, err := ns.DialFrom(dialCtx, "tcp", netip.MustParseAddr("127.0.0.1"), "127.0.0.1:9"); err == nil {
			c.Close()
		}
		select {
		case got = <-entries:
			return nil
		case <-time.After(100 * time.Millisecond):
			return context.DeadlineExceeded
		}
	})
	if got.Prefix != "seen" || len(got.Packet) < 30 || got.Packet[:14] != "tcp 127.0.0.1:" || got.Packet[len(got.Packet)-6:] != " [SYN]" {
		t.Errorf("got %+v", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// FuzzDescribe: no bytes make it panic.
func FuzzDescribe(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 4, 198, 51, 100, 80, 1, 2, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x12})
	f.Add([]byte{0x4f, 0, 0, 40})
	f.Fuzz(func(_ *testing.T, b []byte) { describe(b) })
}
