package container

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
)

// Streams are the caller's ends of a container's standard streams.
type Streams struct {
	Stdin          io.Reader // nil leaves the container's alone
	Stdout, Stderr io.Writer // nil discards; a terminal has Stdout only
	Resize         <-chan Size
}

// The frames of the attach socket: a kind, the payload's length in four bytes, big-endian, and the payload.
const (
	FrameStdin  = 0
	FrameStdout = 1
	frameStderr = 2
	FrameResize = 3 // width and height, two bytes each, big-endian
	FrameEOF    = 4 // of the standard input
	frameLimit  = 1 << 20
)

// WriteFrame writes one frame in one call of w.Write.
func WriteFrame(w io.Writer, kind byte, payload []byte) error {
	frame := append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(payload))), payload...)
	_, err := w.Write(frame)
	return err
}

// ReadFrame reads one frame; io.EOF at the end of the stream.
func ReadFrame(r io.Reader) (kind byte, payload []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > frameLimit {
		return 0, nil, fmt.Errorf("frame of %d bytes is too long", n)
	}
	payload = make([]byte, n)
	if _, err = io.ReadFull(r, payload); err != nil {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return head[0], payload, nil
}

// Attach connects the streams to the container's command until it ends, or ctx does. Output from before is in the log. Only a container
// with Stdin or TTY can be attached to.
func (c *Container) Attach(ctx context.Context, s Streams) error {
	if !c.spec.Stdin && !c.spec.TTY {
		return fmt.Errorf("container %s has neither a standard input nor a terminal to attach to", c.spec.Name)
	}
	conn, err := c.dialAttach()
	if err != nil {
		return fmt.Errorf("container %s: attach: %w", c.spec.Name, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	out := &frameWriter{w: conn}
	ended := make(chan struct{})
	defer close(ended)
	if s.Stdin != nil {
		go out.stdin(s.Stdin)
	}
	if s.Resize != nil {
		go out.resize(s.Resize, ended)
	}
	err = receive(conn, s)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		return nil
	}
	return fmt.Errorf("container %s: attach: %w", c.spec.Name, err)
}

// dialAttach goes by a descriptor of the directory: a socket's path has 107 bytes at most (unix(7)), a pod's directory more.
func (c *Container) dialAttach() (net.Conn, error) {
	dir, err := os.Open(c.spec.Dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	conn, err := net.Dial("unix", filepath.Join(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), AttachFile))
	if err != nil && isClosed(c.done) {
		return nil, ErrNotRunning
	}
	return conn, err
}

// receive writes what the container says until the connection ends; its error, which is never nil, is then io.EOF.
func receive(r io.Reader, s Streams) error {
	for {
		kind, payload, err := ReadFrame(r)
		if err != nil {
			return err
		}
		w := s.Stdout
		if kind == frameStderr {
			w = s.Stderr
		}
		if w == nil {
			continue
		}
		if _, err := w.Write(payload); err != nil {
			return err
		}
	}
}

type frameWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (f *frameWriter) write(kind byte, payload []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return WriteFrame(f.w, kind, payload)
}

func (f *frameWriter) stdin(r io.Reader) {
	buf := make([]byte, 16<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 && f.write(FrameStdin, buf[:n]) != nil {
			return
		}
		if err != nil {
			_ = f.write(FrameEOF, nil) // a container that has ended does not care
			return
		}
	}
}

func (f *frameWriter) resize(sizes <-chan Size, ended <-chan struct{}) {
	for {
		select {
		case s, ok := <-sizes:
			if !ok {
				return
			}
			payload := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, s.Width), s.Height)
			if f.write(FrameResize, payload) != nil {
				return
			}
		case <-ended:
			return
		}
	}
}
