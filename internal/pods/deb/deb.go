// Package deb reads Debian packages (deb(5)) into memory: which package it is, and its files. It needs no dpkg, and reads packages of any
// architecture. What it reads is untrusted: names that lead out of the package's own tree, files that are none (devices, sockets), and more
// than a limit are refused, and nothing is written anywhere. It must not import anything of ours but base.
package deb

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"
	"github.com/therootcompany/xz"

	"packetwalk.dev/internal/base/bounded"
)

// A Package is what is in one.
type Package struct {
	Name, Version, Architecture string
	// Control is the package's own record, whole (deb-control(5)).
	Control string
	// Files are its files and links, by their paths without the first slash; directories are not kept.
	Files map[string]File
}

// A File is a regular one, or a symbolic link.
type File struct {
	Mode fs.FileMode // permission bits
	Link string      // where a link leads, "" for a file; at most the package's own top
	Data []byte
}

// Limits are the most that is read of a package.
type Limits struct {
	Member  int64 // octets of a member of the archive, as it comes
	Data    int64 // octets of the files, unpacked, with the archive's own headers
	Files   int
	Control int64 // octets of the unpacked control archive
}

// Most is more than any package has that an image is made of.
var Most = Limits{Member: 64 << 20, Data: 256 << 20, Files: 20_000, Control: 8 << 20}

// maxWindow is the most memory that a member may ask to be unpacked with, in octets; dpkg-deb's xz -9 asks for the same.
const maxWindow = 64 << 20

// Read reads one package. An error is that of r, or says what is wrong with the package.
func Read(r io.Reader, most Limits) (*Package, error) {
	var p Package
	members := []struct {
		name string
		read func(io.Reader) error
	}{
		{"debian-binary", func(r io.Reader) error { return readFormat(r) }},
		{"control.tar", func(r io.Reader) error { return p.readControl(r, most) }},
		{"data.tar", func(r io.Reader) error { return p.readData(r, most) }},
	}
	a, err := newArchive(r)
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		name, content, err := a.next(most.Member)
		if err != nil {
			return nil, fmt.Errorf("the package's %s: %w", m.name, err)
		}
		ending, ok := strings.CutPrefix(name, m.name)
		if !ok {
			return nil, fmt.Errorf("the package has %q where %s should be", name, m.name)
		}
		plain, err := unpacked(ending, content)
		if err == nil {
			err = m.read(plain)
		}
		if err != nil {
			return nil, fmt.Errorf("the package's %s: %w", m.name, err)
		}
	}
	return &p, nil
}

func readFormat(r io.Reader) error {
	text, err := bounded.Read(r, 64)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(text), "2.") {
		return fmt.Errorf("its format is %q and not 2", text)
	}
	return nil
}

// unpacked reads a member whose name has an ending.
func unpacked(ending string, r io.Reader) (io.Reader, error) {
	switch ending {
	case "":
		return r, nil
	case ".gz":
		return gzip.NewReader(r)
	case ".xz":
		return xz.NewReader(r, maxWindow)
	case ".zst":
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		return z, nil // which has no goroutine that would have to end
	}
	return nil, fmt.Errorf("it is packed as %q, which is not read", ending)
}

func (p *Package) readControl(r io.Reader, most Limits) error {
	t := tar.NewReader(&guarded{r, most.Control, most.Control})
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return errors.New("it has no file control")
		}
		if err != nil {
			return err
		}
		if path.Clean(h.Name) != "control" || h.Typeflag != tar.TypeReg {
			continue
		}
		text, err := bounded.Read(t, 1<<20)
		if err != nil {
			return err
		}
		return p.parseControl(string(text))
	}
}

// parseControl reads the fields that are needed: those lines of a record that begin with no space.
func (p *Package) parseControl(text string) error {
	p.Control = strings.TrimRight(text, "\n") + "\n"
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(line, ":")
		if !ok || strings.HasPrefix(line, " ") {
			continue
		}
		value = strings.TrimSpace(value)
		switch strings.ToLower(key) {
		case "package":
			p.Name = value
		case "version":
			p.Version = value
		case "architecture":
			p.Architecture = value
		}
	}
	if !utf8.ValidString(text) || !word(p.Name) || !word(p.Version) || !word(p.Architecture) {
		return fmt.Errorf("it names the package %q, version %q, architecture %q", p.Name, p.Version, p.Architecture)
	}
	return nil
}

// word tells whether a name, a version or an architecture has only what those may have (Debian Policy, 5.6).
func word(s string) bool {
	return s != "" && s[0] != '.' && s[0] != '-' && strings.IndexFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(".+-~:_", r)
	}) < 0
}

