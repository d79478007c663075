package capture

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// FormatVersion is the version of the capture format that this package writes, and the newest that it reads. docs/capture.md tells what is
// in a version.
const FormatVersion = 1

// formatName stands in every manifest.
const formatName = "packetwalk-capture"

const manifestFile = "manifest.json"

// manifest is the first file of a capture: what it is and what else is in it.
type manifest struct {
	Format     string            `json:"format"`
	Version    int               `json:"version"`
	Packetwalk string            `json:"packetwalk,omitempty"`
	Taken      time.Time         `json:"taken"`
	Redacted   bool              `json:"redacted"`
	Tools      map[string]string `json:"tools,omitempty"`
	Hosts      []manifestHost    `json:"hosts"`
	Kubernetes []manifestEntry   `json:"kubernetes"`
	Notes      []string          `json:"notes,omitempty"`
}

type manifestHost struct {
	Name    string          `json:"name"`
	Taken   time.Time       `json:"taken"`
	Kernel  string          `json:"kernel,omitempty"`
	Machine string          `json:"machine,omitempty"`
	NetNS   uint64          `json:"netns,omitempty"`
	Files   []manifestEntry `json:"files"`
}

// manifestEntry is one file. One with an Error has what the tool printed before it failed; one that was Skipped has no file.
type manifestEntry struct {
	File    string `json:"file"`
	Command string `json:"command,omitempty"`
	Bytes   int64  `json:"bytes"`
	Error   string `json:"error,omitempty"`
	Skipped string `json:"skipped,omitempty"`
}

// The errors of Read that a caller may want to tell apart.
var (
	// ErrNotCapture: the file is something else.
	ErrNotCapture = errors.New("not a capture; 'packetwalk capture' makes one")
	// ErrNewer: it was made by a newer packetwalk.
	ErrNewer = errors.New("the capture is of a newer format")
	// ErrDamaged: it is a capture, but not whole.
	ErrDamaged = errors.New("the capture is damaged")
)

// limits bound what a capture may be, so that a made-up one cannot fill the memory. A node with 10,000 services prints some 100 MB.
type limits struct {
	files       int
	file, total int64 // bytes, not compressed
}

// maxManifest is the most octets of a manifest, which tells of each file in some 100.
const maxManifest = 32 << 20

var defaultLimits = limits{files: 200_000, file: 512 << 20, total: 1 << 30}

// Write writes the capture as one compressed tar file. The same capture gives the same bytes.
func (c *Capture) Write(w io.Writer) error {
	m := manifest{
		Format: formatName, Version: FormatVersion, Packetwalk: c.Packetwalk, Taken: c.Taken.UTC(), Redacted: c.Redacted, Tools: c.Tools,
		Hosts: []manifestHost{}, Kubernetes: []manifestEntry{}, Notes: c.Notes,
	}
	type entry struct {
		path string
		data []byte
		time time.Time
	}
	var entries []entry
	for _, h := range slices.SortedFunc(slices.Values(c.Hosts), func(a, b *Raw) int { return cmp.Compare(a.Name, b.Name) }) {
		if !HostName(h.Name) {
			return fmt.Errorf("write capture: %q is no name of a host", h.Name)
		}
		mh := manifestHost{Name: h.Name, Taken: h.Taken.UTC(), Kernel: h.Kernel, Machine: h.Machine, NetNS: h.NetNS, Files: []manifestEntry{}}
		for _, file := range slices.Sorted(maps.Keys(h.Outputs)) {
			out := h.Outputs[file]
			mh.Files = append(mh.Files, manifestEntry{file, out.Command, int64(len(out.Data)), out.Error, out.Skipped})
			if out.Skipped == "" {
				entries = append(entries, entry{hostPath(h.Name, file), out.Data, h.Taken})
			}
		}
		m.Hosts = append(m.Hosts, mh)
	}
	for _, file := range slices.Sorted(maps.Keys(c.Lists)) {
		m.Kubernetes = append(m.Kubernetes, manifestEntry{File: file, Bytes: int64(len(c.Lists[file]))})
		entries = append(entries, entry{listPath(file), c.Lists[file], c.Taken})
	}
	head, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return err
	}
	zip := gzip.NewWriter(w)
	pack := tar.NewWriter(zip)
	for _, e := range append([]entry{{manifestFile, head, c.Taken}}, entries...) {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: e.path, Mode: 0o644, Size: int64(len(e.data)), ModTime: e.time.Truncate(time.Second)}
		if err := pack.WriteHeader(header); err != nil {
			return fmt.Errorf("write capture: %s: %w", e.path, err)
		}
		if _, err := pack.Write(e.data); err != nil {
			return fmt.Errorf("write capture: %s: %w", e.path, err)
		}
	}
	if err := errors.Join(pack.Close(), zip.Close()); err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	return nil
}

