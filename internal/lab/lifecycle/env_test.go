package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"packetwalk.dev/internal/lab/layout"
)

// TestFault: what did not succeed is a problem until it does.
func TestFault(t *testing.T) {
	c := NewEnv("", layout.Binaries{}, slog.New(slog.DiscardHandler), func(Step) {})
	const what = "the last change of the cluster"
	err := errors.New("node n2: no address is free")
	if got := c.Fault(what, errors.Join(err, errors.New("and more"))); !errors.Is(got, err) {
		t.Errorf("got %v", got)
	}
	if got, want := c.FaultLines(), []string{what + ": node n2: no address is free; and more"}; !slices.Equal(got, want) {
		t.Errorf("problems %q, want %q", got, want)
	}
	if err := c.Fault(what, nil); err != nil || len(c.FaultLines()) != 0 {
		t.Errorf("%v; problems %q", err, c.FaultLines())
	}
}

// TestKeep: what the lab runs by itself (controllers, servers, forwarders) is a problem while it fails, and none any more when it runs
// again.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := NewEnv("", layout.Binaries{}, slog.New(slog.DiscardHandler), func(Step) {})
		fails := 2
		c.Keep(ctx, "the service controller", func(ctx context.Context) error {
			if fails--; fails >= 0 {
				return errors.New("no watch")
			}
			<-ctx.Done()
			return ctx.Err()
		})
		synctest.Wait()
		want := []string{"the service controller has failed and is started again: no watch"}
		if got := c.FaultLines(); !slices.Equal(got, want) {
			t.Errorf("problems %q, want %q", got, want)
		}
		time.Sleep(2*keepPause + time.Millisecond)
		if got := c.FaultLines(); !slices.Equal(got, want) {
			t.Errorf("it has only just begun to run: problems %q, want %q", got, want)
		}
		time.Sleep(KeepSteady)
		if got := c.FaultLines(); len(got) != 0 {
			t.Errorf("it runs: problems %q", got)
		}
		cancel()
		synctest.Wait()
		if got := c.FaultLines(); len(got) != 0 {
			t.Errorf("it was ended: problems %q", got)
		}
	})
}
