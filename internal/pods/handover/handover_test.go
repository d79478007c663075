package handover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
)

// serve takes namespaces at a socket until the test ends; stop ends it before.
func serve(t *testing.T, join func(context.Context, *os.File) (netip.Prefix, error)) (socket string, stop func()) {
	t.Helper()
	kerneltest.NeedRoot(t)
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { _ = Serve(ctx, l, join); close(done) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return socket, stop
}

// TestHandover: who makes the network gets the namespace that was sent, and the plugin its answer: an address, or why there is none.
func TestHandover(t *testing.T) {
	want := netip.MustParsePrefix("10.13.100.4/24")
	fail := false
	socket, _ := serve(t, func(_ context.Context, f *os.File) (netip.Prefix, error) {
		var sent, own unix.Stat_t
		if err := errors.Join(unix.Fstat(int(f.Fd()), &sent), unix.Stat("/proc/self/ns/net", &own)); err != nil || sent.Ino != own.Ino {
			t.Errorf("it got another file: %v", err)
		}
		if fail {
			return netip.Prefix{}, errors.New("no free address")
		}
		return want, nil
	})
	if got, err := send(socket, "/proc/self/ns/net"); err != nil || got != want {
		t.Errorf("%v, %v", got, err)
	}
	fail = true
	if got, err := send(socket, "/proc/self/ns/net"); err == nil || err.Error() != "no free address" {
		t.Errorf("%v, %v", got, err)
	}
}

// TestHostileSender shows that a message without a namespace, or with two, gets an error and leaves no file open. A silent sender does not
// delay the end of serving.
func TestHostileSender(t *testing.T) {
	socket, stop := serve(t, func(context.Context, *os.File) (netip.Prefix, error) {
		t.Error("it was taken")
		return netip.Prefix{}, nil
	})
	before := openFiles(t)
	for _, rights := range [][]byte{nil, unix.UnixRights(0, 0)} {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.(*net.UnixConn).WriteMsgUnix([]byte{0}, rights, nil); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 1000)
		n, err := c.Read(answer)
		if err != nil || !strings.Contains(string(answer[:n]), "no namespace in the message") {
			t.Errorf("%s, %v", answer[:n], err)
		}
		c.Close()
	}
	eventually.Succeeds(t, 10*time.Second, func() error { // the server closes its connection after the answer
		if after := openFiles(t); after > before {
			return fmt.Errorf("%d files are open, %d were", after, before)
		}
		return nil
	})
	silent, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	time.Sleep(50 * time.Millisecond) // until it is accepted
	begin := time.Now()
	stop()
	if time.Since(begin) > 10*time.Second {
		t.Errorf("serving ended after %v", time.Since(begin))
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}