func hostPath(host, file string) string { return "hosts/" + host + "/" + file }
func listPath(file string) string       { return "kubernetes/" + file }

// Read reads a capture. Its errors are ErrNotCapture, ErrNewer and ErrDamaged, with the reason, and those of r.
func Read(r io.Reader) (*Capture, error) { return readWithin(r, defaultLimits) }

func readWithin(r io.Reader, most limits) (*Capture, error) {
	in := bufio.NewReader(r)
	if magic, err := in.Peek(2); err != nil || !bytes.Equal(magic, []byte{0x1f, 0x8b}) { // RFC 1952
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: it is not compressed with gzip", ErrNotCapture)
	}
	zip, err := gzip.NewReader(in)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotCapture, err)
	}
	defer zip.Close()
	p := unpacker{pack: tar.NewReader(zip), left: most.total, most: most}
	p.most.file = min(most.file, maxManifest)
	m, err := p.manifest()
	p.most.file = most.file
	if err != nil {
		return nil, err
	}
	c, err := m.capture()
	if err != nil {
		return nil, err
	}
	if err := p.files(c.wanted(m)); err != nil {
		return nil, err
	}
	// The checksum stands at the end of what was compressed.
	if n, err := io.Copy(io.Discard, io.LimitReader(zip, 1<<20)); err != nil || n == 1<<20 {
		return nil, damaged("after the last file", cmp.Or(err, errors.New("there is more")))
	}
	return c, nil
}

// unpacker reads the files of a tar one after the other, within bounds. Nothing is ever written by their names.
type unpacker struct {
	pack *tar.Reader
	left int64
	most limits
}

func damaged(where string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("it ends too early; copy it again")
	}
	return fmt.Errorf("%w: %s: %w", ErrDamaged, where, err)
}

// next reads one file; io.EOF is the end.
func (p *unpacker) next() (name string, data []byte, err error) {
	header, err := p.pack.Next()
	if errors.Is(err, io.EOF) {
		return "", nil, io.EOF
	}
	if err != nil {
		return "", nil, err
	}
	if header.Typeflag != tar.TypeReg {
		return header.Name, nil, fmt.Errorf("it is no plain file")
	}
	if header.Size > p.most.file || header.Size > p.left {
		return header.Name, nil, fmt.Errorf("%d bytes are more than a capture may have (%d in a file, %d together)", header.Size, p.most.file,
			p.most.total)
	}
	p.left -= header.Size
	// Grown as it comes: a header may promise more than there is.
	var b bytes.Buffer
	if _, err := io.Copy(&b, p.pack); err != nil {
		return header.Name, nil, err
	}
	return header.Name, b.Bytes(), nil
}

// manifest reads the first file and checks that this package can read the rest.
func (p *unpacker) manifest() (*manifest, error) {
	name, data, err := p.next()
	var m manifest
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, damaged(manifestFile, err)
	case err != nil && name != manifestFile:
		return nil, fmt.Errorf("%w: it holds no tar archive that begins with %s", ErrNotCapture, manifestFile)
	case err != nil:
		return nil, damaged(manifestFile, err)
	case name != manifestFile:
		return nil, fmt.Errorf("%w: it begins with %q, not with %s", ErrNotCapture, name, manifestFile)
	}
	// What it is, before how a later version may have changed the rest.
	var head struct {
		Format  string
		Version int
	}
	if err := json.Unmarshal(data, &head); err != nil || head.Format != formatName {
		return nil, fmt.Errorf("%w: %s is another program's", ErrNotCapture, manifestFile)
	}
	if head.Version > FormatVersion {
		return nil, fmt.Errorf("%w: version %d, and this packetwalk reads up to %d; use the packetwalk that made it, or a newer one",
			ErrNewer, head.Version, FormatVersion)
	}
	if head.Version < 1 {
		return nil, damaged(manifestFile, fmt.Errorf("there is no version %d", head.Version))
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, damaged(manifestFile, err)
	}
	return &m, nil
}

