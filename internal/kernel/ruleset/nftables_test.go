package ruleset_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/netnstest"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/syntax/nfnetlink"
	"packetwalk.dev/internal/testing/kerneltest"
)

// expiredContext is a context whose time is over without its end: what is sent is not waited for.
type expiredContext struct{ context.Context }

func (expiredContext) Deadline() (time.Time, bool) { return time.Unix(1, 0), true }

// TestNFTablesSocket checks that the socket does not mistake leftover replies for the answer to the next request. These are the kernel's
// replies to a refused transaction, and to one whose caller did not wait.
func TestNFTablesSocket(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := netnstest.Create(t, t.TempDir()+"/ns")
	nft := &ruleset.NFTables{NetNS: ns.FD()}
	t.Cleanup(nft.Close)
	ours, missing := nfnetlink.Table{Family: unix.NFPROTO_IPV4, Name: "ours"}, nfnetlink.Table{Family: unix.NFPROTO_IPV4, Name: "missing"}
	there := func() {
		t.Helper()
		if answers, err := nft.Ask(t.Context(), ours.Get()); err != nil || len(answers) != 1 {
			t.Errorf("table: %d answers, %v", len(answers), err)
		}
	}
	if err := nft.Commit(t.Context(), []netlink.Message{ours.Make()}, 0); err != nil {
		t.Fatal(err)
	}
	there()
	if _, err := nft.Ask(t.Context(), missing.Get()); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a table that is missing: %v", err)
	}
	there()
	refused := []netlink.Message{missing.Delete(), missing.Delete(), missing.Delete()} // each is answered
	if err := nft.Commit(t.Context(), refused, 0); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a refused transaction: %v", err)
	}
	there()
	if err := nft.Commit(expiredContext{t.Context()}, []netlink.Message{ours.Make()}, 0); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("not waited for: %v", err)
	}
	there()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := nft.Commit(over, []netlink.Message{ours.Make()}, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("after its time: %v", err)
	}
	there()
}
