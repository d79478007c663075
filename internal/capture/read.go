package capture

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/sync/errgroup"
)

// File is a capture that is open: of its hosts those are read that are asked for.
type File struct {
	Head
	in     io.ReaderAt
	hosts  map[string]indexHost
	lists  []indexList
	origin Origin
	close  func() error
}

// Open opens a capture file.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	c, err := Read(f, info.Size())
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	c.close = f.Close
	return c, nil
}

// Close closes what Open opened.
func (f *File) Close() error {
	if f.close == nil {
		return nil
	}
	return f.close()
}

// Origin gives the capture's hosts as the texts they are. The file must stay open.
func (f *File) Origin() Origin { return f.origin }

// Read opens a capture of some bytes, which must stay as they are. Its errors are ErrNotCapture, ErrNewer and ErrDamaged, with the reason,
// and those of in. What only a host or a list has is found out when that is read.
func Read(in io.ReaderAt, size int64) (*File, error) {
	return readWithin(in, size, wholeLimits)
}

func readWithin(in io.ReaderAt, size int64, whole limits) (*File, error) {
	stream := bufio.NewReader(io.NewSectionReader(in, 0, size))
	if magic, err := stream.Peek(2); err != nil || !bytes.Equal(magic, []byte{0x1f, 0x8b}) { // RFC 1952
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: it is not compressed with gzip", ErrNotCapture)
	}
	zip, err := gzip.NewReader(stream)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotCapture, err)
	}
	defer zip.Close()
	p := newUnpacker(zip, whole, 0)
	m, err := p.manifest()
	if err != nil {
		return nil, err
	}
	f := &File{Head: Head{Packetwalk: m.Packetwalk, Taken: m.Taken, Redacted: m.Redacted, Tools: m.Tools, Notes: m.Notes}, in: in}
	if m.Version > 1 {
		return f, f.readIndex(size)
	}
	t, err := p.texts(m)
	if err != nil {
		return nil, err
	}
	if err := readToEnd(zip); err != nil {
		return nil, damaged("after the last file", err)
	}
	f.origin = OriginOf(t.hosts, t.lists)
	f.origin.Tools = func() map[string]string { return f.Tools }
	return f, nil
}

// readToEnd reads to the end, which has the checksum of what was compressed.
func readToEnd(zip io.Reader) error {
	n, err := io.Copy(io.Discard, io.LimitReader(zip, 1<<20))
	if err == nil && n == 1<<20 {
		err = errors.New("there is more")
	}
	return err
}

// readIndex finds out what is in a file of version 2, and where.
func (f *File) readIndex(size int64) error {
	foot := make([]byte, min(size, footerSize))
	if _, err := f.in.ReadAt(foot, size-int64(len(foot))); err != nil {
		return err
	}
	at, ok := readFooter(foot)
	if !ok || at.At < 0 || at.Size < 0 || at.Size > size || at.At != size-footerSize-at.Size {
		return damaged("its end", io.ErrUnexpectedEOF)
	}
	var x index
	at.Bytes = min(at.Size*maxRatio, maxIndex)
	err := f.unpack(at, func(p *unpacker) error {
		name, data, err := p.next()
		if err == nil && name != indexFile {
			err = fmt.Errorf("it is called %q", name)
		}
		return cmp.Or(err, json.Unmarshal(data, &x))
	})
	if err != nil {
		return damaged(indexFile, err)
	}
	if err := f.setIndex(&x, at.At); err != nil {
		return damaged(indexFile, err)
	}
	if err := f.unpack(x.Manifest, func(p *unpacker) error { _, err := p.manifest(); return err }); err != nil {
		return damaged(manifestFile, err)
	}
	return nil
}

