package httprouting

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// gate is a writer that blocks until it is opened, as a pipe does that no process reads.
type gate struct {
	open chan struct{}
	mu   sync.Mutex
	text strings.Builder
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.text.Write(p)
}

// TestAccessLogThatNobodyReads: what waits to be written is bounded, what is lost is counted, and the end does not wait for ever.
func TestAccessLogThatNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &gate{open: make(chan struct{})}
		l := newAccessLog(w)
		l.add("first\n")
		synctest.Wait() // the first write hangs
		line := strings.Repeat("x", 1023) + "\n"
		for range maxLines/len(line) + 100 {
			l.add(line)
		}
		l.mu.Lock()
		waiting := len(l.lines)
		l.mu.Unlock()
		if waiting > maxLines {
			t.Errorf("%d bytes wait", waiting)
		}
		began := time.Now()
		l.wait(lastLines)
		if took := time.Since(began); took != lastLines {
			t.Errorf("the end waits %v", took)
		}
		close(w.open)
		l.wait(lastLines)
		l.add("last\n")
		l.wait(lastLines)
		want := "first\n" + strings.Repeat(line, maxLines/len(line)) + fmt.Sprintf("%d requests are not in this log: it was not read in time\nlast\n", 100)
		if got := w.text.String(); got != want {
			t.Errorf("%d bytes, ending with %q; want %d", len(got), got[max(0, len(got)-100):], len(want))
		}
	})
}
