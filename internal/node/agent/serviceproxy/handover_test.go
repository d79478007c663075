package serviceproxy

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/agent/takeover"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
)

// TestLeave decides about the rules when a proxy is told to stop.
func TestLeave(t *testing.T) {
	const (
		come       = 10 * time.Second // when another service proxy comes
		askTime    = 5 * time.Second  // before takeover.LeaveTime, from which on a question without an answer ends the wait
		leavePause = 250 * time.Millisecond
	)
	for name, c := range map[string]struct {
		other   bool // comes
		backend string
		deleted bool
		unknown int // questions without an answer
		removed bool
		after   time.Duration
	}{
		"replaced":                   {},
		"unknown":                    {deleted: true, unknown: 1 << 30, after: takeover.LeaveTime - askTime},
		"deleted, told late":         {deleted: true, unknown: 3, removed: true, after: takeover.LeaveTime},
		"replaced, told late":        {unknown: 3, after: 3 * leavePause},
		"deleted":                    {deleted: true, removed: true, after: takeover.LeaveTime},
		"deleted, another comes":     {deleted: true, other: true, backend: options.BackendIPTables, after: come},
		"deleted, another is silent": {deleted: true, other: true, backend: options.BackendNFTables, removed: true, after: takeover.LeaveTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				backend := cmp.Or(c.backend, options.BackendIPTables)
				p, _ := newTestProxy(t, backend, oneNode{events: make(chan corev1.Event, 9)})
				p.NFTables = nftables.NewRules(noKernel{})
				p.families = []*family{{common: p.common, Family: service.IPv4, ports: service.NewPorts(),
					syncer: nftables.NewSyncer(proxy.Config{Family: service.IPv4}, p.NFTables)}}
				began := time.Now()
				p.Others.Look = func(context.Context) ([]string, error) {
					if c.other && time.Since(began) >= come {
						return []string{"other"}, nil
					}
					return nil, nil
				}
				removed := false
				p.Leaving.Owner = &owner{c.deleted, c.unknown, t}
				p.cleanup = func(context.Context) error { removed = true; return nil }
				p.Leaving.Start()
				for left := false; !left; {
					time.Sleep(p.Leaving.Until(time.Now()))
					left, _ = p.leave(t.Context())
				}
				if took := time.Since(began); removed != c.removed || took < c.after || took > c.after+leavePause {
					t.Errorf("removed %v after %v; want %v after %v", removed, took, c.removed, c.after)
				}
			})
		})
	}
}

// noKernel has no answer.
type noKernel struct{ nftables.Kernel }

func (noKernel) Ask(context.Context, netlink.Message) ([]netlink.Message, error) {
	return nil, unix.EIO
}

type owner struct {
	deleted bool
	unknown int // questions without an answer
	t       *testing.T
}

func (*owner) Run(context.Context) {}

func (o *owner) Deleted(ctx context.Context) (bool, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		o.t.Error("it waits for ever")
	}
	if o.unknown > 0 {
		o.unknown--
		return false, errors.New("no answer")
	}
	return o.deleted, nil
}
