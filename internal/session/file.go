package session

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/base/tempfile"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/capture/excerpt"
	"packetwalk.dev/internal/capture/redact"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/writers"
)

// File is a capture, or a text that shows some of a host's state. Which of both it is shows in its first bytes.
type File struct {
	Path  string
	Stdin *os.File // which Path "-" is
	// Root is the directory outside of which Path, which is below it, leads nowhere; nil for all of the machine. It has plain files only.
	Root *os.Root
	// Pasted is the text in place of a file's; nil for none. Path is then its name in messages.
	Pasted []byte
	// Host is the host that a text is of; "" is "node".
	Host string
	// Map is a file with the originals of a redacted capture, which are put back; "" for none.
	Map string
	// To is where the packet goes: of a text, it says which address a partial service has.
	To netip.AddrPort
}

// OpenFile opens a file. Reading a pipe, or a long text, ends when ctx does. An error is an InputError, but for those of the machine.
func OpenFile(ctx context.Context, f File) (*Session, error) {
	type outcome struct {
		session *Session
		err     error
	}
	done := make(chan outcome, 1)
	go func() { // which goes on when ctx ends
		s, err := f.open()
		done <- outcome{s, err}
	}()
	select {
	case o := <-done:
		return o.session, o.err
	case <-ctx.Done():
		go func() {
			if o := <-done; o.session != nil {
				_ = o.session.Close(context.WithoutCancel(ctx))
			}
		}()
		return nil, ctx.Err()
	}
}

// fileBackend is what a file holds.
type fileBackend struct {
	file   io.Closer // nil where all of it was read
	source snapshot.Source
}

func (b *fileBackend) read(context.Context) (snapshot.Source, error) { return b.source, nil }

func (b *fileBackend) place(string) (proof.Place, error) {
	return nil, errors.New("a packet is sent in a lab or a cluster, not in a file")
}

func (b *fileBackend) close(context.Context) error {
	if b.file == nil {
		return nil
	}
	return b.file.Close()
}

func (f *File) open() (*Session, error) {
	if f.Pasted != nil {
		return f.openText(f.Pasted)
	}
	in, size, err := f.input()
	if err != nil {
		return nil, &InputError{err}
	}
	c, err := capture.Read(in, size)
	if err != nil {
		defer in.Close()
	}
	switch {
	case errors.Is(err, capture.ErrNotCapture) && f.Map != "":
		return nil, &InputError{fmt.Errorf("%s is a text, and --map is for a redacted capture; leave it out", f.Path)}
	case errors.Is(err, capture.ErrNotCapture):
		text, err := limitio.Read(io.NewSectionReader(in, 0, size), maxText)
		if err != nil {
			return nil, &InputError{fmt.Errorf("read %s: %w", f.Path, err)}
		}
		return f.openText(text)
	case err != nil:
		return nil, &InputError{fmt.Errorf("%s: %w", f.Path, err)}
	}
	head, origin := c.Head, c.Origin()
	if f.Map != "" {
		if head, origin, err = f.restore(head, origin); err != nil {
			return nil, &InputError{errors.Join(fmt.Errorf("--map %s: %w", f.Map, err), in.Close())}
		}
	}
	hosts := capture.NewSource(origin)
	names := hosts.Names()
	of := fmt.Sprintf("%d hosts", len(names))
	if len(names) <= 3 {
		of = snapshot.List(names)
	}
	source := armview.WithDoubts(hosts)
	s := &Session{Taken: c.Taken, Redacted: head.Redacted, backend: &fileBackend{in, source}, source: source}
	s.Notes = []string{fmt.Sprintf("prediction only: from a capture of %s, taken %s", of, c.Taken.UTC().Format("2006-01-02 15:04:05 UTC"))}
	return s, nil
}

// restore puts the originals back into a redacted capture.
func (f *File) restore(h capture.Head, o capture.Origin) (capture.Head, capture.Origin, error) {
	originals, err := limitio.ReadFile(f.Map, maxMap)
	if err != nil {
		return h, o, err
	}
	return redact.Restore(h, o, writers.Book(&snapshot.Objects{}), originals)
}

