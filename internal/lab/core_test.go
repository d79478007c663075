package lab

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func quietCore() *core {
	return &core{log: slog.New(slog.NewTextHandler(io.Discard, nil)), say: func(Step) {}, broken: make(chan error, 1)}
}

// TestFault: what did not succeed is a problem until it does.
func TestFault(t *testing.T) {
	c := quietCore()
	err := errors.New("node n2: no address is free")
	if got := c.fault(changeFault, errors.Join(err, errors.New("and more"))); !errors.Is(got, err) {
		t.Errorf("got %v", got)
	}
	if got, want := c.problems(), []string{changeFault + ": node n2: no address is free; and more"}; !slices.Equal(got, want) {
		t.Errorf("problems %q, want %q", got, want)
	}
	if err := c.fault(changeFault, nil); err != nil || len(c.problems()) != 0 {
		t.Errorf("%v; problems %q", err, c.problems())
	}
}

// TestKeep: what the lab runs by itself (controllers, servers, forwarders) is a problem while it fails, and none any more when it runs
// again.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := quietCore()
		fails := 2
		c.keep(ctx, "the service controller", func(ctx context.Context) error {
			if fails--; fails >= 0 {
				return errors.New("no watch")
			}
			<-ctx.Done()
			return ctx.Err()
		})
		synctest.Wait()
		want := []string{"the service controller has failed and is started again: no watch"}
		if got := c.problems(); !slices.Equal(got, want) {
			t.Errorf("problems %q, want %q", got, want)
		}
		time.Sleep(2*keepPause + time.Millisecond)
		if got := c.problems(); !slices.Equal(got, want) {
			t.Errorf("it has only just begun to run: problems %q, want %q", got, want)
		}
		time.Sleep(keepSteady)
		if got := c.problems(); len(got) != 0 {
			t.Errorf("it runs: problems %q", got)
		}
		cancel()
		synctest.Wait()
		if got := c.problems(); len(got) != 0 {
			t.Errorf("it was ended: problems %q", got)
		}
	})
}
