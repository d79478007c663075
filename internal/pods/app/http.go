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
	"strconv"
	"strings"
	"sync"
	"time"
)

// An HTTP/1.x server (RFC 9110, RFC 9112) of the size that the applications need. net/http would make a process a third larger and its start
// three times as long.

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
	close  bool
}

func text(status int, body string) response {
	return response{status: status, header: header{{"Content-Type", "text/plain; charset=utf-8"}}, body: []byte(body)}
}

func content(kind string, body []byte) response {
	return response{header: header{{"Content-Type", kind}}, body: body}
}

type handler func(*request) response

var reasons = map[int]string{
	200: "OK", 201: "Created", 204: "No Content", 301: "Moved Permanently", 302: "Found", 304: "Not Modified", 307: "Temporary Redirect", 400: "Bad Request",
	403: "Forbidden", 404: "Not Found", 405: "Not Allowed", 408: "Request Timeout", 412: "Precondition Failed", 413: "Request Entity Too Large",
	417: "Expectation Failed", 431: "Request Header Fields Too Large", 500: "Internal Server Error", 501: "Not Implemented",
	503: "Service Unavailable", 505: "HTTP Version Not Supported",
}

// A badRequest is answered and ends the connection.
type badRequest struct {
	status int
	why    string
}

func (b *badRequest) Error() string { return b.why }

const (
	maxHead = 32 << 10
	maxBody = 1 << 20
)

// readRequest reads one request. io.EOF means that the client closed between requests. continues is called before a body that waits for it.
func readRequest(in *bufio.Reader, continues func() error) (*request, error) {
	head := &headReader{in: in, left: maxHead}
	line, err := head.line()
	for err == nil && line == "" { // RFC 9112, 2.2: an empty line before a request is to be ignored
		line, err = head.line()
	}
	if err != nil {
		return nil, err
	}
	r, err := parseRequestLine(line)
	if err != nil {
		return nil, err
	}
	if err := r.readFields(head); err != nil {
		return nil, unexpected(err)
	}
	if err := r.findHost(); err != nil {
		return nil, err
	}
	if strings.EqualFold(r.header.get("Expect"), "100-continue") && r.proto == "HTTP/1.1" {
		if err := continues(); err != nil {
			return nil, err
		}
	}
	return r, unexpected(r.readBody(in))
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func parseRequestLine(line string) (*request, error) {
	method, rest, ok1 := strings.Cut(line, " ")
	target, proto, ok2 := strings.Cut(rest, " ")
	if !ok1 || !ok2 || !isToken(method) || target == "" || strings.ContainsAny(target, " \t") {
		return nil, &badRequest{400, "malformed request line"}
	}
	if proto != "HTTP/1.1" && proto != "HTTP/1.0" {
		if strings.HasPrefix(proto, "HTTP/") {
			return nil, &badRequest{505, "unsupported HTTP version"}
		}
		return nil, &badRequest{400, "malformed HTTP version"}
	}
	r := &request{method: method, target: target, proto: proto}
	if target == "*" {
		r.path = "*"
		return r, nil
	}
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return nil, &badRequest{400, "malformed request target"}
	}
	r.path, r.query, r.host = u.Path, u.RawQuery, u.Host
	return r, nil
}

// isToken is RFC 9110's token (5.6.2).
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !alnum && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

func (r *request) readFields(head *headReader) error {
	for {
		line, err := head.line()
		if err != nil || line == "" {
			return err
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) {
			return &badRequest{400, "malformed header field"}
		}
		r.header = append(r.header, field{name, strings.Trim(value, " \t")})
	}
}

func (r *request) findHost() error {
	hosts := 0
	for _, f := range r.header {
		if strings.EqualFold(f.name, "Host") {
			hosts++
		}
	}
	if hosts > 1 || hosts == 0 && r.proto == "HTTP/1.1" {
		return &badRequest{400, "one Host header field is required"} // RFC 9112, 3.2
	}
	if r.host == "" {
		r.host = r.header.get("Host")
	}
	return nil
}

func (r *request) readBody(in *bufio.Reader) error {
	if coding := r.header.get("Transfer-Encoding"); coding != "" {
		if !strings.EqualFold(coding, "chunked") {
			return &badRequest{501, "unsupported transfer coding"}
		}
		return r.readChunks(in)
	}
	length := r.header.get("Content-Length")
	if length == "" {
		return nil
	}
	n, err := strconv.ParseUint(length, 10, 63)
	if err != nil {
		return &badRequest{400, "malformed Content-Length"}
	}
	return r.readN(in, n)
}

func (r *request) readN(in *bufio.Reader, n uint64) error {
	if uint64(len(r.body))+n > maxBody {
		return &badRequest{413, "request body too large"}
	}
	old := len(r.body)
	r.body = append(r.body, make([]byte, n)...)
	_, err := io.ReadFull(in, r.body[old:])
	return err
}

// readChunks reads RFC 9112, 7.1.
func (r *request) readChunks(in *bufio.Reader) error {
	head := &headReader{in: in, left: maxHead}
	for {
		line, err := head.line()
		if err != nil {
			return err
		}
		size, _, _ := strings.Cut(line, ";")
		n, err := strconv.ParseUint(strings.TrimSpace(size), 16, 63)
		if err != nil {
			return &badRequest{400, "malformed chunk size"}
		}
		if n == 0 {
			break
		}
		if err := r.readN(in, n); err != nil {
			return err
		}
		if line, err := head.line(); err != nil || line != "" {
			return errors.Join(&badRequest{400, "malformed chunk"}, err)
		}
	}
	for { // trailers
		line, err := head.line()
		if err != nil || line == "" {
			return err
		}
	}
}

type headReader struct {
	in   *bufio.Reader
	left int
}

func (h *headReader) line() (string, error) {
	var line []byte
	for {
		part, err := h.in.ReadSlice('\n')
		if h.left -= len(part); h.left < 0 {
			return "", &badRequest{431, "request header too large"}
		}
		line = append(line, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if errors.Is(err, io.EOF) && len(line) > 0 {
			return "", io.ErrUnexpectedEOF
		}
		if err != nil {
			return "", err
		}
		return strings.TrimSuffix(strings.TrimSuffix(string(line), "\n"), "\r"), nil
	}
}

// appendResponse is the response on the wire.
func appendResponse(out []byte, r *request, resp *response, keep bool, now time.Time) []byte {
	status := resp.status
	if status == 0 {
		status = 200
	}
	out = fmt.Appendf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, reasons[status], now.UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT"))
	for _, f := range resp.header {
		out = fmt.Appendf(out, "%s: %s\r\n", f.name, f.value)
	}
	if status != 204 && status != 304 {
		out = fmt.Appendf(out, "Content-Length: %d\r\n", len(resp.body))
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

// keepAlive says whether the client wants another request on the connection (RFC 9112, 9.3).
func (r *request) keepAlive() bool {
	options := strings.ToLower(r.header.get("Connection"))
	if r.proto == "HTTP/1.0" {
		return strings.Contains(options, "keep-alive")
	}
	return !strings.Contains(options, "close")
}

const (
	idleTimeout  = 75 * time.Second
	writeTimeout = 60 * time.Second
	drainTime    = 100 * time.Millisecond
)

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
	keep := r.keepAlive() && !resp.close
	_ = conn.SetDeadline(time.Now().Add(writeTimeout))
	_, err = conn.Write(appendResponse(nil, r, &resp, keep, time.Now()))
	return keep && err == nil
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
