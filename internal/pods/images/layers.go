package images

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/bounded"
)

const (
	opaqueAttribute = "trusted.overlay.opaque"    // of a directory: "y" where it hides those below (Linux, overlayfs.rst)
	usedAttribute   = "trusted.packetwalk.images" // of a layer: its octets, files and octets of names
)

// A budget is what may still be unpacked of an image.
type budget struct{ bytes, files, names int64 }

func (b *budget) take(more budget) error {
	b.bytes, b.files, b.names = b.bytes-more.bytes, b.files-more.files, b.names-more.names
	switch {
	case b.bytes < 0:
		return errors.New("its files are too large together")
	case b.files < 0:
		return errors.New("it has too many files")
	case b.names < 0:
		return errors.New("its files' names are too long together")
	}
	return nil
}

// unpacked gives the directories of an image's layers, and unpacks those that are not there yet.
func (s *Store) unpacked(ctx context.Context, c contents) ([]string, error) {
	var dirs []string
	ids := c.layerIDs()
	left := budget{s.most.unpacked, s.most.files, s.most.names}
	for n, id := range ids {
		name := layersDir + "/" + id
		l := layer{id: id, lower: ids[:n], diff: c.config.RootFS.DiffIDs[n], blob: c.manifest.Layers[n].Digest}
		there, err := s.exists(name)
		if err == nil && !there {
			err = s.unpack(ctx, l, left)
		}
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", n+1, err)
		}
		used, opaque, err := s.look(name)
		if err != nil {
			return nil, err
		}
		if err := left.take(used); err != nil {
			return nil, fmt.Errorf("layer %d: %w", n+1, s.tooMuch(err))
		}
		if opaque {
			dirs = nil
		}
		dirs = append(dirs, filepath.Join(s.dir, name))
	}
	return dirs, nil
}

func (s *Store) tooMuch(err error) error {
	return fmt.Errorf("%w: the most of an image is %d GiB in %d files, with names of %d MiB", err, s.most.unpacked>>30, s.most.files,
		s.most.names>>20)
}

// look is what a layer's directory says of itself. Overlayfs does not heed that the topmost directory of a layer is opaque.
func (s *Store) look(name string) (used budget, opaque bool, err error) {
	f, err := s.root.Open(name)
	if err != nil {
		return used, false, s.damaged(err)
	}
	defer f.Close()
	var text [64]byte
	n, err := unix.Fgetxattr(int(f.Fd()), usedAttribute, text[:])
	if err != nil {
		return used, false, fmt.Errorf("read attributes of %s: %w", name, err)
	}
	if _, err := fmt.Sscan(string(text[:n]), &used.bytes, &used.files, &used.names); err != nil {
		return used, false, s.damaged(err)
	}
	n, err = unix.Fgetxattr(int(f.Fd()), opaqueAttribute, text[:])
	return used, err == nil && string(text[:n]) == "y", nil
}

// A layer is one that is to be unpacked.
type layer struct {
	id         string
	lower      []string // the layers below, the lowest first
	diff, blob v1.Hash
}

// unpack makes a layer's directory: in a stage, which takes its place when it is whole.
func (s *Store) unpack(ctx context.Context, l layer, left budget) (err error) {
	st, err := s.newStage(ctx, "layer-"+l.id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.close()) }()
	if there, err := s.exists(layersDir + "/" + l.id); there || err != nil {
		return err // who had the stage made it
	}
	u := &unpacker{left: left, buf: make([]byte, 256<<10)}
	defer u.close()
	if err := st.root.Mkdir("files", 0o755); err != nil {
		return err
	}
	if err := st.root.Chmod("files", 0o755); err != nil { // whatever the umask
		return err
	}
	if u.root, err = st.root.Open("files"); err != nil {
		return err
	}
	for _, id := range l.lower {
		f, err := s.root.Open(layersDir + "/" + id)
		if err != nil {
			return s.damaged(err)
		}
		u.lower = append([]*os.File{f}, u.lower...)
	}
	if err := s.unpackInto(ctx, u, l); err != nil {
		return err
	}
	used := budget{left.bytes - u.left.bytes, left.files - u.left.files, left.names - u.left.names}
	if err := errors.Join(markUsed(u.root, used), st.sync()); err != nil {
		return err
	}
	return s.root.Rename(st.name+"/files", layersDir+"/"+l.id)
}

// markUsed notes at a layer's directory what it takes.
func markUsed(dir *os.File, used budget) error {
	text := fmt.Sprint(used.bytes, used.files, used.names)
	if err := unix.Fsetxattr(int(dir.Fd()), usedAttribute, []byte(text), 0); err != nil {
		return fmt.Errorf("write attributes of a layer: %w; the image store's file system must have trusted attributes, and its user be root",
			err)
	}
	return nil
}

// unpackInto unpacks a layer's blob, and checks its digest.
func (s *Store) unpackInto(ctx context.Context, u *unpacker, l layer) error {
	f, err := s.root.Open(blobPath(l.blob))
	if err != nil {
		return s.damaged(err)
	}
	defer f.Close()
	plain, err := uncompressed(&guarded{ctx: ctx, r: f, limit: s.most.archive})
	if err != nil {
		return err
	}
	defer plain.Close()
	h := sha256.New()
	// What is beside the files' contents, headers and padding, is no longer than this.
	all := io.TeeReader(&guarded{ctx: ctx, r: plain, limit: 2*s.most.unpacked + 1<<20}, h)
	if err := u.unpack(tar.NewReader(all)); err != nil {
		var big *bounded.TooLongError
		if errors.As(err, &big) || u.left.bytes < 0 || u.left.files < 0 || u.left.names < 0 {
			return s.tooMuch(err)
		}
		return cutOff(err)
	}
	if _, err := io.Copy(io.Discard, all); err != nil { // what is behind the archive's end counts, too
		return cutOff(err)
	}
	if sum := fmt.Sprintf("sha256:%x", h.Sum(nil)); sum != l.diff.String() {
		return fmt.Errorf("its content is %s, and should be %s: it was damaged, or changed", sum, l.diff)
	}
	return nil
}
