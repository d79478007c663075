package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// progress reads what go build -v says, one line a package, and tells a person how far it is.
// On a terminal it rewrites one line; elsewhere (a file, CI) it writes a line every ten seconds.
type progress struct {
	out      io.Writer
	terminal bool
	packages []string // all that the program links, the program itself last
	started  time.Time

	mu    sync.Mutex
	line  []byte // what came of a line that has not ended
	built int
	last  string       // the package that was named last
	other bytes.Buffer // lines that name no package: compile errors
}

func newProgress(out io.Writer, terminal bool, packages []string, started time.Time) *progress {
	return &progress{out: out, terminal: terminal, packages: packages, started: started}
}

// Write takes go build's standard error.
func (p *progress) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line = append(p.line, text...)
	for {
		line, rest, ended := bytes.Cut(p.line, []byte("\n"))
		if !ended {
			return len(text), nil
		}
		p.take(string(line))
		p.line = append([]byte(nil), rest...)
	}
}

// take counts a line that is a package's import path and keeps any other. "go: downloading …" is neither built nor an error.
func (p *progress) take(line string) {
	switch {
	case strings.HasPrefix(line, "go: downloading "):
	case line != "" && !strings.ContainsAny(line, " \t:#"):
		p.built, p.last = p.built+1, line
	default:
		p.other.WriteString(line + "\n")
	}
}

// messages returns the lines that named no package.
func (p *progress) messages() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.other.String() + string(p.line)
}

// status returns one line: packages compiled, the most there can be (what Go's build cache holds is not compiled again), and the time since
// the start. go build reports what it compiles, and go test does not.
func (p *progress) status(now time.Time) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	since := now.Sub(p.started).Round(time.Second)
	if p.built == 0 {
		return fmt.Sprintf("compiling, %s", since)
	}
	step := "compiled"
	if p.last == p.packages[len(p.packages)-1] {
		step = "compiled, linking"
	}
	return fmt.Sprintf("%d of %d packages %s, %s", p.built, len(p.packages), step, since)
}

// tick shows the status until the returned function is called.
func (p *progress) tick() (stop func()) {
	every, form := 10*time.Second, "%s\n"
	if p.terminal {
		every, form = 200*time.Millisecond, "\r%s\x1b[K"
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case now := <-ticker.C:
				fmt.Fprintf(p.out, form, p.status(now))
			case <-done:
				if p.terminal {
					fmt.Fprint(p.out, "\r\x1b[K")
				}
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}
