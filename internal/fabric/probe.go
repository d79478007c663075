package fabric

import (
	"context"
	"net/netip"
	"time"

	"packetwalk.dev/internal/vnet"
)

// Prober tries one back end once: nil means that it answered as a healthy one.
type Prober func(ctx context.Context, p vnet.Probe, member netip.Addr) error

// Timing of the probes. Zero fields mean Azure's own.
type Timing struct {
	// Interval replaces every probe's IntervalSeconds.
	Interval time.Duration
	// Eager is how often a member that has never been up is tried, and EagerFor how long (250 ms, for 30 s), so that nobody
	// waits for the first answer of a new back end. Azure knows no such thing: its members come up at the first regular probe.
	Eager, EagerFor time.Duration
}