const (
	// maxMap is the most bytes of a map: that of a cluster of 5,000 nodes has 60 MB.
	maxMap = 512 << 20
	// maxText is the most bytes of a text that shows rules.
	maxText = 64 << 20
	// maxSpool is the most that is read of a pipe: four times what a capture of 5,000 nodes has.
	maxSpool = 16 << 30
)

// input is a file that can be read at any offset.
type input interface {
	io.ReaderAt
	io.Closer
}

// input opens the file: a plain one as it is, all else as a temporary copy.
func (f *File) input() (input, int64, error) {
	in := f.Stdin
	if f.Path != "-" {
		file, err := f.openPath()
		if err != nil {
			return nil, 0, err
		}
		info, err := file.Stat()
		if err == nil && info.Mode().IsRegular() {
			return file, info.Size(), nil
		}
		defer file.Close()
		in = file
	}
	spool, err := tempfile.Create(os.TempDir())
	if err != nil {
		return nil, 0, tempfile.Explain(err)
	}
	buffered, limit := bufio.NewReader(in), int64(maxText)
	if magic, _ := buffered.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) { // gzip's (RFC 1952)
		limit = maxSpool
	}
	n, err := io.Copy(spool, io.LimitReader(buffered, limit+1))
	if err == nil && n > limit {
		err = &limitio.TooLongError{Limit: limit}
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("read %s: %w", f.Path, tempfile.Explain(err)), spool.Close())
	}
	return spool, n, nil
}

// openPath opens the file at Path.
func (f *File) openPath() (*os.File, error) {
	if f.Root == nil {
		return os.Open(f.Path)
	}
	info, err := f.Root.Stat(f.Path) // opening a pipe would wait for its other end
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("open %s: not a regular file", f.Path)
	}
	if err != nil {
		return nil, err
	}
	return f.Root.Open(f.Path)
}

// readLines returns the account of a text in one line.
func readLines(lines snapshot.Account) string {
	unread := lines.Unread()
	switch {
	case len(unread) == 0 && len(lines) == 1:
		return "read the one line"
	case len(unread) == 0:
		return fmt.Sprintf("read all %d lines", len(lines))
	}
	return fmt.Sprintf("read %d of %d lines; not read: %s", len(lines)-len(unread), len(lines), explain.LineNumbers(unread))
}

// openText opens a text as what a user saw on one node.
func (f *File) openText(text []byte) (*Session, error) {
	if bytes.IndexByte(text, 0) >= 0 {
		return nil, &InputError{fmt.Errorf("%s: neither a capture nor a text that shows rules: it has NUL bytes", f.Path)}
	}
	name := strings.TrimPrefix(cmp.Or(f.Host, "node"), "node/")
	source, err := excerpt.Read(writers.Book(&snapshot.Objects{}), loadNFT, name, text, f.To)
	if several, ok := errors.AsType[*excerpt.SeveralHostsError](err); ok {
		return nil, &InputError{fmt.Errorf("%s: %w", f.Path, several)}
	} else if err != nil {
		return nil, &InputError{fmt.Errorf("%s: neither a capture nor a text that shows rules: %w", f.Path, err)}
	}
	s := &Session{Text: true, backend: &fileBackend{source: source}, source: source}
	for _, n := range source.Names() {
		h, err := source.Host(n)
		if err != nil {
			return nil, err
		}
		s.Lines, s.RedactedNames = h.Account, h.Redacted
		for _, a := range h.Assumed {
			s.Assumed = append(s.Assumed, walk.Assumption{Host: n, What: a})
		}
	}
	path := f.Path
	if path == "-" {
		path = "standard input"
	}
	s.Notes = append(s.Notes, fmt.Sprintf("prediction only: from what %s shows", path), readLines(s.Lines))
	return s, nil
}
