package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/filelock"
	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/base/pause"
)

const (
	lockFile   = "lock"
	indexFile  = "index.json"
	layoutFile = "oci-layout"
	blobsDir   = "blobs/sha256"
	tmpDir     = "tmp"
)

// layoutVersion is what a layout says of itself (OCI image specification, image-layout.md).
const layoutVersion = `{"imageLayoutVersion":"1.0.0"}`

// The annotations of an entry of the index.
const (
	refName   = "org.opencontainers.image.ref.name" // OCI image specification, annotations.md; normalized
	fromIndex = "dev.packetwalk.index"              // the digest of the index that the image was chosen from
)

// longestLock is how long the lock of the store is waited for.
const longestLock = 5 * time.Minute

const stageRetry = 50 * time.Millisecond

type (
	entry = v1.Descriptor
	index struct{ v1.IndexManifest }
)

// contents are what a manifest and its configuration say.
type contents struct {
	manifest *v1.Manifest
	config   *v1.ConfigFile
}

// indexOf returns the index for several platforms that an image was chosen from.
func indexOf(d entry) (v1.Hash, bool) {
	h, err := v1.NewHash(d.Annotations[fromIndex])
	return h, err == nil
}

func blobPath(h v1.Hash) string { return blobsDir + "/" + h.Hex }

// read gives what the store has of an image.
func (s *Store) read(d entry) (contents, error) {
	c := contents{new(v1.Manifest), new(v1.ConfigFile)}
	if err := s.readJSON(blobPath(d.Digest), c.manifest); err != nil {
		return c, s.damaged(err)
	}
	if err := s.readJSON(blobPath(c.manifest.Config.Digest), c.config); err != nil {
		return c, s.damaged(err)
	}
	if len(c.manifest.Layers) != len(c.config.RootFS.DiffIDs) {
		return c, s.damaged(fmt.Errorf("manifest %s does not fit its configuration", d.Digest))
	}
	return c, nil
}

func (s *Store) readJSON(name string, v any) error {
	f, err := s.root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := limitio.Read(f, s.most.json)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// damaged returns the error of a store that is not as we leave it, or in which another process removes an image just now.
func (s *Store) damaged(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w (its image was removed: %w)", err, ErrNotFound)
	}
	return fmt.Errorf("image store: %w; if this stays so, load the image again, or remove %s", err, s.dir)
}

// cachedIndex is the index as it was read last, and the file that it was, which another replaces when it changes.
type cachedIndex struct {
	file  fs.FileInfo
	index v1.IndexManifest
}

// readIndex gives the index, which the caller may change.
func (s *Store) readIndex() (*index, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	file, err := s.root.Stat(indexFile)
	if errors.Is(err, fs.ErrNotExist) {
		return &index{v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}}, nil
	}
	if was := s.known.file; err == nil && (was == nil || !os.SameFile(was, file) || !was.ModTime().Equal(file.ModTime())) {
		s.known = cachedIndex{}
		if err = s.readJSON(indexFile, &s.known.index); err == nil {
			s.known.file = file // or one before that was read: then the next look finds another
		}
	}
	if err != nil {
		return nil, s.damaged(err)
	}
	i := &index{s.known.index}
	i.Manifests = slices.Clone(i.Manifests)
	return i, nil
}

// change changes the index under the lock, and removes what no image has then. f reports whether it changed anything.
func (s *Store) change(ctx context.Context, f func(*index) (bool, error)) error {
	err := s.locked(ctx, func() error {
		i, err := s.readIndex()
		if err != nil {
			return err
		}
		changed, err := f(i)
		if err != nil {
			return err
		}
		if changed {
			if err := s.writeIndex(i); err != nil {
				return err
			}
		}
		return s.collect(i)
	})
	if err != nil {
		return err
	}
	return s.sweep(ctx)
}

func (s *Store) writeIndex(i *index) error {
	text, err := json.MarshalIndent(i.IndexManifest, "", "  ")
	if err != nil {
		return err
	}
	if int64(len(text)) > s.most.json {
		return fmt.Errorf("its index would have more than %d bytes: remove images first ('packetwalk image rm')", s.most.json)
	}
	if err := atomicfile.WriteIn(s.root, layoutFile, []byte(layoutVersion), 0o600); err != nil {
		return err
	}
	return atomicfile.WriteIn(s.root, indexFile, text, 0o600)
}

