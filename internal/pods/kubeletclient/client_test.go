package kubeletclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apimachinery/pkg/util/httpstream/spdy"

	"packetwalk.dev/internal/base/logs"
)

var pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}

// newClient starts a server that answers with h, and returns a client of it.
func newClient(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewTLSServer(h)
	t.Cleanup(server.Close)
	config := server.Client().Transport.(*http.Transport).TLSClientConfig
	c := New("example.com:10250", func(ctx context.Context, network, address string) (net.Conn, error) {
		if address != "example.com:10250" {
			return nil, fmt.Errorf("dialled %s", address)
		}
		return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
	}, config)
	t.Cleanup(c.Close)
	return c
}

// endless writes text until the client goes.
func endless(w http.ResponseWriter, text string) {
	for block := []byte(strings.Repeat(text, 1<<12)); ; {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

func TestPods(t *testing.T) {
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		want   []string
		err    string
		status int // of a *StatusError
	}{
		"two":        {answer: text(`{"kind":"PodList","items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}`), want: []string{"a", "b"}},
		"none":       {answer: text(`{"items":null}`)},
		"not a list": {answer: text(`{"items":{}}`), err: "cannot unmarshal object"},
		"not JSON":   {answer: text("<html>"), err: "invalid character"},
		"cut off": {answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"items":[`)
		}, err: "unexpected EOF"},
		"endless": {answer: func(w http.ResponseWriter, _ *http.Request) { endless(w, " ") }, err: "more than 16 MiB"},
		"forbidden": {answer: func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "Forbidden (user=x)", http.StatusForbidden)
		},
			err: "Forbidden (user=x)", status: http.StatusForbidden},
		"redirected": {answer: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://other.example/", http.StatusFound)
		},
			err: "HTTP 302", status: http.StatusFound},
		"endless error": {answer: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			endless(w, "x")
		}, err: "HTTP 500", status: http.StatusInternalServerError},
	} {
		t.Run(name, func(t *testing.T) {
			for path, list := range map[string]func(*Client) ([]corev1.Pod, error){
				"/pods":         func(c *Client) ([]corev1.Pod, error) { return c.Pods(t.Context()) },
				"/runningpods/": func(c *Client) ([]corev1.Pod, error) { return c.Running(t.Context()) },
			} {
				pods, err := list(newClient(t, func(w http.ResponseWriter, r *http.Request) {
					if r.Method != http.MethodGet || r.URL.Path != path {
						t.Errorf("%s %s, want GET %s", r.Method, r.URL.Path, path)
					}
					tt.answer(w, r)
				}))
				var got []string
				for i := range pods {
					got = append(got, pods[i].Name)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Error(diff)
				}
				checkError(t, err, tt.err, tt.status)
			}
		})
	}
}

func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) }
}

// checkError checks that an error contains text, "" for none, and is a short *StatusError where status is not 0.
func checkError(t *testing.T, err error, text string, status int) {
	t.Helper()
	if text == "" {
		if err != nil {
			t.Error(err)
		}
		return
	}
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %.200v, want %q", err, text)
		return
	}
	var e *StatusError
	if errors.As(err, &e); status != 0 && (e == nil || e.Code != status || len(e.Text) > maxError) {
		t.Errorf("error %.200v, want a status of %d", err, status)
	}
}

// TestSlow: a kubelet that does not answer, or that stops in the middle, is waited for until the context ends.
func TestSlow(t *testing.T) {
	for name, begin := range map[string]string{"no answer": "", "half an answer": `{"items":[`} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
				if begin != "" {
					_, _ = io.WriteString(w, begin)
					_ = http.NewResponseController(w).Flush()
				}
				<-r.Context().Done()
				panic(http.ErrAbortHandler) // a complete answer may still arrive
			})
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, err := c.Pods(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestUnknownKubelet: nothing is asked of a server without a certificate of the kubelet's authority.
func TestUnknownKubelet(t *testing.T) {
	c := newClient(t, func(http.ResponseWriter, *http.Request) { t.Error("asked") })
	c.transport.TLSClientConfig = &tls.Config{ServerName: "example.com"}
	var unknown *tls.CertificateVerificationError
	if _, err := c.Pods(t.Context()); !errors.As(err, &unknown) {
		t.Errorf("%v", err)
	}
}

func TestLogs(t *testing.T) {
	ten := 10
	for name, tt := range map[string]struct {
		o      logs.Options
		answer http.HandlerFunc
		query  string
		want   string
		err    string
		status int
	}{
		"all of it": {answer: text("a\nb\n"), want: "a\nb\n"},
		"options": {
			o: logs.Options{Follow: true, Previous: true, Timestamps: true, Tail: &ten, LimitBytes: 5,
				Since: time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))},
			answer: text(""),
			query:  "follow=true&limitBytes=5&previous=true&sinceTime=2026-01-02T02%3A04%3A05Z&tailLines=10&timestamps=true",
		},
		"no such container": {answer: func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "container not found", http.StatusBadRequest)
		},
			err: "container not found", status: http.StatusBadRequest},
		"cut off": {answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "a")
		}, want: "a", err: "read the log of c: unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/containerLogs/ns/web/c" || r.URL.RawQuery != tt.query {
					t.Errorf("%s, want query %s", r.URL, tt.query)
				}
				tt.answer(w, r)
			})
			var got strings.Builder
			err := c.Logs(t.Context(), pod, "c", tt.o, &got)
			if got.String() != tt.want {
				t.Errorf("%q, want %q", got.String(), tt.want)
			}
			checkError(t, err, tt.err, tt.status)
		})
	}
	t.Run("one stream", func(t *testing.T) {
		c := newClient(t, func(http.ResponseWriter, *http.Request) { t.Error("asked") })
		if err := c.Logs(t.Context(), pod, "c", logs.Options{Stream: "stderr"}, io.Discard); !errors.Is(err, ErrStream) {
			t.Error(err)
		}
	})
}

// failingWriter is a writer that fails.
type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

// TestEndlessLog: the copy of a log ends with its reader, however much the kubelet sends.
func TestEndlessLog(t *testing.T) {
	c := newClient(t, func(w http.ResponseWriter, _ *http.Request) { endless(w, "x\n") })
	if err := c.Logs(t.Context(), pod, "c", logs.Options{Follow: true}, failingWriter{}); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Error(err)
	}
}

// execServer answers as a kubelet does (k8s.io/kubelet, pkg/cri/streaming/remotecommand, protocol v4): it sends each stream, what came on
// the standard input after that, and then status on the error stream.
func execServer(t *testing.T, streams int, status string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
			t.Error(err)
			return
		}
		came := make(chan httpstream.Stream, streams)
		conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
			came <- s
			return nil
		})
		if conn == nil {
			return
		}
		defer conn.Close()
		by := map[string]httpstream.Stream{}
		for range streams {
			s := <-came
			by[s.Headers().Get(corev1.StreamType)] = s
		}
		for _, kind := range []string{corev1.StreamTypeStdout, corev1.StreamTypeStderr} {
			if s := by[kind]; s != nil {
				_, _ = io.WriteString(s, kind)
				if in := by[corev1.StreamTypeStdin]; in != nil && kind == corev1.StreamTypeStdout {
					_, _ = io.Copy(s, in)
				}
				s.Close()
			}
		}
		_, _ = io.WriteString(by[corev1.StreamTypeError], status)
		by[corev1.StreamTypeError].Close()
		<-conn.CloseChan()
	}
}

func TestExec(t *testing.T) {
	const exit7 = `{"kind":"Status","status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}`
	refused := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such container", http.StatusNotFound) }
	for name, tt := range map[string]struct {
		answer      http.HandlerFunc
		stdin       string
		without     bool // no streams
		tty         bool
		query       string
		exit        int
		out, errOut string
		err         string
	}{
		"success": {answer: execServer(t, 3, `{"status":"Success"}`), query: "command=a&command=b&error=1&output=1",
			out: "stdout", errOut: "stderr"},
		"standard input": {answer: execServer(t, 4, `{"status":"Success"}`), stdin: " in", query: "command=a&command=b&error=1&input=1&output=1",
			out: "stdout in", errOut: "stderr"},
		"terminal":        {answer: execServer(t, 2, `{"status":"Success"}`), tty: true, query: "command=a&command=b&output=1&tty=1", out: "stdout"},
		"without streams": {answer: execServer(t, 2, `{"status":"Success"}`), without: true, query: "command=a&command=b&output=1"},
		"exit status": {answer: execServer(t, 3, exit7), query: "command=a&command=b&error=1&output=1", exit: 7, out: "stdout",
			errOut: "stderr"},
		"failure": {answer: execServer(t, 3, `{"status":"Failure","message":"container is not running"}`),
			query: "command=a&command=b&error=1&output=1", exit: -1, out: "stdout", errOut: "stderr", err: "container is not running"},
		"hostile status": {answer: execServer(t, 3, "x"), query: "command=a&command=b&error=1&output=1", exit: -1, out: "stdout",
			errOut: "stderr", err: "error stream protocol error"},
		"refused": {answer: refused, query: "command=a&command=b&error=1&output=1", exit: -1, err: "no such container"},
		"not upgraded": {answer: text("hello"), query: "command=a&command=b&error=1&output=1", exit: -1,
			err: "unable to upgrade connection"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPost || r.URL.Path != "/exec/ns/web/c" || r.URL.RawQuery != tt.query {
					t.Errorf("%s %s, want query %s", r.Method, r.URL, tt.query)
				}
				tt.answer(w, r)
			})
			var out, errOut bytes.Buffer
			e := Exec{Command: []string{"a", "b"}, TTY: tt.tty, Stdout: &out, Stderr: &errOut}
			if tt.stdin != "" {
				e.Stdin = strings.NewReader(tt.stdin)
			}
			if tt.without {
				e.Stdout, e.Stderr = nil, nil
			}
			exit, err := c.Exec(t.Context(), pod, "c", e)
			if exit != tt.exit || out.String() != tt.out || errOut.String() != tt.errOut {
				t.Errorf("exit %d, %q, %q; want %d, %q, %q", exit, out.String(), errOut.String(), tt.exit, tt.out, tt.errOut)
			}
			checkError(t, err, tt.err, 0)
		})
	}
}

// TestSlowExec: a command that does not end is waited for until the context ends.
func TestSlowExec(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"no answer": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"no status": func(w http.ResponseWriter, r *http.Request) {
			if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
				t.Error(err)
				return
			}
			conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(httpstream.Stream, <-chan struct{}) error { return nil })
			<-conn.CloseChan()
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if _, err := newClient(t, answer).Exec(ctx, pod, "c", Exec{Command: []string{"a"}}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestResize: sizes are a terminal's until they end, or the context does.
func TestResize(t *testing.T) {
	from := make(chan Size, 1)
	from <- Size{Width: 80, Height: 24}
	s := sizes{t.Context(), from}
	if got := s.Next(); got == nil || got.Width != 80 || got.Height != 24 {
		t.Errorf("%+v", got)
	}
	close(from)
	if got := s.Next(); got != nil {
		t.Errorf("after the last size: %+v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := (sizes{ctx, make(chan Size)}).Next(); got != nil {
		t.Errorf("after the context: %+v", got)
	}
}
