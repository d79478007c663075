package images

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/limitio"
)

// Load takes the images of an archive that docker save, podman save, buildx or skopeo made (also compressed by gzip or zstd), or of an OCI
// image layout's directory, into the store, those for this machine's platform. Digests are checked. An image whose archive says no name,
// and is its only one, is named after the file. A name that another image has goes over to the new one.
func (s *Store) Load(ctx context.Context, path string) ([]Image, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	st, err := s.newStage(ctx, "load-"+strconv.FormatUint(rand.Uint64(), 36))
	if err != nil {
		return nil, err
	}
	l := &loader{store: s, stage: st, left: s.most.archive, limit: s.most.archive, manifests: s.most.manifests}
	images, err := l.load(ctx, path, info)
	for _, i := range images {
		err = errors.Join(err, checkFree(i.Annotations[refName]))
	}
	if err == nil {
		images, err = l.commit(ctx, images)
	}
	if err := errors.Join(err, st.close()); err != nil {
		return nil, fmt.Errorf("load %s: %w", path, s.explain(err))
	}
	var list []Image
	for _, i := range images {
		list = append(list, s.image(i.entry, i.contents))
	}
	return list, nil
}

// A loader takes images of one archive or directory to a stage.
type loader struct {
	store     *Store
	stage     *stage
	files     files
	manifests int   // that may still be read
	limit     int64 // bytes that may still come

	mu    sync.Mutex // of what layers change that come at the same time
	left  int64      // of limit
	room  int64      // bytes that may come before the store is measured again
	fresh int        // files
}

// files are an archive or a directory, or a registry's.
type files interface {
	// get has a file's content in the stage, under its digest. The error has fs.ErrNotExist in its chain where there is none.
	get(ctx context.Context, name string) (blob, error)
	// blob is get for what a descriptor says.
	blob(ctx context.Context, d entry) (blob, error)
}

// A blob is a file of the stage; its name is its digest's digits.
type blob struct {
	digest v1.Hash
	size   int64 // bytes
}

// loadedImage is an image whose blobs are in the stage.
type loadedImage struct {
	entry
	contents
}

func (l *loader) load(ctx context.Context, path string, info fs.FileInfo) ([]loadedImage, error) {
	if info.IsDir() {
		root, err := os.OpenRoot(path)
		if err != nil {
			return nil, err
		}
		defer root.Close()
		l.files = &directory{l, root}
	} else {
		a, err := l.readArchive(ctx, path)
		if err != nil {
			return nil, err
		}
		l.files = a
	}
	images, err := l.images(ctx)
	if err != nil {
		return nil, err
	}
	if len(images) == 1 && images[0].Annotations[refName] == "" && (info.IsDir() || info.Mode().IsRegular()) {
		if named := fileName(path, images[0].tag); named != "" {
			images[0].Annotations[refName] = named
		}
	}
	var list []loadedImage
	for _, i := range images {
		list = append(list, i.loadedImage)
	}
	return list, nil
}

// fileName returns a name for an image whose archive says none, and perhaps a tag; "" where a file's name cannot be an image's.
func fileName(file, tag string) string {
	abs, err := filepath.Abs(file)
	if err != nil {
		return ""
	}
	base := strings.ToLower(filepath.Base(abs))
	for _, end := range []string{".gz", ".zst", ".tgz", ".tar", ".oci"} {
		base = strings.TrimSuffix(base, end)
	}
	n, err := normalize(base + ":" + cmp.Or(tag, "latest"))
	if err != nil {
		return ""
	}
	return n
}

// commit moves what was loaded to the store, all at once.
func (l *loader) commit(ctx context.Context, images []loadedImage) ([]loadedImage, error) {
	s := l.store
	if err := l.stage.sync(); err != nil {
		return nil, err
	}
	return images, s.change(ctx, func(i *index) (bool, error) {
		if err := s.checkRoom(0); err != nil {
			return false, err
		}
		for _, img := range images {
			for _, h := range img.blobs() {
				err := s.root.Rename(l.stage.name+"/"+h.Hex, blobPath(h)) // also over one that is there, which may be damaged
				if errors.Is(err, fs.ErrNotExist) {
					_, err = s.root.Lstat(blobPath(h)) // two of the images have it
				}
				if err != nil {
					return false, err
				}
			}
			i.Manifests = slices.DeleteFunc(i.Manifests, func(d entry) bool {
				n := d.Annotations[refName]
				return n == img.Annotations[refName] && (n != "" || d.Digest == img.Digest)
			})
			i.Manifests = append(i.Manifests, img.entry)
		}
		return true, nil
	})
}

// blobs returns all that an image consists of, and the index that it was chosen from.
func (i loadedImage) blobs() []v1.Hash {
	list := []v1.Hash{i.Digest, i.manifest.Config.Digest}
	if from, ok := indexOf(i.entry); ok {
		list = append(list, from)
	}
	for _, d := range i.manifest.Layers {
		list = append(list, d.Digest)
	}
	return list
}

// spill writes a file of the stage.
func (l *loader) spill(r io.Reader) (blob, error) {
	l.mu.Lock()
	l.fresh++
	fresh := fmt.Sprintf("fresh-%d", l.fresh)
	l.mu.Unlock()
	f, err := l.stage.root.Create(fresh)
	if err != nil {
		return blob{}, err
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h, &l.store.came), &rationedReader{l, r})
	if err = errors.Join(err, f.Close()); err != nil {
		return blob{}, err
	}
	b := blob{v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}, n}
	return b, l.stage.root.Rename(fresh, b.digest.Hex)
}

