package boot

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"packetwalk.dev/internal/pods/container"
)

const (
	logLimit  = 10 << 20 // bytes at which a log is rotated
	lineLimit = 16 << 10 // bytes of a line that are written at once, as container engines do
)

// A logFile writes a container's log in CRI's format. Its directory is held open, because the container's root is another by the time it
// rotates.
type logFile struct {
	mu    sync.Mutex
	dir   *os.Root
	name  string
	file  *os.File
	size  int64
	limit int64
	now   func() time.Time
}

// openLog opens the container's log; a nil logFile, which swallows everything, where it has none.
func (b *boot) openLog(open func(dir string) (*os.Root, error)) (*logFile, error) {
	if b.spec.LogPath == "" {
		return nil, nil
	}
	dir, err := open(filepath.Dir(b.spec.LogPath))
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return newLog(dir, filepath.Base(b.spec.LogPath))
}

// newLog opens a log for appending.
func newLog(dir *os.Root, name string) (*logFile, error) {
	l := &logFile{dir: dir, name: name, limit: logLimit, now: time.Now}
	return l, l.open()
}

func (l *logFile) open() error {
	file, err := l.dir.OpenFile(l.name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return err
	}
	l.file, l.size = file, info.Size()
	return nil
}

// rotate begins a new file. If that fails the old one goes on: a log that is too long is better than none.
func (l *logFile) rotate() {
	if l.dir.Rename(l.name, l.name+container.RotatedSuffix) != nil {
		return
	}
	old := l.file
	if l.open() == nil {
		old.Close()
	}
}

func (l *logFile) write(entries []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, _ := l.file.Write(entries) // a full disk must not end the container
	l.size += int64(n)
	if l.size >= l.limit {
		l.rotate()
	}
}

// A stream is one of the container's output streams: what is written becomes lines of the log, the end of a line that has none yet waits.
type stream struct {
	log  *logFile
	name string
	mu   sync.Mutex
	rest []byte
	out  []byte // reused
}

func (l *logFile) stream(name string) *stream { return &stream{log: l, name: name} }

// Write never fails: an application does not end for its log.
func (s *stream) Write(p []byte) (int, error) {
	if s.log == nil {
		return len(p), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = s.out[:0]
	for rest := p; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte{'\n'})
		rest = after
		s.rest = append(s.rest, line...)
		for len(s.rest) > lineLimit {
			s.entry('P', s.rest[:lineLimit])
			s.rest = append(s.rest[:0], s.rest[lineLimit:]...)
		}
		if ended {
			s.entry('F', s.rest)
			s.rest = s.rest[:0]
		}
	}
	s.flush()
	return len(p), nil
}

// Close writes what has no end of line.
func (s *stream) Close() error {
	if s.log == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = s.out[:0]
	if len(s.rest) > 0 {
		s.entry('P', s.rest)
		s.rest = nil
	}
	s.flush()
	return nil
}

func (s *stream) flush() {
	if len(s.out) > 0 {
		s.log.write(s.out)
	}
	if cap(s.out) > 4*lineLimit {
		s.out = nil
	}
}

func (s *stream) entry(tag byte, text []byte) {
	s.out = s.log.now().UTC().AppendFormat(s.out, "2006-01-02T15:04:05.000000000Z07:00")
	s.out = append(s.out, ' ')
	s.out = append(s.out, s.name...)
	s.out = append(s.out, ' ', tag, ' ')
	s.out = append(s.out, text...)
	s.out = append(s.out, '\n')
}

var _ io.WriteCloser = (*stream)(nil)
