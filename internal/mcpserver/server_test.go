package mcpserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type arguments struct {
	Do string `json:"do" jsonschema:"what to do"`
}

// testServer has a tool that does what it is asked to.
func testServer(log io.Writer, started chan<- struct{}, ended chan<- error) *Server {
	s := New(Info{Name: "test", Version: "v1", Instructions: "read them"}, log)
	Add(s, Tool{Name: "tool", Title: "A tool", Description: "does it"}, func(ctx context.Context, in arguments) (*Answer, error) {
		switch in.Do {
		case "unknown":
			return &Answer{ExitStatus: StatusUnknown, Meaning: "UNKNOWN", Text: "perhaps\n", Document: []byte(`{"kind": "Walk"}`)}, nil
		case "hostile":
			document, err := json.Marshal(map[string]string{"name": hostile})
			return &Answer{Meaning: "fine", Text: "name: " + hostile + "\n", Document: document}, err
		case "long":
			document := fmt.Appendf(nil, "[%q]", strings.Repeat("x", mostDocument))
			return &Answer{Meaning: "fine", Text: strings.Repeat("a line\n", mostText/7+10), Document: document, Shorten: "ask for less"}, nil
		case "brief":
			document := fmt.Appendf(nil, "[%q]", strings.Repeat("x", mostDocument))
			return &Answer{Meaning: "fine", Document: document, Summary: []byte(`["x"]`), Shorten: "ask for less"}, nil
		case "panic":
			panic("oh\x1b[2J")
		case "wait":
			started <- struct{}{}
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		case "wrong":
			return nil, &InputError{errors.New("no pod \x1b[2J\nwrite another")}
		}
		return nil, errors.New("read it: refused")
	})
	s.AddPage("packetwalk://docs/a.md", "a.md", "A", "# A\n")
	return s
}

// hostile has what a terminal, or a reader, may take for something else.
const hostile = "\x1b]0;x\x07\r\nforged: \u202egnp\u009b2J\x7f"

// run serves a server and returns a client, and a function that ends the input and returns the error of Serve.
func run(t *testing.T, s *Server) (*mcp.ClientSession, func() error) {
	t.Helper()
	toServer, fromClient := io.Pipe()
	toClient, fromServer := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- s.Serve(context.WithoutCancel(t.Context()), toServer, fromServer)
		_ = fromServer.Close()
	}()
	client, err := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "v1"}, nil).
		Connect(t.Context(), &mcp.IOTransport{Reader: toClient, Writer: fromClient}, nil)
	if err != nil {
		t.Fatal(err)
	}
	end := sync.OnceValue(func() error {
		_ = fromClient.Close()
		select {
		case err := <-done:
			return err
		case <-time.After(10 * time.Second):
			return errors.New("the server does not end with its input")
		}
	})
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	return client, end
}

// call asks the tool, and returns its text and its structured content.
func call(t *testing.T, client *mcp.ClientSession, arguments string) (text string, structured result, failed bool) {
	t.Helper()
	r, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: "tool", Arguments: json.RawMessage(arguments)})
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(r.StructuredContent)
	if err == nil {
		err = json.Unmarshal(encoded, &structured)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r.Content[0].(*mcp.TextContent).Text, structured, r.IsError
}

// TestTools: clients see the tools with their arguments, that they only read, the pages, and what the assistant is told.
func TestTools(t *testing.T) {
	client, _ := run(t, testServer(io.Discard, nil, nil))
	if got := client.InitializeResult().Instructions; got != "read them" {
		t.Errorf("instructions %q", got)
	}
	tools, err := client.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) != 1 {
		t.Fatal(tools, err)
	}
	tool := tools.Tools[0]
	schema, err := json.Marshal(tool.InputSchema)
	if err != nil || !strings.Contains(string(schema), `"what to do"`) || !strings.Contains(string(schema), `"required":["do"]`) {
		t.Errorf("schema %s, %v", schema, err)
	}
	if a := tool.Annotations; !a.ReadOnlyHint || *a.DestructiveHint || *a.OpenWorldHint {
		t.Errorf("annotations %+v", a)
	}
	page, err := client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "packetwalk://docs/a.md"})
	if err != nil || page.Contents[0].Text != "# A\n" {
		t.Errorf("%+v, %v", page, err)
	}
}