func (p *Package) readData(r io.Reader, most Limits) error {
	all, left := &guarded{r, most.Data, most.Data}, most.Data
	t := tar.NewReader(all)
	p.Files = map[string]File{}
	for count := 0; ; count++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, all) // a sum at the end is checked
			return err
		}
		if err != nil {
			return err
		}
		if count == most.Files {
			return fmt.Errorf("it has more than %d files, which is the most that is read", most.Files)
		}
		if h.Typeflag == tar.TypeReg {
			if h.Size > left { // with the holes of a sparse file, which are not in the archive
				return fmt.Errorf("%.300q: %w", h.Name, &bounded.TooLongError{Limit: most.Data})
			}
			left -= h.Size
		}
		if err := p.take(h, t); err != nil {
			return fmt.Errorf("%.300q: %w", h.Name, err)
		}
	}
}

// take keeps one entry.
func (p *Package) take(h *tar.Header, content io.Reader) error {
	name, err := inside(h.Name)
	if err != nil {
		return err
	}
	file := File{Mode: fs.FileMode(h.Mode & 0o777)}
	switch h.Typeflag {
	case tar.TypeDir:
		return nil
	case tar.TypeReg:
		if file.Data, err = io.ReadAll(content); err != nil { // readData has the limit
			return err
		}
	case tar.TypeSymlink:
		file.Link = h.Linkname
		if err := leadsInside(name, h.Linkname); err != nil {
			return err
		}
	case tar.TypeLink:
		to, err := inside(h.Linkname)
		if err != nil {
			return err
		}
		same, ok := p.Files[to]
		if !ok || same.Link != "" {
			return fmt.Errorf("it is a link to %q, which is no file before it", h.Linkname)
		}
		file = same
	default:
		return fmt.Errorf("it is neither file, folder nor link, but of type %q", h.Typeflag)
	}
	if name == "." {
		return errors.New("the package's top is no folder")
	}
	p.Files[name] = file
	return nil
}

// inside is a name below the package's top, as fs has it.
func inside(name string) (string, error) {
	if !printable(name) {
		return "", errors.New("its name is no text")
	}
	if path.IsAbs(name) || slices.Contains(strings.Split(name, "/"), "..") {
		return "", fmt.Errorf("its name leads out of the package: %q", name)
	}
	return path.Clean(name), nil
}

// leadsInside refuses links above the top.
func leadsInside(name, target string) error {
	if target == "" || !printable(target) {
		return errors.New("it leads to what is no name")
	}
	if path.IsAbs(target) {
		return nil // from the package's own top on
	}
	depth := strings.Count(name, "/")
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if depth--; depth < 0 {
				return fmt.Errorf("it is a link out of the package: %q", target)
			}
		default:
			depth++
		}
	}
	return nil
}

func printable(name string) bool {
	return name != "" && utf8.ValidString(name) && strings.IndexFunc(name, unicode.IsControl) < 0
}

// guarded gives an error where there is more than expected.
type guarded struct {
	r           io.Reader
	left, limit int64 // octets
}

func (g *guarded) Read(p []byte) (int, error) {
	n, err := g.r.Read(p)
	if g.left -= int64(n); g.left < 0 {
		return 0, &bounded.TooLongError{Limit: g.limit}
	}
	return n, err
}

// An archive is one that ar made, whose members come one after the other.
type archive struct {
	r    io.Reader
	rest io.Reader // of the member before
	odd  bool      // it has an odd length: a byte follows that fills it up
}

const (
	magic       = "!<arch>\n"
	memberEnd   = "`\n"
	headerBytes = 60
)

var errNoPackage = errors.New("it is no Debian package")

func newArchive(r io.Reader) (*archive, error) {
	head := make([]byte, len(magic))
	if _, err := io.ReadFull(r, head); err != nil || string(head) != magic {
		return nil, errNoPackage
	}
	return &archive{r: r, rest: bytes.NewReader(nil)}, nil
}

// next is the next member of at most that length.
func (a *archive) next(most int64) (name string, content io.Reader, err error) {
	if _, err := io.Copy(io.Discard, a.rest); err != nil {
		return "", nil, err
	}
	if a.odd {
		if _, err := io.CopyN(io.Discard, a.r, 1); err != nil {
			return "", nil, cutOff(err)
		}
	}
	h := make([]byte, headerBytes)
	if _, err := io.ReadFull(a.r, h); err != nil {
		return "", nil, cutOff(err)
	}
	size, err := strconv.ParseInt(strings.TrimRight(string(h[48:58]), " "), 10, 64)
	if string(h[58:]) != memberEnd || err != nil || size < 0 {
		return "", nil, errNoPackage
	}
	if size > most {
		return "", nil, &bounded.TooLongError{Limit: most}
	}
	a.rest, a.odd = &exactly{a.r, size}, size%2 == 1
	return strings.TrimSuffix(strings.TrimRight(string(h[:16]), " "), "/"), a.rest, nil
}

// exactly reads so many octets, and it is an error when there are fewer.
type exactly struct {
	r    io.Reader
	left int64
}

func (e *exactly) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	if e.left -= int64(n); e.left > 0 && errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func cutOff(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("it ends in the middle: %w", io.ErrUnexpectedEOF)
	}
	return err
}
