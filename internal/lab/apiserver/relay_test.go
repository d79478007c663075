package apiserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/base/serve"
)

// echo answers each connection with what it got, upper case, when the other side has finished sending.
func echo(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go acceptEach(ctx, l, func(c net.Conn) {
		text, _ := io.ReadAll(c)
		_, _ = c.Write([]byte(strings.ToUpper(string(text))))
	})
	return l.Addr().String()
}

func dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}

// exchange sends a text, ends its side and reads to the end.
func exchange(t *testing.T, c net.Conn, r io.Reader) string {
	t.Helper()
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestForward(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); forward(ctx, l, dial, echo(t)) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := exchange(t, c, c); got != "HELLO" {
		t.Errorf("got %q", got)
	}
	cancel()
	<-done
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("still listens after its context ended")
	}
}

func TestEgress(t *testing.T) {
	target := echo(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nowhere := netip.MustParseAddrPort("127.0.0.9:9")
	go serveEgress(t.Context(), l, func(a netip.AddrPort) DialFunc {
		switch a {
		case nowhere:
			return nil
		case netip.MustParseAddrPort(target):
			return dial
		}
		return func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no way there") }
	})
	tests := []struct {
		request string
		status  int
	}{
		{"CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n\r\n", http.StatusOK},
		{"CONNECT " + nowhere.String() + " HTTP/1.1\r\nHost: " + nowhere.String() + "\r\n\r\n", http.StatusBadGateway},
		{"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n", http.StatusBadGateway},
		{"CONNECT name:80 HTTP/1.1\r\nHost: name:80\r\n\r\n", http.StatusBadRequest},
		{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", http.StatusMethodNotAllowed},
	}
	for _, test := range tests {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, test.request)
		r := bufio.NewReader(c)
		resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != test.status {
			t.Errorf("%q: status %d, want %d", test.request, resp.StatusCode, test.status)
		}
		if resp.StatusCode == http.StatusOK {
			if got := exchange(t, c, r); got != "HELLO" {
				t.Errorf("got %q", got)
			}
		}
		c.Close()
	}
	// A head without end ends the connection.
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nX: %s", target, strings.Repeat("x", 2*serve.MaxHeader))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a head of %d bytes: %v", 2*serve.MaxHeader, err)
	}
}
