package world

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"
)

// captureScript runs tcpdump on link $1 with filter $2, and has it report how much it has read for each line of its input. It ends tcpdump
// at the end of its input.
const captureScript = `tcpdump -n -l -i "$1" --immediate-mode "$2" &
while read -r _; do kill -USR1 $!; done
kill -INT $!; wait $!`

// capture is a tcpdump that runs.
type capture struct {
	host     string
	in       io.WriteCloser
	reports  chan string // lines of standard error
	end      func()
	mu       sync.Mutex
	captured strings.Builder
}

// Capture runs tcpdump on a host while during runs, and returns its lines: of all packets that passed until during returned.
func (w *World) Capture(t *testing.T, host, link, filter string, during func()) string {
	t.Helper()
	return w.CaptureUntil(t, host, link, filter, during)
}

// captureLimit is how long packets may take to come that a capture waits for.
const captureLimit = time.Minute

// CaptureUntil does as Capture does, and goes on until a match of each pattern has come.
func (w *World) CaptureUntil(t *testing.T, host, link, filter string, during func(), patterns ...string) string {
	t.Helper()
	c := w.startCapture(t, host, link, filter)
	during()
	for _, p := range patterns {
		want := regexp.MustCompile(`(?m)` + p)
		eventually.Succeeds(t, captureLimit, func() error {
			if text := c.text(); !want.MatchString(text) {
				return fmt.Errorf("%s has seen nothing that matches %q:\n%s", host, p, text)
			}
			return nil
		})
	}
	c.drain(t)
	c.end()
	return c.text()
}

// startCapture returns when tcpdump's socket is open. From then on it misses nothing.
func (w *World) startCapture(t *testing.T, host, link, filter string) *capture {
	t.Helper()
	cmd := w.Command("ssh", "--name", w.Name, host, "--", "bash", "-c", captureScript, "capture", link, filter)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &capture{host: host, in: in, reports: make(chan string, 100)}
	var readers sync.WaitGroup
	readers.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			c.mu.Lock()
			c.captured.WriteString(lines.Text() + "\n")
			c.mu.Unlock()
		}
	})
	readers.Go(func() {
		defer close(c.reports)
		for lines := bufio.NewScanner(errs); lines.Scan(); {
			c.reports <- lines.Text()
		}
	})
	c.end = sync.OnceFunc(func() {
		_ = in.Close()
		kill := time.AfterFunc(captureLimit, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		for range c.reports { // until tcpdump has ended
		}
		readers.Wait()
		_ = cmd.Wait() // what it captured counts, not how an interrupt ends it
	})
	t.Cleanup(c.end)
	c.report(t, "listening on")
	return c
}

// report returns the next line of tcpdump about itself that contains a text.
func (c *capture) report(t *testing.T, text string) string {
	t.Helper()
	limit := time.After(captureLimit)
	var heard []string
	for {
		select {
		case line, ok := <-c.reports:
			if heard = append(heard, line); strings.Contains(line, text) {
				return line
			}
			if !ok {
				t.Fatalf("tcpdump on %s has ended: %q", c.host, heard)
			}
		case <-limit:
			t.Fatalf("tcpdump on %s does not say %q within %v: %q", c.host, text, captureLimit, heard)
		}
	}
}

// sameReports is after how many same reports tcpdump has printed all. On the links lo and any the kernel counts packets that it does not print.
const sameReports = 10

// drain returns when tcpdump has printed all packets that the kernel has for it.
func (c *capture) drain(t *testing.T) {
	t.Helper()
	last, same := "", 0
	eventually.Succeeds(t, captureLimit, func() error {
		if _, err := io.WriteString(c.in, "\n"); err != nil {
			return err
		}
		line := c.report(t, " captured")
		if same++; line != last {
			last, same = line, 0
		}
		if m := counts.FindStringSubmatch(line); m == nil || m[1] != m[2] && same < sameReports {
			return fmt.Errorf("tcpdump on %s has not printed all: %s", c.host, line)
		}
		return nil
	})
}

// counts matches tcpdump's report to SIGUSR1.
var counts = regexp.MustCompile(`(\d+) packets? captured, (\d+) packets? received by filter`)

func (c *capture) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.captured.String()
}
