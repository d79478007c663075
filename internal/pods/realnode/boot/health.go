package boot

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/supervise"
)

// How often a container runtime is asked, how long it may take to answer, and how often in a row it may fail to: one that hangs is started
// again within a minute. Its containers go on.
const (
	healthPause = 5 * time.Second
	healthLimit = 10 * time.Second
	mostSilent  = 3
	startSilent = 12 // before it has answered for the first time: on a busy machine it takes its time to start
)

// A health is how a process is watched that serves gRPC.
type health struct {
	pause, limit time.Duration
	start, most  int
}

// watch kills a process that does not answer on its socket, until ctx ends. Its supervisor starts it again.
func (h health) watch(ctx context.Context, process *supervise.Supervisor, socket string) {
	silent, of, most := 0, 0, 0
	for pause.For(ctx, h.pause) {
		state := process.State()
		err := answers(ctx, socket, h.limit)
		if state.Pid != of {
			silent, of, most = 0, state.Pid, h.start
		}
		if err == nil {
			silent, most = 0, h.most // it has started
		}
		if err == nil || state.Pid == 0 {
			continue
		}
		if silent++; silent == most {
			fmt.Fprintf(os.Stderr, "%s does not answer (%v), and is started again\n", state.Name, err)
			_ = unix.Kill(state.Pid, unix.SIGKILL)
		}
	}
}

// answers reports whether a server of HTTP/2, as gRPC is, greets who connects: each side sends a SETTINGS frame first (RFC 9113, section
// 3.4), whose header is of nine bytes, the fourth its type (section 4.1).
func answers(ctx context.Context, socket string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return err
	}
	const settings = 4
	if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+string([]byte{0, 0, 0, settings, 0, 0, 0, 0, 0})); err != nil {
		return err
	}
	var header [9]byte
	if _, err := io.ReadFull(c, header[:]); err != nil {
		return err
	}
	if header[3] != settings {
		return fmt.Errorf("the server begins with a frame of type %d", header[3])
	}
	return nil
}
