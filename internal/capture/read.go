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

// Read opens a capture of some bytes, which must stay as they are. Its errors are ErrNotCapture, ErrVersion and ErrDamaged, with the reason,
// and those of in. What only a host or a list has is found out when that is read.
func Read(in io.ReaderAt, size int64) (*File, error) {
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
	m, err := newUnpacker(io.LimitReader(zip, 2*maxManifest), 0).manifest()
	if err != nil {
		return nil, err
	}
	f := &File{Head: Head{Packetwalk: m.Packetwalk, Taken: m.Taken, Redacted: m.Redacted}, in: in}
	return f, f.readIndex(size)
}

// readToEnd reads to the end, which has the checksum of what was compressed.
func readToEnd(zip io.Reader) error {
	n, err := io.Copy(io.Discard, io.LimitReader(zip, 1<<20))
	if err == nil && n == 1<<20 {
		err = errors.New("there is more")
	}
	return err
}

// readIndex finds out what is in a file, and where.
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
		if err != nil {
			return err
		}
		// Each host takes one member, so a small file cannot have many.
		return unmarshal(data, 8*min(maxHosts, int(size/minMember))+maxNoteValues, &x)
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
	var raw *Raw
	err := f.unpack(at.member, func(p *unpacker) error {
		file, data, err := p.next()
		var h hostHead
		if err == nil {
			err = unmarshal(data, maxHostValues, &h)
		}
		if err != nil || file != hostPath(name, hostFile) || h.Name != name || h.Machine != at.Machine || h.NetNS != at.NetNS {
			return cmp.Or(err, fmt.Errorf("it is another host's"))
		}
		raw, err = p.host(&h)
		return err
	})
	if err != nil {
		return nil, damaged("host "+name, err)
	}
	return raw, nil
}

// readLists reads the Kubernetes objects.
func (f *File) readLists() (map[string][]byte, error) {
	texts := make([][]byte, len(f.lists))
	var g errgroup.Group
	for i, l := range f.lists {
		g.Go(func() error {
			err := f.unpack(l.member, func(p *unpacker) error {
				return p.files(map[string]fileSlot{listPath(l.File): {l.Text, func(data []byte) { texts[i] = data }}})
			})
			if err != nil {
				return damaged(listPath(l.File), err)
			}
			return nil
		})
	}
	err := g.Wait()
	lists := map[string][]byte{}
	for i, l := range f.lists {
		if texts[i] != nil {
			lists[l.File] = texts[i]
		}
	}
	return lists, err
}

// unpack reads a member, whole.
func (f *File) unpack(m member, read func(*unpacker) error) error {
	if m.Bytes < 0 || m.Size > maxMemberBytes || m.Bytes > max(smallMember, m.Size*maxRatio) {
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
	if err := cmp.Or(read(newUnpacker(text, m.Bytes)), readToEnd(text)); err != nil {
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
	sure int64 // how many bytes there are for certain
}

func newUnpacker(r io.Reader, sure int64) *unpacker {
	return &unpacker{pack: tar.NewReader(r), left: maxMemberBytes, sure: max(sure, 1<<16)}
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
	if header.Size > maxFileBytes || header.Size > p.left {
		return header.Name, nil, fmt.Errorf("%d bytes are more than a capture may have (%d in a file, %d together)", header.Size,
			maxFileBytes, maxMemberBytes)
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
	p.left = maxManifest
	name, data, err := p.next()
	p.left = maxMemberBytes
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
	// What it is, before how another version may have changed the rest.
	var head struct {
		Format  string
		Version int
	}
	if err := json.Unmarshal(data, &head); err != nil || head.Format != formatName {
		return nil, fmt.Errorf("%w: %s is another program's", ErrNotCapture, manifestFile)
	}
	if head.Version < 1 {
		return nil, damaged(manifestFile, fmt.Errorf("there is no version %d", head.Version))
	}
	if head.Version != FormatVersion {
		return nil, fmt.Errorf("%w: version %d, and this packetwalk reads version %d; use the packetwalk that made it, or take it again",
			ErrVersion, head.Version, FormatVersion)
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, damaged(manifestFile, err)
	}
	return &m, nil
}

// host reads the files that a host's head lists.
func (p *unpacker) host(h *hostHead) (*Raw, error) {
	raw := &Raw{Name: h.Name, Taken: h.Taken, Kernel: h.Kernel, Machine: h.Machine, NetNS: h.NetNS, Outputs: map[string]Output{}}
	wanted := map[string]fileSlot{}
	for _, f := range h.Files {
		if !fileName(f.File) {
			return nil, damaged(hostFile, fmt.Errorf("host %q: invalid file name %q", h.Name, f.File))
		}
		out := Output{Command: f.Command, Error: f.Error, Skipped: f.Skipped}
		raw.Outputs[f.File] = out
		if f.Skipped == "" {
			wanted[hostPath(h.Name, f.File)] = fileSlot{f.Bytes, func(data []byte) {
				out.Data = data
				raw.Outputs[f.File] = out
			}}
		}
	}
	return raw, p.files(wanted)
}

// fileSlot is where the text of one file goes, and how long it is.
type fileSlot struct {
	bytes int64
	put   func([]byte)
}

// files reads the listed files, each once, and no others.
func (p *unpacker) files(wanted map[string]fileSlot) error {
	for n := 0; ; n++ {
		name, data, err := p.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && n >= maxFiles {
			err = fmt.Errorf("more than %d files", maxFiles)
		}
		if err != nil {
			return damaged(cmp.Or(name, "tar"), err)
		}
		at, ok := wanted[name]
		switch {
		case !ok:
			return damaged(fmt.Sprintf("%q", name), errors.New("not listed"))
		case at.bytes != int64(len(data)):
			return damaged(name, fmt.Errorf("%d bytes, but %d are listed", len(data), at.bytes))
		}
		at.put(data)
		delete(wanted, name)
	}
	if len(wanted) > 0 {
		missing := slices.Sorted(maps.Keys(wanted))
		return damaged(missing[0], fmt.Errorf("missing (%d such files); copy the capture again", len(missing)))
	}
	return nil
}
