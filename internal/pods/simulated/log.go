package simulated

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"packetwalk.dev/internal/base/logs"
	"packetwalk.dev/internal/base/termsafe"
)

// maxLines is how many requests are kept of a pod, the last ones.
const maxLines = 1000

// requestLog is a pod's log: a line for each request.
type requestLog struct {
	mu      sync.Mutex
	lines   []logLine
	dropped int           // lines before those
	more    chan struct{} // closed at the next line; nil when no reader waits
}

type logLine struct {
	at   time.Time
	text string
}

func (l *requestLog) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == maxLines {
		l.lines, l.dropped = append(l.lines[:0], l.lines[1:]...), l.dropped+1
	}
	l.lines = append(l.lines, logLine{time.Now(), termsafe.Line(fmt.Sprintf(format, args...))})
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
}

// since returns the lines from the n-th on that the log ever had, and a channel that is closed at the next one.
func (l *requestLog) since(n int) (lines []logLine, next int, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.more == nil {
		l.more = make(chan struct{})
	}
	first := min(max(n-l.dropped, 0), len(l.lines))
	return append([]logLine(nil), l.lines[first:]...), l.dropped + len(l.lines), l.more
}

// copy writes the lines that the options ask for; with Follow until ctx ends or ended closes.
func (l *requestLog) copy(ctx context.Context, o logs.Options, ended <-chan struct{}, w io.Writer) error {
	if o.Stream == "stderr" {
		return nil
	}
	lines, next, more := l.since(0)
	for len(lines) > 0 && lines[0].at.Before(o.Since) {
		lines = lines[1:]
	}
	if o.Tail != nil {
		lines = lines[max(len(lines)-*o.Tail, 0):]
	}
	left := o.LimitBytes
	for {
		for _, line := range lines {
			text := line.text + "\n"
			if o.Timestamps {
				text = line.at.UTC().Format("2006-01-02T15:04:05.000000000Z07:00") + " " + text
			}
			if o.LimitBytes > 0 && int64(len(text)) > left {
				_, err := io.WriteString(w, text[:left])
				return err
			}
			left -= int64(len(text))
			if _, err := io.WriteString(w, text); err != nil {
				return err
			}
		}
		if !o.Follow {
			return nil
		}
		select {
		case <-more:
		case <-ended:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
		lines, next, more = l.since(next)
	}
}
