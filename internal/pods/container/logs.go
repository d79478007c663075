package container

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"packetwalk.dev/internal/base/logs"
)

// RotatedSuffix is what a log's name gets when the next one is begun; there is one such file.
const RotatedSuffix = ".1"

// logPoll is how often a followed log is looked at: a person's patience, not a machine's.
const logPoll = 100 * time.Millisecond

// ReadLogs copies the log that a container wrote at path, the file that it was rotated to first, to w: for each line what the container
// wrote, without CRI's prefix ("TIME STREAM TAG ", the Container Runtime Interface's logging format). It returns when all is read, or, with
// Follow, when ended closes, a Container's Done, and what was written before is read, or ctx ends. A file that is not there yet is waited
// for with Follow; without, the error is fs.ErrNotExist.
func ReadLogs(ctx context.Context, path string, o logs.Options, ended <-chan struct{}, w io.Writer) error {
	l := &logReader{ctx: ctx, path: path, o: o, ended: ended, w: w, left: o.LimitBytes, lineStart: true}
	err := l.read()
	if errors.Is(err, errLimit) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("log %s: %w", path, err)
	}
	return nil
}

var errLimit = errors.New("limit of bytes reached")

type logReader struct {
	ctx       context.Context
	path      string
	o         logs.Options
	ended     <-chan struct{}
	w         io.Writer
	left      int64
	lineStart bool // the next entry begins a line
	skip      int  // lines before the tail
	rest      []byte
}

func (l *logReader) read() error {
	if err := l.seekTail(); err != nil {
		return err
	}
	file, err := l.openFirst()
	if err != nil || file == nil {
		return err
	}
	defer func() { file.Close() }()
	for {
		// Whether it has ended is asked before the reading: what was written before is read after.
		ended := !l.o.Follow || isClosed(l.ended)
		if err := l.copyAll(file); err != nil {
			return err
		}
		next, err := l.successor(file)
		if err != nil {
			return err
		}
		if next != nil {
			if err := l.copyAll(file); err != nil { // what came between the reading and the renaming
				next.Close()
				return err
			}
			file.Close()
			file = next
			continue
		}
		if ended {
			return nil
		}
		if !l.wait() {
			return l.ctx.Err()
		}
	}
}

// wait gives the log time to grow; false if ctx ended.
func (l *logReader) wait() bool {
	timer := time.NewTimer(logPoll)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.ended:
	case <-l.ctx.Done():
		return false
	}
	return true
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// openFirst opens the oldest file of the log.
func (l *logReader) openFirst() (*os.File, error) {
	for {
		file, err := os.Open(l.path + RotatedSuffix)
		if errors.Is(err, fs.ErrNotExist) {
			file, err = os.Open(l.path)
		}
		if err == nil || !errors.Is(err, fs.ErrNotExist) || !l.o.Follow {
			return file, err
		}
		if isClosed(l.ended) {
			return nil, nil
		}
		if !l.wait() {
			return nil, l.ctx.Err()
		}
	}
}

// successor opens the log's present file if that is another one than this.
func (l *logReader) successor(file *os.File) (*os.File, error) {
	next, err := os.Open(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	a, errA := file.Stat()
	b, errB := next.Stat()
	if err := errors.Join(errA, errB); err != nil || os.SameFile(a, b) {
		next.Close()
		return nil, err
	}
	return next, nil
}

func (l *logReader) copyAll(file *os.File) error {
	in := bufio.NewReader(file)
	for {
		part, err := in.ReadBytes('\n')
		l.rest = append(l.rest, part...)
		if err == nil {
			if err := l.entry(l.rest[:len(l.rest)-1]); err != nil {
				return err
			}
			l.rest = l.rest[:0]
			continue
		}
		if err == io.EOF {
			return nil // a line that is being written stays in rest
		}
		return err
	}
}

// An Entry is one line of a log file.
type entry struct {
	time    []byte
	stream  []byte
	partial bool
	text    []byte
}

// parseEntry splits "2006-01-02T15:04:05.999999999Z stdout F text".
func parseEntry(line []byte) (e entry, ok bool) {
	var tag []byte
	if e.time, line, ok = bytes.Cut(line, []byte{' '}); !ok {
		return e, false
	}
	if e.stream, line, ok = bytes.Cut(line, []byte{' '}); !ok {
		return e, false
	}
	tag, e.text, ok = bytes.Cut(line, []byte{' '})
	e.partial = bytes.HasPrefix(tag, []byte("P"))
	return e, ok && len(tag) > 0
}

func (e *entry) wanted(o *logs.Options) bool {
	if o.Stream != "" && string(e.stream) != o.Stream {
		return false
	}
	if o.Since.IsZero() {
		return true
	}
	at, err := time.Parse(time.RFC3339Nano, string(e.time))
	return err != nil || !at.Before(o.Since)
}

func (l *logReader) entry(line []byte) error {
	e, ok := parseEntry(line)
	if !ok || !e.wanted(&l.o) {
		return nil
	}
	if l.skip > 0 {
		if !e.partial {
			l.skip--
		}
		return nil
	}
	var out []byte
	if l.lineStart && l.o.Timestamps {
		out = append(append(out, e.time...), ' ')
	}
	out = append(out, e.text...)
	if !e.partial {
		out = append(out, '\n')
	}
	l.lineStart = !e.partial
	return l.write(out)
}

func (l *logReader) write(out []byte) error {
	limited := l.o.LimitBytes > 0
	if limited && int64(len(out)) > l.left {
		out = out[:l.left]
	}
	if _, err := l.w.Write(out); err != nil {
		return err
	}
	if l.left -= int64(len(out)); limited && l.left == 0 {
		return errLimit
	}
	return nil
}

// seekTail counts the lines that there are, so that the reading can leave out those before the tail. A log is at most two files of the size
// at which it is rotated, so reading it twice is cheap enough.
func (l *logReader) seekTail() error {
	if l.o.Tail == nil {
		return nil
	}
	total := 0
	for _, path := range []string{l.path + RotatedSuffix, l.path} {
		n, err := l.countLines(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		total += n
	}
	l.skip = max(0, total-*l.o.Tail)
	return nil
}

func (l *logReader) countLines(path string) (lines int, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	in := bufio.NewReader(file)
	partial := false
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			if partial {
				lines++ // a last line that had no end
			}
			return lines, nil
		}
		if err != nil {
			return lines, err
		}
		e, ok := parseEntry(line[:len(line)-1])
		if !ok || !e.wanted(&l.o) {
			continue
		}
		if partial = e.partial; !partial {
			lines++
		}
	}
}
