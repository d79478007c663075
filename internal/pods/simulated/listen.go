package simulated

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/serve"
	"packetwalk.dev/internal/kernel/netns"
)

// The limits of a pod's listeners, beside those of package serve.
const (
	idle        = time.Minute // of a connection that does not speak HTTP
	maxDatagram = 64 << 10
)

// servers are what a pod listens with.
type servers struct {
	name     string // of the pod
	http     *serve.Server
	accepted handover // connections to all ports
	speaking handover // those that speak HTTP
	ctx      context.Context
	stop     context.CancelFunc
	open     []io.Closer
	running  sync.WaitGroup
}

// listenFor listens in a pod's network namespace on all container ports that the pod declares: TCP answers HTTP requests and sends back
// anything else, UDP sends back.
func listenFor(ctx context.Context, at *netns.Namespace, o *corev1.Pod) (*servers, error) {
	s := &servers{name: o.Name}
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.accepted, s.speaking = newHandover(s.ctx), newHandover(s.ctx)
	limited := serve.Limit(s.accepted)
	s.open = append(s.open, limited)
	s.running.Go(func() { accept(s.ctx, limited, func(c net.Conn) { s.running.Go(func() { s.answer(c) }) }) })
	s.http = serve.New(s, nil)
	s.running.Go(func() { _ = s.http.Serve(s.ctx, s.speaking) }) // until close
	for _, c := range o.Spec.Containers {
		for _, p := range c.Ports {
			if err := s.listen(ctx, at, p); err != nil {
				s.close()
				return nil, err
			}
		}
	}
	return s, nil
}

func (s *servers) listen(ctx context.Context, at *netns.Namespace, p corev1.ContainerPort) error {
	port := ":" + strconv.Itoa(int(p.ContainerPort))
	switch p.Protocol {
	case corev1.ProtocolUDP:
		conn, err := at.ListenPacket(ctx, "udp", port)
		if err != nil {
			return err
		}
		s.open = append(s.open, conn)
		s.running.Go(func() { s.echoDatagrams(conn) })
	case corev1.ProtocolTCP, "":
		l, err := at.Listen(ctx, "tcp", port)
		if err != nil {
			return err
		}
		s.open = append(s.open, l)
		s.running.Go(func() { accept(s.ctx, l, s.accepted.give) })
	}
	return nil // SCTP is in Unsupported
}

// close ends the listeners and their connections.
func (s *servers) close() {
	s.stop()
	for _, c := range s.open {
		_ = c.Close()
	}
	s.http.Close()
	s.running.Wait()
}

// accept takes a listener's connections until it is closed.
func accept(ctx context.Context, l net.Listener, take func(net.Conn)) {
	for {
		conn, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no descriptors are left, as a rule
			pause.For(ctx, 100*time.Millisecond)
		default:
			take(conn)
		}
	}
}

// methods are those of HTTP requests (RFC 9110, section 9; RFC 5789).
var methods = []string{"GET ", "HEAD ", "POST ", "PUT ", "DELETE ", "CONNECT ", "OPTIONS ", "TRACE ", "PATCH "}

// speaksHTTP reports whether a connection begins as a request does.
func speaksHTTP(begin string) bool {
	for _, m := range methods {
		if strings.HasPrefix(begin, m) || strings.HasPrefix(m, begin) {
			return true
		}
	}
	return false
}

// answer hands a connection to the HTTP server when it begins as a request does, and sends back what comes over any other.
func (s *servers) answer(conn net.Conn) {
	c := &bufferedConn{Conn: conn, r: bufio.NewReader(conn)}
	stop := context.AfterFunc(s.ctx, func() { c.Close() })
	_ = conn.SetReadDeadline(time.Now().Add(idle))
	if _, err := c.r.Peek(1); err != nil {
		stop()
		c.Close()
		return
	}
	begin, _ := c.r.Peek(c.r.Buffered())
	if speaksHTTP(string(begin)) {
		_ = conn.SetReadDeadline(time.Time{})
		s.speaking.give(c)
		stop()
		return
	}
	defer stop()
	defer c.Close()
	for b := make([]byte, 4<<10); ; {
		_ = conn.SetDeadline(time.Now().Add(idle))
		n, err := c.r.Read(b)
		if n > 0 {
			if _, err := conn.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// bufferedConn is a connection whose beginning was read already.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (b *bufferedConn) Read(p []byte) (int, error) { return b.r.Read(p) }

// NetConn returns the connection below, for the server's limits ([serve.Limit]).
func (b *bufferedConn) NetConn() net.Conn { return b.Conn }

// handover is a listener of connections that are accepted already.
type handover struct {
	ctx   context.Context
	conns chan net.Conn
}

func newHandover(ctx context.Context) handover { return handover{ctx, make(chan net.Conn)} }

func (h handover) give(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.ctx.Done():
		c.Close()
	}
}

func (h handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (handover) Close() error   { return nil }
func (handover) Addr() net.Addr { return &net.TCPAddr{} }

// ServeHTTP answers as the image whereami does: with the request, its addresses as the pod sees them, and the pod's name.
func (s *servers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	host, port, _ := net.SplitHostPort(r.RemoteAddr)
	myHost, myPort, _ := net.SplitHostPort(fmt.Sprint(local))
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	_ = out.Encode(struct { // the client may have gone
		Hostname     string      `json:"hostname"`
		MyAddress    string      `json:"my_private_ip"`
		MyPort       json.Number `json:"my_port"`
		YourAddress  string      `json:"your_address"`
		YourPort     json.Number `json:"your_port"`
		Host         string      `json:"host"`
		ForwardedFor string      `json:"x-forwarded-for,omitempty"`
		Method       string      `json:"method"`
		Path         string      `json:"path_accessed"`
		Browser      string      `json:"your_browser,omitempty"`
	}{s.name, myHost, json.Number(myPort), host, json.Number(port), r.Host, strings.Join(r.Header.Values("X-Forwarded-For"), ", "), r.Method,
		r.URL.RequestURI(), r.UserAgent()})
}

func (s *servers) echoDatagrams(conn net.PacketConn) {
	for b := make([]byte, maxDatagram); ; {
		n, from, err := conn.ReadFrom(b)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // an earlier answer was refused, as a rule
			continue
		}
		_, _ = conn.WriteTo(b[:n], from) // datagrams get lost
	}
}
