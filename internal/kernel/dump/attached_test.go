package dump

import (
	"testing"

	"github.com/cilium/ebpf"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestAttachedToNothing: a link that has gone since links were listed has nothing, and is no reason to know nothing of the others.
func TestAttachedToNothing(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := ofTest(t)
	conn, _, err := linksOf(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = ns.Do(func() error {
		for _, out := range []bool{false, true} {
			found, err := atSide(conn, wireLink{Wire: capture.Wire{Link: "gone", Index: 1 << 30}}, out, tcIngress, ebpf.AttachTCXIngress)
			if len(found) > 0 || err != nil {
				t.Errorf("%v, %v", found, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
