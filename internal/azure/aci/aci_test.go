package aci

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"github.com/google/go-cmp/cmp"
	"github.com/gorilla/websocket"

	"packetwalk.dev/internal/base/logs"
)

// fake is a service with one group, whose container echoes.
type fake struct {
	group   ContainerGroup
	deleted time.Duration
}

func (f *fake) Put(_ context.Context, g ContainerGroup) (ContainerGroup, error) {
	if g.Location == "nowhere" {
		return g, BadRequest("InvalidLocation", "there is no %s", g.Location)
	}
	f.group = g
	return g, nil
}

func (f *fake) Get(_ context.Context, name string) (ContainerGroup, error) {
	if name != f.group.Name {
		return ContainerGroup{}, NotFound(name)
	}
	return f.group, nil
}

func (f *fake) List(context.Context) ([]ContainerGroup, error) { return []ContainerGroup{f.group}, nil }

func (f *fake) Delete(_ context.Context, name, uid string, grace time.Duration) error {
	if name != f.group.Name {
		return NotFound(name)
	}
	if uid != "" && uid != f.group.Tags[TagUID] {
		return Conflict("C", "of another")
	}
	f.deleted = grace
	return nil
}

// tail returns how many lines are asked for, -1 for all.
func tail(o logs.Options) int {
	if o.Tail == nil {
		return -1
	}
	return *o.Tail
}

func (f *fake) Logs(_ context.Context, group, container string, o logs.Options, w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s/%s tail %d follow %v previous %v\n", group, container, tail(o), o.Follow, o.Previous)
	return err
}

func (f *fake) Exec(_ context.Context, _, _ string, e Exec) (int, error) {
	switch e.Command[0] {
	case "cat":
		_, err := io.Copy(e.Stdout, e.Stdin)
		return 0, err
	case "leave":
		_, err := e.Stdin.Read(make([]byte, 1))
		return 0, err
	case "fail":
		fmt.Fprint(e.Stderr, "no")
		return 3, nil
	case "size":
		s := <-e.Resize
		fmt.Fprintf(e.Stdout, "%d×%d", s.Width, s.Height)
		return 0, nil
	}
	return -1, errors.New("it broke")
}

// pair returns a client of a server of f, over TLS.
func pair(t *testing.T, f *fake, token string) *Client {
	t.Helper()
	s := &Server{Service: f, Subscription: "s", ResourceGroup: "rg", Token: "right"}
	h := httptest.NewTLSServer(s.Handler())
	t.Cleanup(h.Close)
	roots := x509.NewCertPool()
	roots.AddCert(h.Certificate())
	return NewClient(h.URL, "s", "rg", func() (string, error) { return token, nil }, &tls.Config{RootCAs: roots})
}

func example() ContainerGroup {
	code := 0
	return ContainerGroup{Name: "g", Location: "westeurope", Tags: map[string]string{"UID": "1"}, Properties: GroupProperties{
		OSType: "Linux", InstanceView: &GroupView{State: GroupRunning, Events: []Event{}},
		Volumes: []Volume{{Name: "v", Secret: map[string]string{"key": "c2VjcmV0"}}},
		Extensions: []Extension{{Name: "p",
			Properties: ExtensionProperties{Type: ExtensionKubeProxy, ProtectedSettings: map[string]string{SettingKubeConfig: "secret"}}}},
		Containers: []Container{{Name: "c", Properties: ContainerProperties{
			Image: "nginx", Ports: []Port{{Port: 80, Protocol: "TCP"}},
			Environment:  []Variable{{Name: "A", Value: "b"}, {Name: "S", SecureValue: "secret"}},
			InstanceView: &ContainerView{CurrentState: ContainerState{State: StateTerminated, ExitCode: &code}, Events: []Event{}},
		}}},
	}}
}

