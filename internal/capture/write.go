package capture

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
)

// Writer writes a capture host by host, as they come. What it wrote is a capture only after Close. It is safe for concurrent use: hosts are
// compressed side by side.
type Writer struct {
	taken time.Time

	mu    sync.Mutex
	out   io.Writer
	at    int64
	index index
	err   error // of out
}

// NewWriter begins a capture. The head's Tools and Notes are those of Close.
func NewWriter(out io.Writer, h Head) (*Writer, error) {
	w := &Writer{out: out, taken: h.Taken, index: index{Hosts: []indexHost{}, Kubernetes: []indexList{}}}
	text, err := json.MarshalIndent(manifest{
		Format: formatName, Version: FormatVersion, Packetwalk: h.Packetwalk, Taken: h.Taken.UTC(), Redacted: h.Redacted,
	}, "", " ")
	if err != nil {
		return nil, err
	}
	err = w.write(func(m member) { w.index.Manifest = m }, file{manifestFile, text, h.Taken})
	return w, err
}

// file is one of the tar archive.
type file struct {
	path string
	data []byte
	time time.Time
}

// Add writes a host. Its texts are not kept.
func (w *Writer) Add(h *Raw) error {
	if !HostName(h.Name) {
		return fmt.Errorf("write capture: %q is no name of a host", h.Name)
	}
	head := hostHead{Name: h.Name, Taken: h.Taken.UTC(), Kernel: h.Kernel, Machine: h.Machine, NetNS: h.NetNS, Files: []fileEntry{}}
	files := []file{{path: hostPath(h.Name, hostFile), time: h.Taken}}
	for _, name := range slices.Sorted(maps.Keys(h.Outputs)) {
		out := h.Outputs[name]
		head.Files = append(head.Files, fileEntry{name, out.Command, int64(len(out.Data)), out.Error, out.Skipped})
		if out.Skipped == "" {
			files = append(files, file{hostPath(h.Name, name), out.Data, h.Taken})
		}
	}
	var err error
	if files[0].data, err = json.Marshal(head); err != nil {
		return err
	}
	return w.write(func(m member) {
		w.index.Hosts = append(w.index.Hosts, indexHost{h.Name, h.Machine, h.NetNS, m})
	}, files...)
}

// AddLists writes lists of Kubernetes objects by the File of ObjectLists.
func (w *Writer) AddLists(lists map[string][]byte) error {
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		err := w.write(func(m member) {
			w.index.Kubernetes = append(w.index.Kubernetes, indexList{name, int64(len(lists[name])), m})
		}, file{listPath(name), lists[name], w.taken})
		if err != nil {
			return err
		}
	}
	return nil
}

// Close writes the index, which makes it a capture.
func (w *Writer) Close(tools map[string]string, notes []string) error {
	w.index.Tools, w.index.Notes = tools, notes
	slices.SortFunc(w.index.Hosts, func(a, b indexHost) int { return cmp.Compare(a.Name, b.Name) })
	text, err := json.Marshal(w.index)
	if err != nil {
		return err
	}
	packed, m, err := pack(true, file{indexFile, text, w.taken})
	if err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	m.At = w.at
	if err := w.append(packed); err != nil {
		return err
	}
	return w.append(footer(m))
}

// write packs files into a member and writes it; noted puts it into the index.
func (w *Writer) write(noted func(member), files ...file) error {
	packed, m, err := pack(false, files...)
	if err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	m.At = w.at
	if err := w.append(packed); err != nil {
		return err
	}
	noted(m)
	return nil
}

func (w *Writer) append(packed []byte) error {
	if w.err == nil {
		_, w.err = w.out.Write(packed)
		w.at += int64(len(packed))
	}
	return w.err
}

// pack makes a member of files; the last one ends the archive.
func pack(last bool, files ...file) ([]byte, member, error) {
	var packed bytes.Buffer
	zip, _ := zips.Get().(*gzip.Writer)
	defer zips.Put(zip)
	zip.Reset(&packed)
	count := &counter{w: zip}
	archive := tar.NewWriter(count)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: 0o644, Size: int64(len(f.data)), ModTime: f.time.Truncate(time.Second)}
		if err := archive.WriteHeader(header); err != nil {
			return nil, member{}, fmt.Errorf("%s: %w", f.path, err)
		}
		if _, err := archive.Write(f.data); err != nil {
			return nil, member{}, fmt.Errorf("%s: %w", f.path, err)
		}
	}
	end := archive.Flush
	if last {
		end = archive.Close
	}
	if err := errors.Join(end(), zip.Close()); err != nil {
		return nil, member{}, err
	}
	sum := sha256.Sum256(packed.Bytes())
	return packed.Bytes(), member{Size: int64(packed.Len()), Bytes: count.n, SHA256: sum[:]}, nil
}

// zips are used again: each has a megabyte, and most hosts are small. At the default level 17 MB of rules are 1.7 MB in 50 ms; at the
// fastest they are a fifth more in half the time.
var zips = sync.Pool{New: func() any {
	zip, _ := gzip.NewWriterLevel(nil, gzip.DefaultCompression) // a level that there is
	return zip
}}

// counter counts what is written.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// The footer is an empty gzip member whose header has, in an extra field (RFC 1952, 2.3.1.1), where the index is: offset and size, eight
// bytes each with the least significant first, and its SHA-256.
const (
	footerExtra = 8 + 8 + sha256.Size
	footerSize  = 10 + 2 + 4 + footerExtra + 2 + 8
)

func footer(index member) []byte {
	b := []byte{0x1f, 0x8b, 8, 1 << 2, 0, 0, 0, 0, 0, 0xff} // deflate, FEXTRA, no time, no system
	b = binary.LittleEndian.AppendUint16(b, 4+footerExtra)
	b = append(b, 'P', 'W')
	b = binary.LittleEndian.AppendUint16(b, footerExtra)
	b = binary.LittleEndian.AppendUint64(b, uint64(index.At))
	b = binary.LittleEndian.AppendUint64(b, uint64(index.Size))
	b = append(b, index.SHA256...)
	b = append(b, 3, 0) // a last block, empty, with fixed Huffman codes (RFC 1951, 3.2.6)
	return append(b, make([]byte, 8)...)
}

// readFooter reads what footer writes; false where there is none.
func readFooter(b []byte) (index member, ok bool) {
	if len(b) != footerSize {
		return member{}, false
	}
	at := b[16:]
	index = member{
		At:     int64(binary.LittleEndian.Uint64(at)),
		Size:   int64(binary.LittleEndian.Uint64(at[8:])),
		SHA256: bytes.Clone(at[16 : 16+sha256.Size]),
	}
	return index, bytes.Equal(b, footer(index))
}