// rationedReader reads as much as the loader may still take, of all files that come at the same time, and as the store has room for.
type rationedReader struct {
	l *loader
	r io.Reader
}

func (r *rationedReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	if r.l.room -= int64(n); r.l.room < 0 {
		if err := r.l.store.checkRoom(int64(n)); err != nil {
			return 0, err
		}
		r.l.room = measureEvery
	}
	if r.l.left -= int64(n); r.l.left < 0 {
		return 0, &limitio.TooLongError{Limit: r.l.limit}
	}
	return n, err
}

// content reads a file of the stage that is kept in memory.
func (l *loader) content(b blob) ([]byte, error) {
	f, err := l.stage.root.Open(b.digest.Hex)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return limitio.Read(f, l.store.most.json)
}

// An archive is a tar file that was read to its end.
type archive struct {
	blobs map[string]blob   // by name
	links map[string]string // names of others
}

var errNoArchive = errors.New("not an image archive; give one that docker save or skopeo made")

// readArchive takes all files of an archive to the stage. It reads it once, from the begin to the end, so that it may be a pipe.
func (l *loader) readArchive(ctx context.Context, name string) (*archive, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })() // a pipe's writer may never come
	plain, err := uncompressed(&guardedReader{ctx: ctx, r: f, limit: 2 * l.left})
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	a := &archive{map[string]blob{}, map[string]string{}}
	all := &guardedReader{ctx: ctx, r: plain, limit: 2 * l.left}
	entries := 0
	for r := tar.NewReader(all); ; entries++ {
		h, err := r.Next()
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, io.EOF) && entries > 0:
			_, err := io.Copy(io.Discard, all) // so that who writes to a pipe is not stopped, and a sum at the end is checked
			return a, cutOff(err)
		case errors.Is(err, io.EOF), entries == 0 && (errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF)):
			return nil, errNoArchive
		case err != nil:
			return nil, cutOff(err)
		case entries == l.store.most.entries:
			return nil, fmt.Errorf("it has more than %d entries, which is the most that is read", entries)
		}
		if err := a.add(l, h, r); err != nil {
			return nil, cutOff(err)
		}
	}
}

// cutOff says what an unexpected end means.
func cutOff(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("it ends in the middle (%w): it was not written or copied whole", err)
	}
	return err
}

func (a *archive) add(l *loader, h *tar.Header, content io.Reader) error {
	name := path.Clean(h.Name)
	switch h.Typeflag {
	case tar.TypeReg:
		b, err := l.spill(content)
		if err != nil {
			return err
		}
		delete(a.links, name)
		a.blobs[name] = b
	case tar.TypeSymlink: // layers that several images have, in older archives of docker's
		a.links[name] = path.Join(path.Dir(name), h.Linkname)
	case tar.TypeLink:
		a.links[name] = path.Clean(h.Linkname)
	}
	return nil
}

func (a *archive) blob(ctx context.Context, d entry) (blob, error) {
	return a.get(ctx, blobPath(d.Digest))
}

func (a *archive) get(_ context.Context, name string) (blob, error) {
	name = path.Clean(name)
	for range 8 {
		next, ok := a.links[name]
		if !ok {
			break
		}
		name = next
	}
	b, ok := a.blobs[name]
	if !ok {
		return blob{}, fmt.Errorf("it has no file %q: %w", name, fs.ErrNotExist)
	}
	return b, nil
}

// A directory is a layout on the disk. Links in it lead nowhere else.
type directory struct {
	*loader
	root *os.Root
}

func (d *directory) blob(ctx context.Context, e entry) (blob, error) {
	return d.get(ctx, blobPath(e.Digest))
}

func (d *directory) get(ctx context.Context, name string) (blob, error) {
	f, err := d.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return blob{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return blob{}, err
	}
	if !info.Mode().IsRegular() {
		return blob{}, fmt.Errorf("%s is no file", name)
	}
	return d.spill(&guardedReader{ctx: ctx, r: f, limit: math.MaxInt64}) // spill has the limit
}

// guardedReader reads until the context ends or there is more than expected.
type guardedReader struct {
	ctx   context.Context
	r     io.Reader
	limit int64 // bytes
	read  int64
}

func (g *guardedReader) Read(p []byte) (int, error) {
	if err := g.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := g.r.Read(p)
	if g.read += int64(n); g.read > g.limit {
		return 0, &limitio.TooLongError{Limit: g.limit}
	}
	return n, err
}

// kinds are what files begin with.
const (
	gzipMagic = "\x1f\x8b"
	zstdMagic = "\x28\xb5\x2f\xfd"
)

// uncompressed reads what may be compressed by gzip or zstd.
func uncompressed(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	head, err := b.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte(gzipMagic)):
		return gzip.NewReader(b)
	case bytes.HasPrefix(head, []byte(zstdMagic)):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	case bytes.HasPrefix(head, []byte("\xfd7zXZ")), bytes.HasPrefix(head, []byte("BZh")):
		return nil, errors.New("it is compressed by xz or bzip2, which is not read: unpack it first (unxz, bunzip2)")
	}
	return io.NopCloser(b), nil
}
