package serve

import (
	"bufio"
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A pipeListener accepts the far ends of pipes, whose time is the test's.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.conns) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// client returns a connection to a server of h.
func client(t *testing.T, h http.HandlerFunc) net.Conn {
	t.Helper()
	l := &pipeListener{conns: make(chan net.Conn, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- New(h, nil).Serve(ctx, l) }()
	here, there := net.Pipe()
	l.conns <- there
	t.Cleanup(func() {
		here.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second) // net/http waits for half a second before it closes a connection that it has answered
	})
	return here
}

// TestSlowClients: who takes too long is cut off at the limit, in each part of a request, and who does not is not.
func TestSlowClients(t *testing.T) {
	readAll := func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }
	for name, tt := range map[string]struct {
		send string
		h    http.HandlerFunc
		want time.Duration // until the connection ends
	}{
		"no request": {"", readAll, HeaderTime},
		"half head":  {"GET / HTTP/1.1\r\nHost: a\r\n", readAll, HeaderTime},
		"no body":    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", readAll, RestTime},
		"half body":  {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab", readAll, RestTime},
		"half chunk": {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", readAll, RestTime},
		"an unread body": {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab",
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }, RestTime},
		"no second request": {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", readAll, IdleTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := client(t, tt.h)
				begin := time.Now()
				go func() { _, _ = io.WriteString(conn, tt.send) }()
				_, _ = io.Copy(io.Discard, conn)
				if took := time.Since(begin); took < tt.want || took > tt.want+time.Second {
					t.Errorf("the connection ended after %v, want %v", took, tt.want)
				}
			})
		})
	}
}

// TestSlowAnswer: neither a body that comes in pieces, each in time, nor an answer that takes long is cut off; nor is its context ended.
func TestSlowAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := client(t, func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Minute)
			if r.Context().Err() != nil {
				t.Error("the context ended")
			}
			_, _ = w.Write(b)
		})
		go func() {
			_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n")
			for range 5 {
				time.Sleep(RestTime - time.Second)
				_, _ = io.WriteString(conn, "x")
			}
		}()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "xxxxx" {
			t.Errorf("%q, %v", b, err)
		}
	})
}

// endless returns n bytes of x.
func endless(n int64) io.Reader { return io.LimitReader(xReader{}, n) }

type xReader struct{}

func (xReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// TestSizes: a head and a body that are too long are refused.
func TestSizes(t *testing.T) {
	for name, tt := range map[string]struct {
		head string
		more int64
		want int
	}{
		"a long head": {"GET / HTTP/1.1\r\nHost: a\r\nX: ", MaxHeader + 8<<10, http.StatusRequestHeaderFieldsTooLarge},
		"a long body": {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n", MaxBody + 1, http.StatusRequestEntityTooLarge},
		"two lengths": {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 2, http.StatusBadRequest},
	} {
		conn := client(t, func(w http.ResponseWriter, r *http.Request) {
			var long *http.MaxBytesError
			if _, err := io.Copy(io.Discard, r.Body); errors.As(err, &long) {
				w.WriteHeader(http.StatusRequestEntityTooLarge)
			}
		})
		go func() { _, _ = io.Copy(conn, io.MultiReader(strings.NewReader(tt.head), endless(tt.more))) }()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != tt.want {
			t.Errorf("%s: %v, %v; want %d", name, resp, err, tt.want)
		}
	}
}

// TestLimit: where all connections have a request, one more waits until another ends, and one direction of a connection can be closed.
func TestLimit(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newLimiter(inner, 1, 1)
	accepted := make(chan net.Conn)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(accepted)
				return
			}
			of := c.(*limitedConn)
			of.stopReadingHead()
			of.use(1)
			accepted <- c
		}
	}()
	for range 2 {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	first := <-accepted
	if err := first.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Error(err)
	}
	select {
	case <-accepted:
		t.Fatal("a second connection is let in beside the first")
	case <-time.After(50 * time.Millisecond): // it has every chance to fail
	}
	first.Close()
	first.Close() // gives no second slot back
	second := <-accepted
	defer second.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, open := <-accepted; open {
		t.Error("accepts after its end")
	}
}

