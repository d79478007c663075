package container_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"packetwalk.dev/internal/pods/container"
)

// TestExecInHostileDev: what a container puts into its /dev changes nothing for a command without input or on a terminal of its own: a
// pipe would hold up whoever starts it, a link lead to what the first process has open.
func TestExecInHostileDev(t *testing.T) {
	m := newMachine(t)
	for _, spoil := range []string{"mkfifo /dev/null", "ln -s /proc/1/task/1/fd/0 /dev/null", "mkfifo /dev/null /dev/ptmx"} {
		c := m.start(m.spec("agnhost"))
		m.run(c, "sh", "-c", "rm -f /dev/null /dev/ptmx; "+spoil)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var out bytes.Buffer
		code, err := c.Exec(ctx, container.Exec{Args: []string{"sh", "-c", "readlink /proc/self/fd/0; wc -c"}, Stdout: &out})
		if code != 0 || err != nil || out.String() != "/dev/null\n0\n" {
			t.Errorf("%s: %d, %v, %q", spoil, code, err, out.String())
		}
		out.Reset()
		code, err = c.Exec(ctx, container.Exec{Args: []string{"tty"}, TTY: true, Stdout: &out})
		if code != 0 || err != nil {
			t.Errorf("%s: a terminal: %d, %v, %q", spoil, code, err, out.String())
		}
		contains(t, out.String(), "/dev/pts/")
	}
}