// collect removes blobs that no image has. The blobs of a damaged image are unknown: while there is one, nothing is removed.
func (s *Store) collect(i *index) error {
	used, whole := s.used(i)
	if !whole {
		return nil
	}
	blobs, err := s.names(blobsDir)
	if err != nil {
		return err
	}
	for _, b := range blobs {
		if used[b] {
			continue
		}
		if err := s.root.Remove(blobsDir + "/" + b); err != nil {
			return err
		}
	}
	return nil
}

// used returns the names of the blobs that images have; whole is false where an image is damaged.
func (s *Store) used(i *index) (used map[string]bool, whole bool) {
	used = map[string]bool{}
	for _, d := range i.Manifests {
		c, err := s.read(d)
		if err != nil {
			return used, false
		}
		if from, ok := indexOf(d); ok {
			used[from.Hex] = true
		}
		used[d.Digest.Hex], used[c.manifest.Config.Digest.Hex] = true, true
		for _, l := range c.manifest.Layers {
			used[l.Digest.Hex] = true
		}
	}
	return used, true
}

func (s *Store) names(dir string) ([]string, error) {
	f, err := s.root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// locked runs f while no other process changes the store.
func (s *Store) locked(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, longestLock, fmt.Errorf("another process has held its lock for %v", longestLock))
	defer cancel()
	file, err := s.root.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := filelock.Take(ctx, file, nil); err != nil {
		return fmt.Errorf("image store %s: %w", s.dir, err)
	}
	return f()
}

// A stage is a directory for what is not whole yet, held by this process; it goes with it, or is swept when that dies.
type stage struct {
	store *Store
	name  string // below the store
	root  *os.Root
	held  *os.File
}

// newStage makes a stage, or waits for the one who has it.
func (s *Store) newStage(ctx context.Context, name string) (*stage, error) {
	for {
		st, err := s.tryStage(ctx, tmpDir+"/"+name)
		if !errors.Is(err, filelock.ErrHeld) {
			return st, err
		}
		if !pause.For(ctx, stageRetry) {
			return nil, context.Cause(ctx)
		}
	}
}

func (s *Store) tryStage(ctx context.Context, name string) (*stage, error) {
	st := &stage{store: s, name: name}
	err := s.locked(ctx, func() error {
		err := s.root.Mkdir(name, 0o700)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if st.held, err = s.root.Open(name); err != nil {
			return err
		}
		if err := filelock.Try(st.held); err != nil {
			st.held.Close()
			return err
		}
		st.root, err = s.root.OpenRoot(name)
		return err
	})
	if err != nil {
		return nil, err
	}
	return st, st.clear() // of who died
}

func (st *stage) clear() error {
	left, err := st.store.names(st.name)
	for _, n := range left {
		err = errors.Join(err, st.root.RemoveAll(n))
	}
	return err
}

// sync writes the stage to the disk, so that a blob in its place is whole after a power cut.
func (st *stage) sync() error {
	if err := unix.Syncfs(int(st.held.Fd())); err != nil {
		return fmt.Errorf("write to the disk: %w", err)
	}
	return nil
}

// close removes the stage. Its place is free only after that, and under the lock, so that no process waits for a missing directory.
func (st *stage) close() error {
	err := st.clear()
	err = errors.Join(err, st.store.locked(context.Background(), func() error { return st.store.root.Remove(st.name) }))
	return errors.Join(err, st.root.Close(), st.held.Close())
}

// sweep removes the stages that no process holds.
func (s *Store) sweep(ctx context.Context) error {
	names, err := s.names(tmpDir)
	for _, n := range names {
		st, e := s.tryStage(ctx, tmpDir+"/"+n)
		switch {
		case errors.Is(e, filelock.ErrHeld):
		case e != nil:
			err = errors.Join(err, e)
		default:
			err = errors.Join(err, st.close())
		}
	}
	return err
}
