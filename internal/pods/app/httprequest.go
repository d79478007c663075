package app

import (
	"bufio"
	"errors"
	"io"
	"net/url"
	"strconv"
	"strings"
)

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

// readBody reads what follows the head. How long it is must be said once, in one way: who says it twice may have another server read
// another request (RFC 9112, 6.1 and 6.3).
func (r *request) readBody(in *bufio.Reader) error {
	codings, lengths := r.header.all("Transfer-Encoding"), r.header.all("Content-Length")
	switch {
	case len(codings)+len(lengths) == 0:
		return nil
	case len(codings)+len(lengths) > 1:
		return &badRequest{400, "more than one Content-Length or Transfer-Encoding"}
	case len(codings) == 1 && r.proto == "HTTP/1.0":
		return &badRequest{400, "HTTP/1.0 has no Transfer-Encoding"}
	case len(codings) == 1 && !strings.EqualFold(codings[0], "chunked"):
		return &badRequest{501, "unsupported transfer coding"}
	case len(codings) == 1:
		return r.readChunks(in)
	}
	n, err := strconv.ParseUint(lengths[0], 10, 63)
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

// readChunks reads RFC 9112, 7.1. Its lines must end with CR LF: what others take for part of an extension must not be a line here.
func (r *request) readChunks(in *bufio.Reader) error {
	head := &headReader{in: in, left: maxHead, strict: true}
	for {
		line, err := head.line()
		if err != nil {
			return err
		}
		size, _, _ := strings.Cut(line, ";")
		n, err := strconv.ParseUint(strings.TrimRight(size, " \t"), 16, 63)
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

// A headReader reads lines of text, of which there are left octets at most.
type headReader struct {
	in     *bufio.Reader
	left   int
	strict bool // a line ends with CR LF; otherwise LF alone will do (RFC 9112, 2.2)
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
		text := strings.TrimSuffix(string(line), "\n")
		bare, cr := strings.CutSuffix(text, "\r")
		if h.strict && !cr || strings.ContainsFunc(bare, isControl) {
			return "", &badRequest{400, "malformed line"}
		}
		return bare, nil
	}
}

// isControl is what no line may have: RFC 9112, 2.2 and RFC 9110, 5.5.
func isControl(r rune) bool { return r < 0x20 && r != '\t' || r == 0x7f }
