package boot

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/supervise"
)

// TestHealth: a process whose server goes on answering is left alone; when the server says nothing more, as one of a process that was
// stopped, the process is killed, and comes back.
func TestHealth(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	server := http.Server{Protocols: &protocols, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	process, err := supervise.Run(supervise.Process{Name: "server", Path: "/bin/sleep", Args: []string{"1000"}},
		func(c *exec.Cmd) error { return c.Start() }, supervise.Options{MinPause: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Stop() })
	if err := answers(t.Context(), socket, time.Minute); err != nil {
		t.Fatal(err)
	}
	go health{pause: time.Millisecond, limit: 200 * time.Millisecond, start: 2, most: 2}.watch(t.Context(), process, socket)
	time.Sleep(20 * time.Millisecond) // some looks, all of which are answered; one that is not does no harm
	if s := process.State(); s.Restarts != 0 {
		t.Errorf("restarted %d times although it answers", s.Restarts)
	}
	defer server.Close()
	dumb := filepath.Join(t.TempDir(), "dumb")
	silent, err := net.Listen("unix", dumb)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close() // connections wait, and no process accepts them
	if err := answers(t.Context(), dumb, 10*time.Millisecond); err == nil {
		t.Error("who says nothing answers")
	}
	go health{pause: time.Millisecond, limit: 10 * time.Millisecond, start: 2, most: 1000}.watch(t.Context(), process, dumb)
	eventually.Succeeds(t, 20*time.Second, func() error {
		if state := process.State(); state.Restarts == 0 {
			return fmt.Errorf("not restarted: %+v", state)
		}
		return nil
	})
}

// TestAnswersWrongly: what is no HTTP/2 is no answer.
func TestAnswersWrongly(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request")
		}
	}()
	if err := answers(t.Context(), socket, time.Minute); err == nil {
		t.Error("HTTP/1.1 is an answer")
	}
	_ = unix.Unlink(socket)
}
