package apiserver

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/serve"
)

// DialFunc opens a connection from inside some network namespace.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// forward accepts on l and joins each connection to one that dial opens to address, until ctx ends.
func forward(ctx context.Context, l net.Listener, dial DialFunc, address string) error {
	return acceptEach(ctx, l, func(c net.Conn) {
		up, err := dialBounded(ctx, dial, address)
		if err != nil {
			return
		}
		join(c, up)
	})
}

// serveEgress serves the API server's way into the cluster: an HTTP CONNECT proxy, as its egress selector expects (k8s.io/apiserver,
// pkg/server/egressselector). route chooses the namespace that an address is dialled from.
func serveEgress(ctx context.Context, l net.Listener, route func(netip.AddrPort) DialFunc) error {
	return acceptEach(ctx, l, func(c net.Conn) {
		_ = c.SetReadDeadline(time.Now().Add(Patience))
		bounded := &io.LimitedReader{R: c, N: serve.MaxHeader}
		r := bufio.NewReader(bounded)
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		_ = c.SetReadDeadline(time.Time{})
		bounded.N = math.MaxInt64
		up, status, err := connect(ctx, req, route)
		if err != nil {
			_ = reply(c, status, err.Error()) // the API server may be gone
			return
		}
		if reply(c, http.StatusOK, "") != nil {
			up.Close()
			return
		}
		join(&bufferedConn{Conn: c, r: r}, up)
	})
}

func connect(ctx context.Context, req *http.Request, route func(netip.AddrPort) DialFunc) (net.Conn, int, error) {
	if req.Method != http.MethodConnect {
		return nil, http.StatusMethodNotAllowed, errors.New("only CONNECT")
	}
	target, err := netip.ParseAddrPort(req.Host)
	if err != nil {
		return nil, http.StatusBadRequest, err
	}
	dial := route(target)
	if dial == nil {
		return nil, http.StatusBadGateway, errors.New("no node is up to dial from")
	}
	up, err := dialBounded(ctx, dial, target.String())
	if err != nil {
		return nil, http.StatusBadGateway, err
	}
	return up, http.StatusOK, nil
}

func reply(w io.Writer, status int, message string) error {
	resp := http.Response{StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}}
	if message != "" {
		resp.Header.Set("X-Error", message)
	}
	return resp.Write(w)
}

// Patience is how long a relay waits for a request, and for the other side to accept.
const Patience = 10 * time.Second

func dialBounded(ctx context.Context, dial DialFunc, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	return dial(ctx, "tcp", address)
}

// maxRefusals is how often in a row a connection may not be accepted: out of descriptors for a second.
const maxRefusals = 100

// acceptEach runs handle for each connection, of which there are as many at once as an HTTP server has, and closes the listener when ctx
// ends.
func acceptEach(ctx context.Context, l net.Listener, handle func(net.Conn)) error {
	l = serve.Limit(l)
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for refused := 0; ; {
		c, err := l.Accept()
		if err != nil {
			if refused++; ctx.Err() != nil || errors.Is(err, net.ErrClosed) || refused > maxRefusals {
				return err
			}
			pause.For(ctx, 10*time.Millisecond) // let some close
			continue
		}
		refused = 0
		go func() {
			defer c.Close()
			handle(c)
		}()
	}
}

// join copies both ways until both directions have ended, passing half-closes on.
func join(a, b net.Conn) {
	defer b.Close()
	var wg sync.WaitGroup
	wg.Add(2)
	pipe := func(dst, src net.Conn) {
		defer wg.Done()
		_, err := io.Copy(dst, src)
		if err != nil {
			a.Close()
			b.Close()
			return
		}
		if w, ok := dst.(interface{ CloseWrite() error }); ok {
			_ = w.CloseWrite() // the other side may be gone already
		} else {
			dst.Close()
		}
	}
	go pipe(a, b)
	go pipe(b, a)
	wg.Wait()
}

// bufferedConn is a connection of which a reader has already taken some bytes.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *bufferedConn) Read(p []byte) (int, error) { return c.r.Read(p) }

func (c *bufferedConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Close()
}
