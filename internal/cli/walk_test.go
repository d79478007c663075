package cli

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"packetwalk.dev/internal/answer/endpoint"
)

// TestInterruptedRead: Ctrl-C ends a walk that still waits for its text.
func TestInterruptedRead(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	o := walkOptions{snapshot: "-"}
	if _, err := o.open(ctx, Streams{In: r}, &endpoint.End{}, &endpoint.End{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}