// setIndex checks an index and stores it. Its members must end at offset end of the file.
func (f *File) setIndex(x *index, end int64) error {
	if len(x.Hosts) > maxHosts {
		return fmt.Errorf("%d hosts are more than a capture may have (%d)", len(x.Hosts), maxHosts)
	}
	f.Tools, f.Notes, f.lists, f.hosts = x.Tools, x.Notes, x.Kubernetes, make(map[string]indexHost, len(x.Hosts))
	f.origin = Origin{Hosts: make(map[string]NetNS, len(x.Hosts)), Fetch: f.fetch, Lists: f.readLists,
		Tools: func() map[string]string { return f.Tools }}
	members := []member{x.Manifest}
	for _, h := range x.Hosts {
		if !HostName(h.Name) {
			return fmt.Errorf("%q is no name of a host", h.Name)
		}
		if _, twice := f.hosts[h.Name]; twice {
			return fmt.Errorf("host %q stands there twice", h.Name)
		}
		f.hosts[h.Name], f.origin.Hosts[h.Name] = h, NetNS{h.Machine, h.NetNS}
		members = append(members, h.member)
	}
	listed := map[string]bool{}
	for _, l := range x.Kubernetes {
		if listed[l.File] || !slices.ContainsFunc(ObjectLists, func(o ObjectList) bool { return o.File == l.File }) {
			return fmt.Errorf("list %q is none, or stands there twice", l.File)
		}
		listed[l.File] = true
		members = append(members, l.member)
	}
	slices.SortFunc(members, func(a, b member) int { return cmp.Compare(a.At, b.At) })
	at := int64(0)
	for _, m := range members {
		if m.At != at || m.Size <= 0 || m.Size > end-at {
			return fmt.Errorf("what should be at byte %d is said to be at %d", at, m.At)
		}
		at += m.Size
	}
	if at != end {
		return fmt.Errorf("nothing listed for byte %d", at)
	}
	return nil
}

// fetch reads a host.
func (f *File) fetch(name string) (*Raw, error) {
	at, ok := f.hosts[name]
	if !ok {
		return nil, fmt.Errorf("host %q: %w", name, fs.ErrNotExist)
	}
	var t texts
	err := f.unpack(at.member, func(p *unpacker) error {
		file, data, err := p.next()
		var h manifestHost
		if err == nil {
			err = json.Unmarshal(data, &h)
		}
		if err != nil || file != hostPath(name, hostFile) || h.Name != name || h.Machine != at.Machine || h.NetNS != at.NetNS {
			return cmp.Or(err, fmt.Errorf("it is another host's"))
		}
		t, err = p.texts(&manifest{Hosts: []manifestHost{h}})
		return err
	})
	if err != nil {
		return nil, damaged("host "+name, err)
	}
	return t.hosts[0], nil
}

// readLists reads the Kubernetes objects.
func (f *File) readLists() (map[string][]byte, error) {
	read := make([]texts, len(f.lists))
	var g errgroup.Group
	for i, l := range f.lists {
		g.Go(func() error {
			err := f.unpack(l.member, func(p *unpacker) error {
				var err error
				read[i], err = p.texts(&manifest{Kubernetes: []manifestEntry{{File: l.File, Bytes: l.Text}}})
				return err
			})
			if err != nil {
				return damaged(listPath(l.File), err)
			}
			return nil
		})
	}
	err := g.Wait()
	lists := map[string][]byte{}
	for _, t := range read {
		maps.Copy(lists, t.lists)
	}
	return lists, err
}

// unpack reads a member, whole.
func (f *File) unpack(m member, read func(*unpacker) error) error {
	if m.Bytes < 0 || m.Size > memberLimits.total || m.Bytes > max(smallMember, m.Size*maxRatio) {
		return fmt.Errorf("%d bytes that become %d are refused", m.Size, m.Bytes)
	}
	packed := make([]byte, m.Size)
	if _, err := f.in.ReadAt(packed, m.At); err != nil {
		return err
	}
	if sum := sha256.Sum256(packed); !bytes.Equal(sum[:], m.SHA256) {
		return errors.New("it was changed; copy it again")
	}
	rest := bytes.NewReader(packed)
	zip, err := gzip.NewReader(rest)
	if err != nil {
		return err
	}
	defer zip.Close()
	zip.Multistream(false)
	text := io.LimitReader(zip, m.Bytes)
	if err := cmp.Or(read(newUnpacker(text, memberLimits, m.Bytes)), readToEnd(text)); err != nil {
		return err
	}
	if n, err := io.CopyN(io.Discard, zip, 1); n > 0 || rest.Len() > 0 || !errors.Is(err, io.EOF) {
		return cmp.Or(err, errors.New("there is more than it is said to have"))
	}
	return nil
}