func TestRoundTrip(t *testing.T) {
	f := &fake{}
	c := pair(t, f, "right")
	ctx := t.Context()
	made, err := c.Put(ctx, example())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(example(), f.group); d != "" {
		t.Errorf("the service got (-sent +got):\n%s", d)
	}
	public := example().Public()
	got, err := c.Get(ctx, "g")
	if err != nil {
		t.Fatal(err)
	}
	for what, g := range map[string]ContainerGroup{"put": made, "get": got} {
		// What is empty and what is not there are the same in an answer.
		if d := cmp.Diff(fmt.Sprintf("%+v", public.Properties.Containers[0].Properties.Environment),
			fmt.Sprintf("%+v", g.Properties.Containers[0].Properties.Environment)); d != "" {
			t.Errorf("%s: environment (-want +got):\n%s", what, d)
		}
		if text := fmt.Sprintf("%+v", g); strings.Contains(text, "secret") || strings.Contains(text, "c2VjcmV0") {
			t.Errorf("%s answers secrets: %s", what, text)
		}
		if g.Properties.InstanceView == nil || *g.Properties.Containers[0].Properties.InstanceView.CurrentState.ExitCode != 0 {
			t.Errorf("%s has no view: %+v", what, g)
		}
	}
	list, err := c.List(ctx)
	if err != nil || len(list) != 1 || list[0].Name != "g" || list[0].Properties.InstanceView != nil {
		t.Errorf("list: %+v %v", list, err)
	}
	if err := c.Delete(ctx, "g", "2", time.Second); !IsConflict(err) || f.deleted != 0 {
		t.Errorf("delete another pod's: %v, grace %v", err, f.deleted)
	}
	if err := c.Delete(ctx, "g", "1", 7*time.Second); err != nil || f.deleted != 7*time.Second {
		t.Errorf("delete: %v, grace %v", err, f.deleted)
	}
	if err := c.Delete(ctx, "nobody", "", 0); err != nil {
		t.Errorf("delete what is gone: %v", err)
	}
}

func TestErrors(t *testing.T) {
	c := pair(t, &fake{group: example()}, "right")
	ctx := t.Context()
	if _, err := c.Get(ctx, "nobody"); !IsNotFound(err) {
		t.Errorf("nobody: %v", err)
	}
	g := example()
	g.Location = "nowhere"
	var e *Error
	if _, err := c.Put(ctx, g); !errors.As(err, &e) || e.Status != 400 || e.Code != "InvalidLocation" || e.Message != "there is no nowhere" {
		t.Errorf("a bad group: %v", err)
	}
	if _, err := pair(t, &fake{}, "wrong").List(ctx); !errors.As(err, &e) || e.Status != 401 {
		t.Errorf("a wrong token: %v", err)
	}
	c.ResourceGroup = "other"
	if _, err := c.List(ctx); !IsNotFound(err) {
		t.Errorf("another resource group: %v", err)
	}
}

func TestLogs(t *testing.T) {
	c := pair(t, &fake{group: example()}, "right")
	for _, o := range []logs.Options{{Tail: new(5)}, {Tail: new(0)}, {Previous: true}, {Follow: true, Tail: new(2)}} {
		var b strings.Builder
		if err := c.Logs(t.Context(), "g", "c", o, &b); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("g/c tail %d follow %v previous %v\n", tail(o), o.Follow, o.Previous); b.String() != want {
			t.Errorf("%+v: %q, want %q", o, b.String(), want)
		}
	}
	if err := c.Logs(t.Context(), "g", "nobody", logs.Options{Follow: true}, io.Discard); !IsNotFound(err) {
		t.Errorf("follow nobody: %v", err)
	}
}

func TestExec(t *testing.T) {
	c := pair(t, &fake{group: example()}, "right")
	sizes := make(chan Size, 1)
	sizes <- Size{Width: 80, Height: 24}
	long := strings.Repeat("0123456789", 10_000) // more than one message
	for _, test := range []struct {
		exec           Exec
		code           int
		stdout, stderr string
		err            string
	}{
		{exec: Exec{Command: []string{"cat"}, Stdin: strings.NewReader(long)}, stdout: long},
		{exec: Exec{Command: []string{"fail", "now"}}, code: 3, stderr: "no"},
		{exec: Exec{Command: []string{"size"}, TTY: true, Resize: sizes}, stdout: "80×24"},
		{exec: Exec{Command: []string{"break"}}, code: -1, err: "it broke"},
	} {
		var out, errs strings.Builder
		test.exec.Stdout, test.exec.Stderr = &out, &errs
		code, err := c.Exec(t.Context(), "g", "c", test.exec)
		if code != test.code || out.String() != test.stdout || errs.String() != test.stderr || (err == nil) != (test.err == "") || err != nil &&
			err.Error() != test.err {
			t.Errorf("%v: %d %q %q %v", test.exec.Command, code, out.String()[:min(out.Len(), 50)], errs.String(), err)
		}
	}
}