// capture is the manifest's, without the texts.
func (m *manifest) capture() (*Capture, error) {
	c := &Capture{Packetwalk: m.Packetwalk, Taken: m.Taken, Redacted: m.Redacted, Tools: m.Tools, Notes: m.Notes, Lists: map[string][]byte{}}
	names := map[string]bool{}
	for _, h := range m.Hosts {
		if !HostName(h.Name) {
			return nil, damaged(manifestFile, fmt.Errorf("%q is no name of a host", h.Name))
		}
		if names[h.Name] {
			return nil, damaged(manifestFile, fmt.Errorf("host %q stands there twice", h.Name))
		}
		names[h.Name] = true
		raw := &Raw{Name: h.Name, Taken: h.Taken, Kernel: h.Kernel, Machine: h.Machine, NetNS: h.NetNS, Outputs: map[string]Output{}}
		for _, f := range h.Files {
			if !plainPath(f.File) || strings.Contains(f.File, "/") {
				return nil, damaged(manifestFile, fmt.Errorf("host %q: %q is no name of a file", h.Name, f.File))
			}
			raw.Outputs[f.File] = Output{Command: f.Command, Error: f.Error, Skipped: f.Skipped}
		}
		c.Hosts = append(c.Hosts, raw)
	}
	for _, f := range m.Kubernetes {
		if !plainPath(f.File) || strings.Contains(f.File, "/") {
			return nil, damaged(manifestFile, fmt.Errorf("kubernetes: %q is no name of a file", f.File))
		}
	}
	slices.SortFunc(c.Hosts, func(a, b *Raw) int { return cmp.Compare(a.Name, b.Name) })
	return c, nil
}

// HostName tells whether a host in a capture can have the name.
func HostName(name string) bool { return plainPath(name) }

// plainPath tells whether a name is elements of printable characters between single slashes, none of them "." or "..".
func plainPath(name string) bool {
	if len(name) > 600 {
		return false
	}
	for _, e := range strings.Split(name, "/") {
		if e == "" || e == "." || e == ".." ||
			strings.ContainsFunc(e, func(r rune) bool { return r <= ' ' || r == '\\' || r == 0x7f || r == '\ufffd' }) {
			return false
		}
	}
	return true
}

// slotFor is where the text of one file goes, and how long it is.
type slotFor struct {
	bytes int64
	put   func([]byte)
}

// wanted are the files that the manifest promises, by their paths.
func (c *Capture) wanted(m *manifest) map[string]slotFor {
	byName := map[string]*Raw{}
	for _, h := range c.Hosts {
		byName[h.Name] = h
	}
	wanted := map[string]slotFor{}
	for _, h := range m.Hosts {
		raw := byName[h.Name]
		for _, f := range h.Files {
			if f.Skipped != "" {
				continue
			}
			wanted[hostPath(h.Name, f.File)] = slotFor{f.Bytes, func(data []byte) {
				out := raw.Outputs[f.File]
				out.Data = data
				raw.Outputs[f.File] = out
			}}
		}
	}
	for _, f := range m.Kubernetes {
		wanted[listPath(f.File)] = slotFor{f.Bytes, func(data []byte) { c.Lists[f.File] = data }}
	}
	return wanted
}

// files reads the promised files, each once, and no others.
func (p *unpacker) files(wanted map[string]slotFor) error {
	for n := 0; ; n++ {
		name, data, err := p.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && n >= p.most.files {
			err = fmt.Errorf("more than %d files", p.most.files)
		}
		if err != nil {
			return damaged(cmp.Or(name, "tar"), err)
		}
		slot, ok := wanted[name]
		switch {
		case !ok:
			return damaged(fmt.Sprintf("%q", name), fmt.Errorf("%s does not tell of it", manifestFile))
		case slot.bytes != int64(len(data)):
			return damaged(name, fmt.Errorf("it has %d bytes, where %s tells of %d", len(data), manifestFile, slot.bytes))
		}
		slot.put(data)
		delete(wanted, name)
	}
	if len(wanted) > 0 {
		missing := slices.Sorted(maps.Keys(wanted))
		return damaged(missing[0], fmt.Errorf("it is not there (%d such files); copy the capture again", len(missing)))
	}
	return nil
}
