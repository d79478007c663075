package aci

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// A session's messages are binary and begin with the channel that they are of. Azure's have no channels: a session there is one terminal.
const (
	channelStdin  = 0
	channelStdout = 1
	channelStderr = 2
	channelEnd    = 3   // from the server, the last one: JSON of type ended
	channelResize = 4   // from the client: JSON of type terminalSize
	channelEOF    = 255 // of the standard input
)

const (
	maxMessage   = 1 << 20         // the most bytes of a message, its channel's among them
	sendPatience = 5 * time.Minute // how long the other side may not read: a terminal that was stopped is not cut off at once
)

// sessionResult is how a session ended.
type sessionResult struct {
	Code  int    `json:"exitCode"`
	Error string `json:"error,omitempty"`
}

// stream is one side of a session.
type stream struct {
	conn  *websocket.Conn
	write sync.Mutex

	// The server's ends.
	stdin *io.PipeReader
	input *io.PipeWriter
	sizes chan Size
}

func newStream(conn *websocket.Conn) *stream {
	c := &stream{conn: conn, sizes: make(chan Size, 1)}
	c.stdin, c.input = io.Pipe()
	return c
}

// send sends one message.
func (c *stream) send(channel byte, data []byte) error {
	c.write.Lock()
	defer c.write.Unlock()
	_ = c.conn.SetWriteDeadline(time.Now().Add(sendPatience)) // never fails
	return c.conn.WriteMessage(websocket.BinaryMessage, append([]byte{channel}, data...))
}

// end sends how the session ended, and closes the connection.
func (c *stream) end(code int, err error) {
	e := sessionResult{Code: code}
	if err != nil {
		e.Error = err.Error()
	}
	data, _ := json.Marshal(e)
	_ = c.send(channelEnd, data) // the client may be gone
	_ = c.conn.Close()
}

type channelWriter struct {
	c       *stream
	channel byte
}

func (w channelWriter) Write(p []byte) (int, error) {
	for piece := range slices.Chunk(p, maxMessage-1) {
		if err := w.c.send(w.channel, piece); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (c *stream) writer(channel byte) io.Writer { return channelWriter{c, channel} }

// receive takes what the client sends until the connection ends.
func (c *stream) receive() {
	defer close(c.sizes)
	defer c.input.Close()
	for {
		_, m, err := c.conn.ReadMessage()
		if err != nil {
			return
		}
		if len(m) == 0 {
			continue
		}
		switch m[0] {
		case channelStdin:
			_, _ = c.input.Write(m[1:]) // fails when the command has ended
		case channelEOF:
			c.input.Close()
		case channelResize:
			var s terminalSize
			if json.Unmarshal(m[1:], &s) == nil {
				c.resize(s)
			}
		}
	}
}

// terminalSize is a Size on the wire.
type terminalSize struct {
	Width  uint16 `json:"cols"`
	Height uint16 `json:"rows"`
}

// resize says a new size. One at a time.
func (c *stream) resize(s terminalSize) {
	select {
	case <-c.sizes: // the previous size is unread, and this one is newer
	default:
	}
	c.sizes <- Size{Width: s.Width, Height: s.Height}
}

// errCut says that a session ended without a word.
var errCut = errors.New("the session was cut off")

// copyOutput copies what the server sends to stdout and stderr until the session ends, and returns the exit status.
func (c *stream) copyOutput(stdout, stderr io.Writer) (code int, err error) {
	for {
		_, m, err := c.conn.ReadMessage()
		if err != nil {
			return -1, errors.Join(errCut, err)
		}
		if len(m) == 0 {
			continue
		}
		var w io.Writer
		switch m[0] {
		case channelStdout:
			w = stdout
		case channelStderr:
			w = stderr
		case channelEnd:
			var e sessionResult
			if err := json.Unmarshal(m[1:], &e); err != nil {
				return -1, err
			}
			if e.Error != "" {
				return e.Code, errors.New(e.Error)
			}
			return e.Code, nil
		}
		if w == nil {
			continue
		}
		if _, err := w.Write(m[1:]); err != nil {
			return -1, err
		}
	}
}