// TestExecLeavesInput: a command that ends before its input leaves nothing behind that waits to hand the rest over.
func TestExecLeavesInput(t *testing.T) {
	c := pair(t, &fake{group: example()}, "right")
	code, err := c.Exec(t.Context(), "g", "c", Exec{Command: []string{"leave"}, Stdin: strings.NewReader("more than one byte")})
	if code != 0 || err != nil {
		t.Fatal(code, err)
	}
	receivers := func() int {
		stacks := make([]byte, 1<<20)
		return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "(*stream).receive(")
	}
	eventually.Succeeds(t, 30*time.Second, func() error {
		if n := receivers(); n > 0 {
			return fmt.Errorf("%d goroutines still receive", n)
		}
		return nil
	})
}

func TestExecNothing(t *testing.T) {
	var e *Error
	if _, err := pair(t, &fake{group: example()}, "right").Exec(t.Context(), "g", "c", Exec{}); !errors.As(err, &e) || e.Status != 400 {
		t.Error(err)
	}
}

// TestSessionOnce: what was granted is begun once, with its password.
func TestSessionOnce(t *testing.T) {
	s := &Server{sessions: map[string]session{"id": {password: "p", expires: time.Now().Add(-time.Second)}}}
	h := httptest.NewServer(s.Handler())
	defer h.Close()
	resp, err := h.Client().Get(h.URL + "/sessions/id")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound || len(s.sessions) != 0 {
		t.Errorf("a session that has expired: %s, %v left", resp.Status, s.sessions)
	}
}

// over begins a session that runs run, over a connection in memory, and returns the client's end of it.
func over(t *testing.T, run func(context.Context, *stream)) *websocket.Conn {
	t.Helper()
	near, far := net.Pipe()
	s := &Server{sessions: map[string]session{"1": {"p", time.Now().Add(time.Minute), nil, run}}}
	go func() {
		in := bufio.NewReader(far)
		r, err := http.ReadRequest(in)
		if err != nil {
			panic(err)
		}
		r.SetPathValue("id", "1")
		s.begin(hijackedResponse{httptest.NewRecorder(), far, in}, r)
	}()
	dialer := websocket.Dialer{NetDialContext: func(context.Context, string, string) (net.Conn, error) { return near, nil }}
	conn, _, err := dialer.Dial("ws://s/sessions/1", nil)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// hijackedResponse is the answer to a request that gives away its connection.
type hijackedResponse struct {
	*httptest.ResponseRecorder
	conn net.Conn
	in   *bufio.Reader
}

func (h hijackedResponse) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(h.in, bufio.NewWriter(h.conn)), nil
}

// TestSessionNotRead: what a session writes fails when its client has read nothing for long.
func TestSessionNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wrote := make(chan error)
		conn := over(t, func(_ context.Context, c *stream) {
			_, err := c.writer(channelStdout).Write([]byte("hello"))
			wrote <- err
		})
		defer conn.Close()
		if err := conn.WriteMessage(websocket.TextMessage, []byte("p")); err != nil {
			t.Fatal(err)
		}
		if err := <-wrote; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write: %v", err)
		}
	})
}

// TestSessionMessageTooLong: neither side takes a longer message than the other may send; the server not before it knows the password.
func TestSessionMessageTooLong(t *testing.T) {
	long := make([]byte, 2*maxMessage) // the buffers between hold some bytes
	synctest.Test(t, func(t *testing.T) {
		conn := over(t, nil)
		defer conn.Close()
		if err := conn.WriteMessage(websocket.TextMessage, long); err == nil {
			t.Error("the server takes a long password")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		conn := over(t, func(_ context.Context, c *stream) { _, _ = io.Copy(io.Discard, c.stdin) })
		defer conn.Close()
		if err := conn.WriteMessage(websocket.TextMessage, []byte("p")); err != nil {
			t.Fatal(err)
		}
		if err := conn.WriteMessage(websocket.BinaryMessage, long); err == nil {
			t.Error("the server takes a long message")
		}
	})
	h := httptest.NewUnstartedServer(nil)
	h.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_ = json.NewEncoder(w).Encode(sessionGrant{"ws://" + r.Host, "p"})
			return
		}
		conn, err := new(websocket.Upgrader).Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer conn.Close()
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second)) // a client that takes the message waits for more
		_ = conn.WriteMessage(websocket.BinaryMessage, long)
		_, _, _ = conn.ReadMessage() // the password
		_, _, _ = conn.ReadMessage() // the end
	})
	h.Start()
	defer h.Close()
	c := NewClient(h.URL, "s", "rg", func() (string, error) { return "", nil }, nil)
	if _, err := c.Exec(t.Context(), "g", "c", Exec{Command: []string{"x"}, Stdout: io.Discard}); !errors.Is(err, websocket.ErrReadLimit) {
		t.Errorf("the client takes a long message: %v", err)
	}
}
