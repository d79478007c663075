package remote

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"time"

	"packetwalk.dev/internal/base/termsafe"
)

// Limits of what one side takes from the other, in bytes.
const (
	maxFrame = 16 << 20 // of one frame
	maxHost  = 96 << 20 // of a host's state, compressed
	piece    = 512 << 10
	maxText  = 4 << 10 // of an error
)

// writing bounds how long the other side may take to read one message.
var writing = time.Minute

// operation is what a question asks for.
type operation string

const (
	opHello    operation = "hello"     // greeting → greeting
	opPing     operation = "ping"      // keeps idle streams open
	opHosts    operation = "hosts"     // → map[string]uint64
	opTools    operation = "tools"     // → map[string]string
	opFetch    operation = "fetch"     // host → pieces of a capture of the one host
	opPrepare  operation = "prepare"   // sending → prepared
	opSend     operation = "send"      // handle → result
	opWatch    operation = "watch"     // watching → watched, and then an answer each time that something was seen
	opNow      operation = "now"       // asking → state
	opClose    operation = "close"     // handle, of a sender
	opRuleText operation = "rule-text" // rule → text
	opLookUp   operation = "look-up"   // lookUpRequest → witness.Lookup
)

// question is what the client writes. An End ends the one that bears the number.
type question struct {
	ID   uint64          `json:"id"`
	Op   operation       `json:"op,omitempty"`
	End  bool            `json:"end,omitempty"`
	Body json.RawMessage `json:"body,omitempty"`
}

// answer is what the server writes.
type answer struct {
	ID   uint64          `json:"id"`
	More bool            `json:"more,omitempty"` // it is not the last one
	Err  *failure        `json:"error,omitempty"`
	Body json.RawMessage `json:"body,omitempty"`
}

// greeting is how both sides begin.
type greeting struct {
	Protocol string `json:"protocol"` // "packetwalk"
	Version  string `json:"version"`
	Node     string `json:"node,omitempty"`
}

const protocol = "packetwalk"

// writeFrame writes a message. It is not safe for concurrent use.
func writeFrame(w io.Writer, message any) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(data) > maxFrame {
		return fmt.Errorf("%w: it has %d MiB, more than %d", errTooLong, len(data)>>20, maxFrame>>20)
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(data)), uint32(len(data))), data...))
	return err
}

// errTooLong says that a message was not written, and that others can be.
var errTooLong = errors.New("the answer is too long")

// readFrame reads one message. An error that is io.EOF says that the stream ended between two.
func readFrame(r io.Reader, message any) error {
	var header [4]byte
	if n, err := io.ReadFull(r, header[:]); err != nil {
		if n > 0 && header[0] != 0 {
			return notAFrame(header[:n], r)
		}
		return err
	}
	length := binary.BigEndian.Uint32(header[:])
	if length > maxFrame {
		return notAFrame(header[:], r)
	}
	// Memory is taken as bytes come, not as they are announced.
	data, err := io.ReadAll(io.LimitReader(r, int64(length)))
	if err != nil {
		return err
	}
	if len(data) < int(length) {
		return io.ErrUnexpectedEOF
	}
	if err := json.Unmarshal(data, message); err != nil {
		return fmt.Errorf("a message that cannot be read: %w", err)
	}
	return nil
}

// notAFrame says that something other than a frame came: the complaint of a program that should have been ours, as a rule.
func notAFrame(begin []byte, rest io.Reader) error {
	more := make([]byte, 200)
	n, _ := rest.Read(more)
	line, _, _ := strings.Cut(strings.TrimSpace(string(begin)+string(more[:n])), "\n")
	return fmt.Errorf("what answers is not packetwalk; it says %q", termsafe.Text(line))
}

// failure is an error that crosses: its text, and what it is.
type failure struct {
	Text string `json:"text"`
	Kind string `json:"kind,omitempty"`
}

func (f *failure) Error() string { return termsafe.Text(f.Text[:min(len(f.Text), maxText)]) }

// Unwrap returns the error that f stands for if callers may test for it, else nil. kinds lists these errors.
func (f *failure) Unwrap() error {
	for kind, err := range kinds {
		if f.Kind == kind {
			return err
		}
	}
	return nil
}

// Told tells of an error that the node itself gave as its answer, or that there is no such host.
func Told(err error) bool {
	_, told := errors.AsType[*failure](err)
	return told || errors.Is(err, fs.ErrNotExist)
}

func failed(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Text: err.Error()}
	for kind, is := range kinds {
		if errors.Is(err, is) {
			f.Kind = kind
		}
	}
	return f
}

// frameWriter writes whole frames, from several goroutines. Where the other side does not read for too long, stuck is called, once or more
// often: it ends the conversation.
type frameWriter struct {
	w     io.Writer
	stuck func()

	mu sync.Mutex
}

func (l *frameWriter) write(message any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	late := time.AfterFunc(writing, l.stuck)
	defer late.Stop()
	return writeFrame(l.w, message)
}
