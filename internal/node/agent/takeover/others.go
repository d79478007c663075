package takeover

import (
	"context"
	"slices"
	"time"
)

// Quiet is how long a service proxy must be gone before the agent takes over. The kubelet restarts one that has died, at first at once.
const Quiet = 5 * time.Second

// Others follows the service proxies that run beside the agent. It is not safe for concurrent use.
type Others struct {
	Look  func(context.Context) ([]string, error) // names the processes
	Quiet time.Duration

	running []string
	gone    time.Time // of the first look that found none; zero: some run, or there were none
}

// Change says what differs from the look before.
type Change int

// The changes: an unknown one has come, and all have been gone for as long as Quiet.
const (
	NoChange Change = iota
	Started
	Ended
)

// Running returns the service proxies that run, or that ended a moment ago.
func (o *Others) Running() []string { return o.running }

// Observe looks for service proxies and returns those that run now. After an error nothing has changed.
func (o *Others) Observe(ctx context.Context) (found []string, change Change, err error) {
	found, err = o.Look(ctx)
	switch {
	case err != nil:
		return nil, NoChange, err
	case len(found) > 0:
		if !slices.Equal(found, o.running) {
			change = Started
		}
		o.running, o.gone = found, time.Time{}
	case len(o.running) == 0:
	case o.gone.IsZero():
		o.gone = time.Now()
	case time.Since(o.gone) >= o.Quiet:
		o.running, o.gone, change = nil, time.Time{}, Ended
	}
	return found, change, nil
}
