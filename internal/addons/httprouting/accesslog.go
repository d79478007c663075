package httprouting

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// An accessLog writes a line for each request in ingress-nginx's format upstreaminfo (docs/user-guide/nginx-configuration/log-format.md).
// Lines that come while others are written are written together: a write wakes the container's log, which takes longer than the line. Those
// that come while maxLines wait are lost, and counted.
type accessLog struct {
	w io.Writer

	mu      sync.Mutex
	lines   []byte        // to be written
	lost    int           // lines since those
	spare   []byte        // what was written, for the next lines
	writing chan struct{} // closes when all is written; nil: no write is in progress
}

func newAccessLog(w io.Writer) *accessLog { return &accessLog{w: w} }

// maxLines is the most that waits to be written, in bytes. The limit is needed because the log may have no reader.
const maxLines = 4 << 20

func (l *accessLog) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines)+len(line) > maxLines {
		l.lost++
		return
	}
	l.lines = append(l.lines, line...)
	if l.writing == nil {
		l.writing = make(chan struct{})
		go l.flush()
	}
}

func (l *accessLog) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.lines) > 0 {
		lines := l.lines
		if l.lost > 0 {
			lines = fmt.Appendf(lines, "%d requests are not in this log: it was not read in time\n", l.lost)
			l.lost = 0
		}
		l.lines = l.spare[:0]
		l.mu.Unlock()
		_, _ = l.w.Write(lines)
		l.mu.Lock()
		l.spare = lines
	}
	close(l.writing)
	l.writing = nil
}

// wait returns when all is written, or after the limit.
func (l *accessLog) wait(limit time.Duration) {
	l.mu.Lock()
	writing := l.writing
	l.mu.Unlock()
	if writing == nil {
		return
	}
	select {
	case <-writing:
	case <-time.After(limit):
	}
}

func (l *accessLog) write(r *http.Request, x *exchange, w *countingWriter, body int64) {
	l.add(logLine(r, x, w, body, time.Now()))
}

func logLine(r *http.Request, x *exchange, w *countingWriter, body int64, now time.Time) string {
	client, _, _ := net.SplitHostPort(r.RemoteAddr)
	user, _, _ := r.BasicAuth()
	addresses, lengths, times, statuses := x.columns(w.n)
	return fmt.Sprintf("%s - %s [%s] \"%s\" %d %d \"%s\" \"%s\" %d %.3f [%s] [] %s %s %s %s %s\n",
		client, logged(user), now.UTC().Format("02/Jan/2006:15:04:05 +0000"), logged(r.Method+" "+r.RequestURI+" "+r.Proto), w.status, w.n,
		logged(r.Referer()), logged(r.UserAgent()), headLength(r)+body, now.Sub(x.start).Seconds(), x.upstream(),
		addresses, lengths, times, statuses, logged(x.id))
}

// upstream returns $proxy_upstream_name.
func (x *exchange) upstream() string {
	if x.decision.Route == nil {
		return "upstream-default-backend"
	}
	return x.decision.Backend.Name()
}

// columns returns $upstream_addr, $upstream_response_length, $upstream_response_time and $upstream_status: a value a try, by commas.
func (x *exchange) columns(length int64) (addresses, lengths, times, statuses string) {
	if len(x.tries) == 0 {
		return "-", "-", "-", "-"
	}
	var a, l, t, s []string
	for i, try := range x.tries {
		n := int64(0)
		if i == len(x.tries)-1 {
			n = length
		}
		a, l = append(a, try.endpoint.String()), append(l, strconv.FormatInt(n, 10))
		t, s = append(t, fmt.Sprintf("%.3f", try.took.Seconds())), append(s, strconv.Itoa(try.status))
	}
	return strings.Join(a, ", "), strings.Join(l, ", "), strings.Join(t, ", "), strings.Join(s, ", ")
}

// headLength returns the length of a request's line and header as HTTP/1.1 writes them.
func headLength(r *http.Request) int64 {
	n := len(r.Method) + len(r.RequestURI) + len(r.Proto) + len("  \r\n") + len("Host: \r\n") + len(r.Host) + len("\r\n")
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(v) + len(": \r\n")
		}
	}
	return int64(n)
}

// logged writes what could forge a log line as \xXX, as nginx does, and nothing as "-".
func logged(s string) string {
	if s == "" {
		return "-"
	}
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c >= 0x20 && c < 0x7f && c != '"' && c != '\\' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, `\x%02X`, c)
		}
	}
	return b.String()
}

// countingWriter notes the status and the length of a response, also of one that became another protocol's connection.
type countingWriter struct {
	http.ResponseWriter
	status int
	n      int64
}

// Unwrap returns the writer below, for http.ResponseController.
func (w *countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *countingWriter) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *countingWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.n += int64(n)
	return n, err
}

// Hijack counts what goes over the connection to the client.
func (w *countingWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil && w.status == 0 {
		w.status = http.StatusSwitchingProtocols // which the reverse proxy writes to the connection itself
	}
	return &countingConn{conn, &w.n}, buffered, err
}

type countingConn struct {
	net.Conn
	n *int64
}

func (c *countingConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	*c.n += int64(n)
	return n, err
}

type countingReader struct {
	io.ReadCloser
	n int64
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.n += int64(n)
	return n, err
}