// TestResults: each result has its exit status in the text and as data.
func TestResults(t *testing.T) {
	var log bytes.Buffer
	client, end := run(t, testServer(&log, nil, nil))
	for _, tt := range []struct {
		name, arguments string
		status          int
		failed          bool
		text            string // that the text has
	}{
		{"unknown", `{"do": "unknown"}`, 3, false, "exit status 3: UNKNOWN\nperhaps\n"},
		{"hostile", `{"do": "hostile"}`, 0, false, "name: \\u001b]0;x\\u0007\nforged: \\u202egnp"},
		{"error", `{"do": "fail"}`, 1, true, "read it: refused"},
		{"wrong question", `{"do": "wrong"}`, 2, true, "no pod \\u001b[2J\nwrite another"},
		{"no argument", `{}`, 1, true, "refused"},
		{"unknown argument", `{"do": "unknown", "live": true}`, 2, true, `unknown field "live"`},
		{"wrong type", `{"do": ["unknown"]}`, 2, true, "cannot unmarshal array"},
		{"fault", `{"do": "panic"}`, 1, true, "a fault of packetwalk"},
		{"after a fault", `{"do": "unknown"}`, 3, false, "perhaps"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text, structured, failed := call(t, client, tt.arguments)
			if structured.ExitStatus != tt.status || failed != tt.failed || !strings.HasPrefix(text, fmt.Sprintf("exit status %d: ", tt.status)) ||
				!strings.Contains(text, tt.text) {
				t.Errorf("status %d, failed %v: %q", structured.ExitStatus, failed, text)
			}
			for what, s := range map[string]string{"text": text, "structured text": structured.Text, "document": decoded(t, structured.Document)} {
				if strings.ContainsAny(s, "\x1b\x07\r\u202e\u009b\x7f") {
					t.Errorf("%s has control characters: %q", what, s)
				}
			}
		})
	}
	if err := end(); err != nil || !strings.Contains(log.String(), `packetwalk: oh\u001b[2J`) {
		t.Errorf("%v, log %s", err, &log)
	}
}

// decoded returns the string of a document of one field.
func decoded(t *testing.T, document json.RawMessage) (text string) {
	t.Helper()
	if document == nil {
		return ""
	}
	fields := map[string]string{}
	if err := json.Unmarshal(document, &fields); err != nil {
		t.Error(err)
	}
	for _, value := range fields {
		text += value
	}
	return text
}

// TestLong: a text is cut after a line, a document is left out or has its summary in its place, and the result says so.
func TestLong(t *testing.T) {
	client, _ := run(t, testServer(io.Discard, nil, nil))
	text, structured, _ := call(t, client, `{"do": "long"}`)
	if len(text) > mostText+100 || !strings.HasSuffix(text, "a line\n… cut: 10 more lines\n") {
		t.Errorf("%d bytes end in %q", len(text), text[len(text)-60:])
	}
	const omitted = "the document has 48 KB, and an answer at most 48: ask for less"
	if structured.Document != nil || structured.Omitted != omitted {
		t.Errorf("%d bytes, %q", len(structured.Document), structured.Omitted)
	}
	if _, structured, _ := call(t, client, `{"do": "brief"}`); string(structured.Document) != `["x"]` || structured.Omitted != omitted {
		t.Errorf("%s, %q", structured.Document, structured.Omitted)
	}
}

// TestCancel: a question that is cancelled ends, one that waits for its turn, too, and the server answers the next.
func TestCancel(t *testing.T) {
	started, ended := make(chan struct{}), make(chan error, 1)
	client, _ := run(t, testServer(io.Discard, started, ended))
	ask := func(ctx context.Context) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := client.CallTool(ctx, &mcp.CallToolParams{Name: "tool", Arguments: map[string]string{"do": "wait"}})
			done <- err
		}()
		return done
	}
	ctx, cancel := context.WithCancel(t.Context())
	first := ask(ctx)
	<-started
	waitingCtx, cancelWaiting := context.WithCancel(t.Context())
	waiting := ask(waitingCtx)
	cancelWaiting()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Errorf("the second: %v", err)
	}
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the first: %v", err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("in the tool: %v", err)
	}
	if _, structured, _ := call(t, client, `{"do": "unknown"}`); structured.ExitStatus != StatusUnknown {
		t.Errorf("afterwards: %+v", structured)
	}
}

// TestEnd: the end of the input, and that of the server's context, interrupt what is being answered and wait for it.
func TestEnd(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(input io.Closer, cancel context.CancelFunc)
		want error
	}{
		{"input", func(input io.Closer, _ context.CancelFunc) { _ = input.Close() }, nil},
		{"context", func(_ io.Closer, cancel context.CancelFunc) { cancel() }, context.Canceled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			started, ended := make(chan struct{}), make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			in, input := io.Pipe()
			done := make(chan error, 1)
			go func() { done <- testServer(io.Discard, started, ended).Serve(ctx, in, io.Discard) }()
			for _, message := range []string{
				`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`,
				`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
				`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"tool","arguments":{"do":"wait"}}}`,
			} {
				fmt.Fprintln(input, message)
			}
			<-started
			tt.end(input, cancel)
			if err := <-done; !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			select {
			case err := <-ended:
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			default:
				t.Error("Serve did not wait for the tool")
			}
		})
	}
}

// TestLongMessage: a message without end is refused, and the server ends.
func TestLongMessage(t *testing.T) {
	in, input := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- testServer(io.Discard, nil, nil).Serve(t.Context(), in, io.Discard) }()
	go func() {
		w := bufio.NewWriter(input)
		fmt.Fprint(w, `{"jsonrpc":"2.0","method":"`)
		for range 2 * mostMessage {
			if err := w.WriteByte('x'); err != nil {
				return
			}
		}
		_ = w.Flush()
	}()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "exceeded") {
		t.Errorf("error %v", err)
	}
	_ = in.Close()
}
