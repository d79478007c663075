package serve

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// crowdFrom opens n connections from an address, each of which sends text and then nothing.
func crowdFrom(t *testing.T, from, address, text string, n int) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	for range n {
		c, err := d.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_, _ = io.WriteString(c, text) // the server may have closed it
	}
}

// TestFullCrowd: with the limits of production, 4,096 idle connections of one peer delay neither that peer nor another.
func TestFullCrowd(t *testing.T) {
	for name, text := range map[string]string{"silent": "", "half head": "GET / HT", "kept alive": "GET / HTTP/1.1\r\nHost: a\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
			go func() { _ = New(h, nil).Serve(ctx, l) }()
			crowdFrom(t, "127.0.0.2", l.Addr().String(), text, 4096)
			for _, from := range []string{"127.0.0.2", "127.0.0.3"} {
				begin := time.Now()
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
				c, err := d.Dial("tcp", l.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				_ = c.SetDeadline(begin.Add(10 * time.Second)) // without room there is no answer at all
				_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
				_, err = http.ReadResponse(bufio.NewReader(c), nil)
				t.Logf("%s: %v", from, time.Since(begin))
				if err != nil {
					t.Errorf("%s: %v", from, err)
				}
			}
		})
	}
}

// relayed accepts connections of a limiter that are no server's, and sends back what comes.
func relayed(t *testing.T, most, mostOfPeer int) string {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newLimiter(inner, most, mostOfPeer)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); c.Close() }()
		}
	}()
	return inner.Addr().String()
}

func dialFrom(t *testing.T, from, address string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func echo(c net.Conn, text string) error {
	_ = c.SetDeadline(time.Now().Add(10 * time.Second)) // without room there is no answer at all
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, len(text)))
	return err
}

// TestRelayCrowd: with the limits of production, 4,096 connections of one peer that were used once delay neither that peer nor another, and
// close no connection of another.
func TestRelayCrowd(t *testing.T) {
	address := relayed(t, MaxConnections, MaxOfPeer)
	other := dialFrom(t, "127.0.0.3", address)
	if err := echo(other, "a"); err != nil {
		t.Fatal(err)
	}
	crowdFrom(t, "127.0.0.2", address, "x", MaxConnections)
	for _, from := range []string{"127.0.0.2", "127.0.0.4"} {
		if err := echo(dialFrom(t, from, address), "a"); err != nil {
			t.Errorf("a new connection from %s: %v", from, err)
		}
	}
	if err := echo(other, "b"); err != nil {
		t.Errorf("a connection that another peer had: %v", err)
	}
}

// TestRelayBusy: of one peer's connections the one that has been silent for longest is closed.
func TestRelayBusy(t *testing.T) {
	address := relayed(t, 10, 5)
	busy := dialFrom(t, "127.0.0.1", address)
	for range 30 {
		if err := echo(busy, "a"); err != nil {
			t.Fatal(err)
		}
		if err := echo(dialFrom(t, "127.0.0.1", address), "x"); err != nil {
			t.Fatal(err)
		}
	}
}
