package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	servers "packetwalk.dev/internal/base/serve"
)

// A request is one of HTTP as the applications look at it, and a response what they answer.
type request struct {
	method, target, proto string // as in the request line
	path, query           string // of the target; path is unescaped
	host                  string
	header                http.Header
	body                  []byte
	remote, local         netip.AddrPort
}

// values returns the query's parameters.
func (r *request) values() url.Values {
	v, _ := url.ParseQuery(r.query) // what can be parsed
	return v
}

type response struct {
	status int // 0 is 200
	header map[string]string
	body   []byte
	file   *os.File // in place of body: so many of its bytes, from the first on; who sends the response closes it
	size   int64
	close  bool
}

// length returns how many bytes the body has.
func (r *response) length() int64 {
	if r.file != nil {
		return r.size
	}
	return int64(len(r.body))
}

func text(status int, body string) response {
	return response{status: status, header: map[string]string{"Content-Type": "text/plain; charset=utf-8"}, body: []byte(body)}
}

func content(kind string, body []byte) response {
	return response{header: map[string]string{"Content-Type": kind}, body: body}
}

type handler func(*request) response

const (
	maxBody   = 1 << 20 // of a request, bytes
	drainTime = 100 * time.Millisecond
)

// ServeHTTP answers a request by net/http.
func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		http.Error(w, "request body too large", http.StatusRequestEntityTooLarge)
		return
	case err != nil:
		http.Error(w, "malformed body", http.StatusBadRequest)
		return
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	remote, _ := netip.ParseAddrPort(r.RemoteAddr) // net/http's own
	resp := h(&request{method: r.Method, target: r.RequestURI, proto: r.Proto, path: r.URL.Path, query: r.URL.RawQuery, host: r.Host,
		header: r.Header, body: body, remote: plain(remote), local: addrPort(local)})
	resp.write(w, r.Method)
}

func (r *response) write(w http.ResponseWriter, method string) {
	for name, value := range r.header {
		w.Header().Set(name, value)
	}
	w.Header().Set("Content-Length", strconv.FormatInt(r.length(), 10))
	if r.close {
		w.Header().Set("Connection", "close")
	}
	status := r.status
	if status < 100 || status > 999 {
		status = http.StatusOK
	}
	w.WriteHeader(status)
	if r.file == nil {
		_, _ = w.Write(r.body) // the client may have gone
		return
	}
	defer r.file.Close()
	if method == http.MethodHead {
		return
	}
	if n, err := io.CopyN(w, r.file, r.size); err != nil && n < r.size {
		panic(http.ErrAbortHandler) // the file became shorter than was said, or the client has gone
	}
}

// serve answers the connections that ln accepts until ctx ends; requests that are being answered get drainTime to finish.
func serve(ctx context.Context, ln net.Listener, h handler) error {
	s := servers.New(h, nil)
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		bounded, cancel := context.WithTimeout(context.Background(), drainTime)
		defer cancel()
		_ = s.Shutdown(bounded)
		s.Close()
	})
	err := s.Serve(context.Background(), ln)
	if !stop() {
		<-ended
		return nil
	}
	return err
}

// addrPort returns a TCP or UDP address with IPv4 as such, not mapped into IPv6.
func addrPort(a net.Addr) netip.AddrPort {
	switch a := a.(type) {
	case *net.TCPAddr:
		return plain(a.AddrPort())
	case *net.UDPAddr:
		return plain(a.AddrPort())
	}
	return netip.AddrPort{}
}

func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// dump returns the request's head, each line with \r\n but the last; its fields sorted, the host first.
func (r *request) dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s\r\nHost: %s", r.method, r.target, r.proto, r.host)
	for _, name := range slices.Sorted(maps.Keys(r.header)) {
		for _, value := range r.header[name] {
			fmt.Fprintf(&b, "\r\n%s: %s", name, value)
		}
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
