package app

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"
)

// An HTTP/1.x server (RFC 9110, RFC 9112) of the size that the applications need. net/http would make a process a third larger and its
// start three times as long.

type field struct{ name, value string }

type header []field

// get is the field's first value, "" without one; names do not distinguish case (RFC 9110, 5.1).
func (h header) get(name string) string {
	for _, f := range h {
		if strings.EqualFold(f.name, name) {
			return f.value
		}
	}
	return ""
}

// all are the values of the fields of a name.
func (h header) all(name string) (values []string) {
	for _, f := range h {
		if strings.EqualFold(f.name, name) {
			values = append(values, f.value)
		}
	}
	return values
}

type request struct {
	method, target, proto string // as in the request line
	path, query           string // of the target; path is unescaped
	host                  string
	header                header
	body                  []byte
	remote, local         netip.AddrPort
}

// values are the query's parameters.
func (r *request) values() url.Values {
	v, _ := url.ParseQuery(r.query) // what can be parsed
	return v
}

type response struct {
	status int // 0 is 200
	header header
	body   []byte
	file   *os.File // in place of body: so many of its octets, from the first on; who sends the response closes it
	size   int64
	close  bool
}

// length is how many octets the body has.
func (r *response) length() int64 {
	if r.file != nil {
		return r.size
	}
	return int64(len(r.body))
}

func text(status int, body string) response {
	return response{status: status, header: header{{"Content-Type", "text/plain; charset=utf-8"}}, body: []byte(body)}
}

func content(kind string, body []byte) response {
	return response{header: header{{"Content-Type", kind}}, body: body}
}

type handler func(*request) response

var reasons = map[int]string{
	200: "OK", 201: "Created", 204: "No Content", 301: "Moved Permanently", 302: "Found", 304: "Not Modified", 307: "Temporary Redirect",
	400: "Bad Request",
	403: "Forbidden", 404: "Not Found", 405: "Not Allowed", 408: "Request Timeout", 412: "Precondition Failed",
	413: "Request Entity Too Large",
	417: "Expectation Failed", 431: "Request Header Fields Too Large", 500: "Internal Server Error", 501: "Not Implemented",
	503: "Service Unavailable", 505: "HTTP Version Not Supported",
}

// appendResponse is the response on the wire, without its file.
func appendResponse(out []byte, r *request, resp *response, keep bool, now time.Time) []byte {
	status := resp.status
	if status == 0 {
		status = 200
	}
	out = fmt.Appendf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, reasons[status], now.UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT"))
	for _, f := range resp.header {
		out = fmt.Appendf(out, "%s: %s\r\n", f.name, singleLine(f.value))
	}
	if status != 204 && status != 304 {
		out = fmt.Appendf(out, "Content-Length: %d\r\n", resp.length())
	}
	switch {
	case !keep:
		out = append(out, "Connection: close\r\n"...)
	case r.proto == "HTTP/1.0":
		out = append(out, "Connection: keep-alive\r\n"...)
	}
	out = append(out, "\r\n"...)
	if r == nil || r.method != "HEAD" {
		out = append(out, resp.body...)
	}
	return out
}

// singleLine is a text that ends no line, for what comes from a request.
func singleLine(s string) string { return strings.NewReplacer("\r", "", "\n", "").Replace(s) }

// keepAlive says whether the client wants another request on the connection (RFC 9112, 9.3).
func (r *request) keepAlive() bool {
	options := strings.ToLower(r.header.get("Connection"))
	if r.proto == "HTTP/1.0" {
		return strings.Contains(options, "keep-alive")
	}
	return !strings.Contains(options, "close")
}

const (
	idleTimeout    = 75 * time.Second // between requests
	requestTimeout = 60 * time.Second // from a request's first octet to its last
	writeTimeout   = 60 * time.Second // of a response's head with its body, and of each MiB of a file
	drainTime      = 100 * time.Millisecond
)

// maxConnections is how many a server has at once; more wait in the kernel's queue. Tests have fewer.
var maxConnections = 8192

// A server serves connections until its context ends.
type server struct {
	handle handler
	mu     sync.Mutex
	conns  map[net.Conn]bool // true while a request is being answered
	ending bool
	wg     sync.WaitGroup
}

