package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// DefaultTimeout is how long a lab may take to start or to change: up's --timeout. There is no other bound on what starts, because on a
// slow machine one component can need most of it.
const DefaultTimeout = 5 * time.Minute

// AnswerTime is how long after the deadline the lab process may still answer.
var AnswerTime = 15 * time.Second

const (
	// lastWords is how long a component that is late may take to return an error, which says what it waited for.
	lastWords = 2 * time.Second
	// RequestTime is how long a few requests to the API server may take that do not have a deadline.
	RequestTime = time.Minute
)

// A Deadline is when a start or a change of a lab must be done. The zero value is none.
type Deadline struct {
	at      time.Time
	timeout time.Duration // that the user gave
}

// NewDeadline returns the deadline that is timeout from now.
func NewDeadline(timeout time.Duration) Deadline { return Deadline{time.Now().Add(timeout), timeout} }

// Bound returns a context that ends at the deadline.
func (d Deadline) Bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if d.at.IsZero() {
		return context.WithCancel(ctx)
	}
	return context.WithDeadlineCause(ctx, d.at, errLate(d.timeout))
}

func errLate(timeout time.Duration) error {
	return fmt.Errorf("not done within %v; --timeout allows more time", timeout.Round(100*time.Millisecond))
}

// BoundAnswer returns a context that ends when the lab process should have said that it is late.
func (d Deadline) BoundAnswer(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(ctx, d.at.Add(AnswerTime),
		fmt.Errorf("%w; the lab process does not answer; its log: packetwalk logs lab", errLate(d.timeout)))
}

// Left returns the time until the deadline, for the lab process.
func (d Deadline) Left() time.Duration { return max(time.Until(d.at), 0).Round(time.Millisecond) }

// lateError is why something was ended before it was done, and what it waited for, nil where it did not say.
type lateError struct{ cause, words error }

func (e *lateError) Error() string {
	if e.words == nil {
		return e.cause.Error()
	}
	return fmt.Sprintf("%v: %v", e.cause, e.words)
}

func (e *lateError) Unwrap() []error { return []error{e.cause, e.words} }

// waitingFor returns a line of a longer error, which begins with the cause.
func (e *lateError) waitingFor(what string) error {
	if e.words == nil {
		return fmt.Errorf("still waiting for %s", what)
	}
	return fmt.Errorf("still waiting for %s: %w", what, e.words)
}

// StartBefore runs start. When ctx ends first it calls end, which ends what start has begun, and returns a lateError with what start says
// then, or nil when it was just done. A start that does not return even so is left behind.
func StartBefore(ctx context.Context, end func(), start func() error) error {
	done := make(chan error, 1)
	go func() { done <- start() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		end()
	}
	late := &lateError{cause: context.Cause(ctx)}
	select {
	case err := <-done:
		if err == nil {
			return nil
		}
		if !errors.Is(err, context.Canceled) {
			late.words = err
		}
	case <-time.After(lastWords):
	}
	return late
}
