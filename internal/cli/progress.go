//go:build linux

package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/lab"
)

// quietTime is how long a terminal shows nothing new while a lab is brought up.
const quietTime = 3 * time.Second

// A progress prints what a lab has done, and how long after the begin.
type progress struct {
	out   io.Writer
	begin time.Time

	mu   sync.Mutex
	last time.Time // when something was printed
}

func newProgress(out io.Writer) *progress {
	now := time.Now()
	return &progress{out: out, begin: now, last: now}
}

// step prints what is done, until the lab is ready.
func (p *progress) step(st lab.Step) {
	if !st.Ready {
		p.print(p.out, st.Text)
	}
}

func (p *progress) print(w io.Writer, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
	fmt.Fprintf(w, "%6.1f s  %s\n", time.Since(p.begin).Seconds(), termsafe.Text(text))
}

// watch prints to a terminal what the lab waits for, whenever nothing else was printed for quietTime. It ends with ctx.
func (p *progress) watch(ctx context.Context, terminal io.Writer, waitsFor func(context.Context) string) {
	for {
		p.mu.Lock()
		left := time.Until(p.last.Add(quietTime))
		p.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(left, 100*time.Millisecond)):
		}
		if left > 0 {
			continue // something may have been printed meanwhile
		}
		text := waitsFor(ctx)
		if ctx.Err() == nil {
			p.print(terminal, text)
		}
	}
}

// waitsFor returns what a lab waits for that is brought up or changed.
func waitsFor(ctx context.Context, d lab.Dir) string {
	ctx, cancel := context.WithTimeout(ctx, quietTime)
	defer cancel()
	if st := lab.StatusOf(ctx, d); st.Pid > 0 && len(st.Problems) > 0 {
		return strings.Join(st.Problems, "; ")
	}
	return "still at work"
}