// unpacker reads the files of a tar one after the other, within bounds. Nothing is ever written by their names.
type unpacker struct {
	pack *tar.Reader
	left int64
	most limits
	sure int64 // how many bytes there are for certain
}

func newUnpacker(r io.Reader, most limits, sure int64) *unpacker {
	return &unpacker{pack: tar.NewReader(r), left: most.total, most: most, sure: max(sure, 1<<16)}
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
	b.Grow(int(min(header.Size, p.sure)))
	if _, err := io.Copy(&b, p.pack); err != nil {
		return header.Name, nil, err
	}
	return header.Name, b.Bytes(), nil
}

// manifest reads the first file and checks that this package can read the rest.
func (p *unpacker) manifest() (*manifest, error) {
	most := p.most.file
	p.most.file = min(most, maxManifest)
	name, data, err := p.next()
	p.most.file = most
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

// texts are what some hosts' tools printed, and lists of objects.
type texts struct {
	hosts []*Raw
	lists map[string][]byte
}

// slotFor is where the text of one file goes, and how long it is.
type slotFor struct {
	bytes int64
	put   func([]byte)
}

// texts reads the files that a manifest promises, each once, and no others.
func (p *unpacker) texts(m *manifest) (texts, error) {
	t := texts{lists: map[string][]byte{}}
	wanted := map[string]slotFor{}
	names := map[string]bool{}
	for _, h := range m.Hosts {
		if !HostName(h.Name) {
			return t, damaged(manifestFile, fmt.Errorf("%q is no name of a host", h.Name))
		}
		if names[h.Name] {
			return t, damaged(manifestFile, fmt.Errorf("host %q stands there twice", h.Name))
		}
		names[h.Name] = true
		raw := &Raw{Name: h.Name, Taken: h.Taken, Kernel: h.Kernel, Machine: h.Machine, NetNS: h.NetNS, Outputs: map[string]Output{}}
		for _, f := range h.Files {
			if !fileName(f.File) {
				return t, damaged(manifestFile, fmt.Errorf("host %q: %q is no name of a file", h.Name, f.File))
			}
			out := Output{Command: f.Command, Error: f.Error, Skipped: f.Skipped}
			raw.Outputs[f.File] = out
			if f.Skipped == "" {
				wanted[hostPath(h.Name, f.File)] = slotFor{f.Bytes, func(data []byte) {
					out.Data = data
					raw.Outputs[f.File] = out
				}}
			}
		}
		t.hosts = append(t.hosts, raw)
	}
	for _, f := range m.Kubernetes {
		if !fileName(f.File) {
			return t, damaged(manifestFile, fmt.Errorf("kubernetes: %q is no name of a file", f.File))
		}
		wanted[listPath(f.File)] = slotFor{f.Bytes, func(data []byte) { t.lists[f.File] = data }}
	}
	return t, p.files(wanted)
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
			return damaged(fmt.Sprintf("%q", name), fmt.Errorf("not listed in %s", manifestFile))
		case slot.bytes != int64(len(data)):
			return damaged(name, fmt.Errorf("%d bytes, but %s lists %d", len(data), manifestFile, slot.bytes))
		}
		slot.put(data)
		delete(wanted, name)
	}
	if len(wanted) > 0 {
		missing := slices.Sorted(maps.Keys(wanted))
		return damaged(missing[0], fmt.Errorf("missing (%d such files); copy the capture again", len(missing)))
	}
	return nil
}