// crowded starts a server of h for few connections, and returns its address.
func crowded(t *testing.T, h http.HandlerFunc, most, mostOfPeer int) string {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(h, nil)
	done := make(chan error, 1)
	go func() { done <- s.http.Serve(newLimiter(inner, most, mostOfPeer)) }()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	return inner.Addr().String()
}

// TestIdleKeepNobodyOut: whoever holds idle connections keeps out neither others nor itself, and connections in use stay.
func TestIdleKeepNobodyOut(t *testing.T) {
	release := make(chan struct{})
	address := crowded(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-release
		}
		_, _ = io.WriteString(w, "ok")
	}, 20, 10)
	slow, err := http.Get("http://" + address + "/slow")
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Body.Close()
	dial := func(from string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	ask := func(c net.Conn) error {
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			return err
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	for range 50 {
		dial("127.0.0.2") // says nothing
	}
	for range 50 {
		if _, err := io.WriteString(dial("127.0.0.3"), "GET / HT"); err != nil { // half a head
			t.Fatal(err)
		}
	}
	kept := dial("127.0.0.4")
	for range 3 { // between its requests it is idle, the shortest time of all
		if err := ask(kept); err != nil {
			t.Errorf("a client that has few: %v", err)
		}
	}
	for _, from := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.5"} {
		if err := ask(dial(from)); err != nil {
			t.Errorf("%s: %v", from, err)
		}
	}
	close(release)
	if text, err := io.ReadAll(slow.Body); string(text) != "ok" {
		t.Errorf("the connection in use: %q, %v", text, err)
	}
}

// TestTakenOver: a connection that a handler has taken over is in use for good.
func TestTakenOver(t *testing.T) {
	address := crowded(t, func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.Copy(c, rw)
		c.Close()
	}, 2, 1)
	first, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	echo := func(text string) error {
		_ = first.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.WriteString(first, text); err != nil {
			return err
		}
		_, err := io.ReadFull(first, make([]byte, len(text)))
		return err
	}
	if _, err := io.WriteString(first, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := echo("a"); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	time.Sleep(50 * time.Millisecond) // it has every chance to be closed
	if err := echo("b"); err != nil {
		t.Errorf("a connection that was taken over: %v", err)
	}
}

// givenConns is a listener of connections whose beginning was read.
type givenConns struct {
	net.Listener
	conns chan net.Conn
}

func (l givenConns) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

// begunConn is a connection whose beginning was read.
type begunConn struct {
	net.Conn
	r io.Reader
}

func (b begunConn) Read(p []byte) (int, error) { return b.r.Read(p) }
func (b begunConn) NetConn() net.Conn          { return b.Conn }

// TestGivenToServer: a connection whose beginning another reader had is idle between its requests like any other.
func TestGivenToServer(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, given := newLimiter(inner, 2, 2), make(chan net.Conn)
	s := New(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil)
	go func() { _ = s.Serve(t.Context(), givenConns{inner, given}) }()
	go func() {
		defer close(given)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(c)
			_, _ = r.Peek(1)
			given <- begunConn{c, r}
		}
	}()
	defer l.Close()
	for range 5 {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOnlyHere checks that only this package and the examples make an HTTP server. The examples are users' programs.
func TestOnlyHere(t *testing.T) {
	files := 0
	err := filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "serve" && strings.HasSuffix(path, "base/serve") || d.Name() == "bin" || d.Name() == ".git" || path == "../../../examples"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		files++
		for _, found := range servers(t, path) {
			t.Errorf("%s: http.%s: use serve.New, which has limits", path, found)
		}
		return nil
	})
	if err != nil || files < 300 {
		t.Errorf("%d files looked at: %v", files, err)
	}
	if got := servers(t, "testdata/server.go"); len(got) != 4 {
		t.Errorf("the example has %q, want 4", got)
	}
}

// servers returns the names of net/http that a file uses to serve.
func servers(t *testing.T, path string) (found []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	name := ""
	for _, i := range file.Imports {
		if i.Path.Value == `"net/http"` {
			name = "http"
			if i.Name != nil {
				name = i.Name.Name
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := s.X.(*ast.Ident); ok && name != "" && x.Name == name {
			switch s.Sel.Name {
			case "Server", "Serve", "ServeTLS", "ListenAndServe", "ListenAndServeTLS":
				found = append(found, s.Sel.Name)
			}
		}
		return true
	})
	return found
}