// serve answers the connections that ln accepts until ctx ends; requests that are being answered get drainTime to finish.
func serve(ctx context.Context, ln net.Listener, h handler) error {
	s := &server{handle: h, conns: map[net.Conn]bool{}}
	ln = netutil.LimitListener(ln, maxConnections)
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	for {
		conn, err := ln.Accept()
		if err == nil {
			s.wg.Go(func() { s.connection(conn) })
			continue
		}
		if ctx.Err() != nil {
			s.shutdown()
			return nil
		}
		if !temporary(err) {
			ln.Close()
			s.shutdown()
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func temporary(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && !errors.Is(err, net.ErrClosed)
}

func (s *server) shutdown() {
	s.mu.Lock()
	s.ending = true
	for conn, busy := range s.conns {
		if !busy {
			conn.Close()
		}
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(drainTime):
	}
}

// mark notes whether the connection is busy; false when the server ends and the connection should.
func (s *server) mark(conn net.Conn, busy bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending && !busy {
		return false
	}
	s.conns[conn] = busy
	return true
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 2<<10) }}

func (s *server) connection(conn net.Conn) {
	in := readers.Get().(*bufio.Reader)
	in.Reset(conn)
	defer func() {
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
		conn.Close()
		in.Reset(nil)
		readers.Put(in)
	}()
	for s.mark(conn, false) && s.exchange(conn, in) {
	}
}

// exchange answers one request; false ends the connection.
func (s *server) exchange(conn net.Conn, in *bufio.Reader) bool {
	_ = conn.SetDeadline(time.Now().Add(idleTimeout))
	if _, err := in.Peek(1); err != nil {
		return false
	}
	_ = conn.SetDeadline(time.Now().Add(requestTimeout))
	r, err := readRequest(in, func() error {
		_, err := io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\n")
		return err
	})
	if err != nil {
		refuse(conn, err)
		return false
	}
	s.mark(conn, true)
	r.remote, r.local = addrPort(conn.RemoteAddr()), addrPort(conn.LocalAddr())
	resp := s.handle(r)
	if resp.file != nil {
		defer resp.file.Close()
	}
	keep := r.keepAlive() && !resp.close
	_ = conn.SetDeadline(time.Now().Add(writeTimeout))
	_, err = conn.Write(appendResponse(nil, r, &resp, keep, time.Now()))
	if err == nil && resp.file != nil && r.method != "HEAD" {
		err = sendFile(conn, resp.file, resp.size)
	}
	return keep && err == nil
}

// sendFile sends so many octets. A file that has fewer by now is an error, which ends the connection.
func sendFile(conn net.Conn, file io.Reader, size int64) error {
	for size > 0 {
		_ = conn.SetDeadline(time.Now().Add(writeTimeout))
		n, err := io.CopyN(conn, file, min(size, 1<<20))
		if err != nil {
			return err
		}
		size -= n
	}
	return nil
}

// refuse answers a request that cannot be read, if there is somebody to answer.
func refuse(conn net.Conn, err error) {
	var bad *badRequest
	if !errors.As(err, &bad) {
		return
	}
	resp := text(bad.status, bad.why+"\n")
	_, _ = conn.Write(appendResponse(nil, &request{}, &resp, false, time.Now()))
}

// addrPort is a TCP or UDP address with IPv4 as such, not mapped into IPv6.
func addrPort(a net.Addr) netip.AddrPort {
	var ap netip.AddrPort
	switch a := a.(type) {
	case *net.TCPAddr:
		ap = a.AddrPort()
	case *net.UDPAddr:
		ap = a.AddrPort()
	}
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}

// dump is the request's head as it came, each line with \r\n but the last.
func (r *request) dump() string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s %s", r.method, r.target, r.proto)
	for _, f := range r.header {
		fmt.Fprintf(&b, "\r\n%s: %s", f.name, f.value)
	}
	return b.String()
}

// listenHTTP serves a handler on a TCP port of every address, IPv4 and IPv6, as a program's whole life.
func listenHTTP(ctx context.Context, p *Process, port int, h handler) int {
	ln, err := net.Listen("tcp", ":"+strconv.Itoa(port))
	if err != nil {
		fmt.Fprintf(p.Stderr, "%s: %v\n", p.Args[0], err)
		return 1
	}
	p.Ready()
	if err := serve(ctx, ln, h); err != nil {
		fmt.Fprintf(p.Stderr, "%s: %v\n", p.Args[0], err)
		return 1
	}
	return 0
}
