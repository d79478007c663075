package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"packetwalk.dev/internal/base/termsafe"
)

const (
	// mostMessage limits a message from the client, which may have a pasted text.
	mostMessage = 4 << 20
	// mostText and mostDocument limit an answer. Assistants refuse results that have more than some 25,000 tokens.
	mostText     = 32 << 10
	mostDocument = 48 << 10
	// answerTime limits one answer: on a cluster, pods on nodes have to start.
	answerTime = 5 * time.Minute
)

// The exit statuses of the command line.
const (
	StatusOK      = 0
	StatusFailure = 1
	StatusInput   = 2
	StatusUnknown = 3
)

// Info describes a server to its clients.
type Info struct {
	Name, Version string
	Instructions  string // for the assistant
}

// Server answers calls of its tools, one at a time.
type Server struct {
	server  *mcp.Server
	turn    chan struct{} // has a value while a call is answered
	serving context.Context
	log     io.Writer
}

// Tool describes a tool to clients.
type Tool struct {
	Name, Title, Description string
	// Acts says that the tool starts something that ends with it. Others only read.
	Acts bool
}

// Answer holds what a command prints for a question, and its exit status.
type Answer struct {
	ExitStatus int
	Meaning    string // of the exit status here
	Text       string // what the command prints for people, the answer first
	Document   []byte // what it prints as JSON
	Summary    []byte // in place of a document that is too long: the same without details; nil for none
	Shorten    string // what a document that is too long leaves out, and how to get it
}

// result holds the structured content of a result.
type result struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	ExitStatus int             `json:"exitStatus"`
	Meaning    string          `json:"meaning"`
	Text       string          `json:"text"`
	Document   json.RawMessage `json:"document,omitempty"`
	Omitted    string          `json:"omitted,omitempty"` // what the document leaves out, and why
}

// InputError marks an error that another question would avoid.
type InputError struct{ Err error }

func (e *InputError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *InputError) Unwrap() error { return e.Err }

// New returns a server without tools. It writes faults of the program to log.
func New(info Info, log io.Writer) *Server {
	return &Server{
		server: mcp.NewServer(&mcp.Implementation{Name: info.Name, Version: info.Version}, &mcp.ServerOptions{
			Instructions: info.Instructions,
			Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}, Resources: &mcp.ResourceCapabilities{}},
		}),
		turn: make(chan struct{}, 1), serving: context.Background(), log: log,
	}
}

// Add adds a tool. Its arguments are the fields of In.
func Add[In any](s *Server, t Tool, answer func(context.Context, In) (*Answer, error)) {
	schema, err := jsonschema.For[In](nil)
	if err != nil {
		panic(fmt.Sprintf("arguments of tool %s: %v", t.Name, err)) // a type of this program
	}
	never := false
	annotations := &mcp.ToolAnnotations{Title: t.Title, ReadOnlyHint: !t.Acts, DestructiveHint: &never, OpenWorldHint: &never}
	tool := &mcp.Tool{Name: t.Name, Title: t.Title, Description: t.Description, InputSchema: schema, Annotations: annotations}
	s.server.AddTool(tool, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return s.call(ctx, func(ctx context.Context) (*Answer, error) {
			var in In
			if err := decode(r.Params.Arguments, &in); err != nil {
				return nil, &InputError{fmt.Errorf("arguments of %s: %w", t.Name, err)}
			}
			return answer(ctx, in)
		})
	})
}

// decode reads arguments; those that a tool does not have are an error.
func decode(arguments json.RawMessage, in any) error {
	if len(arguments) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(arguments))
	d.DisallowUnknownFields()
	return d.Decode(in)
}

// AddPage adds a page that clients can read.
func (s *Server) AddPage(uri, name, description, text string) {
	page := &mcp.Resource{URI: uri, Name: name, Description: description, MIMEType: "text/markdown", Size: int64(len(text))}
	s.server.AddResource(page, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		contents := []*mcp.ResourceContents{{URI: uri, MIMEType: page.MIMEType, Text: text}}
		return &mcp.ReadResourceResult{Contents: contents}, nil
	})
}

// Serve answers what it reads until the input ends or ctx does. Calls that are being answered are then interrupted, and waited for.
func (s *Server) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	s.serving = ctx
	err := s.server.Run(ctx, &mcp.IOTransport{Reader: io.NopCloser(in), Writer: nopCloser{out}, MaxLineLength: mostMessage})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// call answers one question. Errors become results, so that the assistant reads them.
func (s *Server) call(ctx context.Context, answer func(context.Context) (*Answer, error)) (*mcp.CallToolResult, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	defer context.AfterFunc(s.serving, cancel)() // Run's context does not end those of calls
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	a, err := s.recovered(ctx, answer)
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		err = fmt.Errorf("no answer within %s", answerTime)
	}
	failed := err != nil
	if failed {
		a = failure(err)
	}
	structured, err := a.structured()
	if err != nil {
		return nil, err
	}
	return &mcp.CallToolResult{
		Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf("exit status %d: %s\n%s", a.ExitStatus, a.Meaning, printable(a.Text))}},
		IsError: failed, StructuredContent: structured,
	}, nil
}

// recovered returns an error where answering panics: a question must not end the server.
func (s *Server) recovered(ctx context.Context, answer func(context.Context) (*Answer, error)) (a *Answer, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			fmt.Fprintf(s.log, "packetwalk: %s\n%s", termsafe.Line(fmt.Sprint(fault)), debug.Stack())
			a, err = nil, errors.New("a fault of packetwalk; its standard error has the stack")
		}
	}()
	return answer(ctx)
}

// failure returns the answer for an error.
func failure(err error) *Answer {
	var lines strings.Builder
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" {
			fmt.Fprintln(&lines, termsafe.Text(line))
		}
	}
	a := &Answer{ExitStatus: StatusFailure, Meaning: "there is no answer", Text: lines.String()}
	if _, ok := errors.AsType[*InputError](err); ok {
		a.ExitStatus, a.Meaning = StatusInput, "there is no answer; correct the question"
	}
	return a
}

// structured returns an answer as JSON, whose strings have no control characters when they are decoded.
func (a *Answer) structured() (json.RawMessage, error) {
	r := result{APIVersion: "packetwalk.dev/v1alpha1", Kind: "Result", ExitStatus: a.ExitStatus, Meaning: a.Meaning, Text: printable(a.Text)}
	for _, document := range [][]byte{a.Document, a.Summary} {
		if document == nil {
			continue
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, termsafe.JSON(document)); err != nil {
			return nil, err
		}
		if compact.Len() <= mostDocument {
			r.Document = compact.Bytes()
			break
		}
		if r.Omitted == "" {
			r.Omitted = fmt.Sprintf("the document has %d KB, and an answer at most %d: %s", compact.Len()>>10, mostDocument>>10, a.Shorten)
		}
	}
	return json.Marshal(r)
}

// printable returns a text without control characters but ends of lines. It cuts a text that is too long after a line.
func printable(text string) string {
	kept := text
	if len(text) > mostText {
		kept = text[:mostText]
		kept = kept[:strings.LastIndexByte(kept, '\n')+1]
	}
	var b strings.Builder
	for line := range strings.Lines(kept) {
		b.WriteString(termsafe.Text(strings.ReplaceAll(strings.TrimRight(line, "\r\n"), "\t", " ")) + "\n")
	}
	if more := strings.Count(text[len(kept):], "\n"); len(kept) < len(text) {
		fmt.Fprintf(&b, "… cut: %d more lines\n", max(more, 1))
	}
	return b.String()
}
