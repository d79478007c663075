// Package images stores the machine's container images: it loads them from archives and registries, makes them of programs, and gives
// their manifests and blobs to the lab's registry. Nodes unpack them. Archives are untrusted: nothing is written outside of the store, and
// an image appears in it only when all of its blobs are checked. The package runs no containers and reads no cluster; it must not import
// anything of the project but base.
//
// A store is an OCI image layout:
//
//	lock           held (flock) for each change of what follows; only for moments
//	index.json     the images: their names, and the digests of their manifests
//	blobs/sha256   manifests, configurations and layers, as they came
//	tmp            what is not whole yet: a directory for each task, held (flock) by its process, and removed by the next when that dies
package images

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/sudouser"
)

// An Image describes an image of the store.
type Image struct {
	// Name is normalized, as people write it shortest: "nginx:1.27" for docker.io/library/nginx:1.27, "nginx@sha256:…" where the reference
	// has a digest. It is "" where its archive gave none; such an image goes by its digest.
	Name   string
	Digest string    // of its manifest, "sha256:…"
	Stored time.Time // when it came
	Size   int64     // bytes of its layers, as they came: compressed as a rule
	Config Config
	Layers int
	// Damage says why the image cannot be run, "" where it can: files of the store are missing or have other content. A damaged image has a
	// name and a digest, and nothing else. Loading it again repairs it.
	Damage string
}

// Config is what an image says about its containers (OCI image specification, config.md).
type Config struct {
	Entrypoint, Cmd, Env         []string
	User, WorkingDir, StopSignal string
	Volumes, Ports               []string // sorted; ports as "80/tcp"
}

// ErrNotFound is that an image is not in the store.
var ErrNotFound = errors.New("not loaded")

// limits are the most that is taken, of what archives say.
type limits struct {
	store     int64 // bytes of all images of the machine
	spare     int64 // bytes of the disk that stay free, or a tenth of it
	image     int64 // bytes of an image that is fetched or made
	layers    int   // of an image; more than a mount may have on old kernels
	json      int64 // bytes of a manifest, an index or a configuration
	archive   int64 // bytes of an archive, uncompressed
	entries   int   // of an archive
	manifests int   // that are read of an archive
	images    int   // of an archive, by name
}

var most = limits{
	store: 64 << 30, spare: 1 << 30, image: 16 << 30, layers: 127, json: 4 << 20, archive: 64 << 30, entries: 100_000, manifests: 1000, images: 1000,
}

// A Store is a directory with images. Several processes may use one at the same time.
type Store struct {
	dir  string // absolute
	root *os.Root
	most limits
	came tally

	mu    sync.Mutex
	known cachedIndex
}

// Came returns how many bytes have come since the store was opened, of all images that are loaded or fetched.
func (s *Store) Came() int64 { return s.came.Load() }

// A tally counts what is written to it.
type tally struct{ atomic.Int64 }

func (t *tally) Write(p []byte) (int, error) {
	t.Add(int64(len(p)))
	return len(p), nil
}

// Dir returns where the images of the machine are, for all labs: packetwalk/images in root's cache.
func Dir() (string, error) {
	cache, err := sudouser.CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "packetwalk", "images"), nil
}

// Open opens a store, and makes it where there is none. What processes left there that died is removed.
func Open(dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := MakePrivate(dir); err != nil {
		return nil, fmt.Errorf("make the image store: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the image store: %w", err)
	}
	s := &Store{dir: dir, root: root, most: most}
	if err := s.prepare(); err != nil {
		return nil, fmt.Errorf("image store %s: %w", dir, err)
	}
	return s, nil
}

// MakePrivate makes a directory that only its owner reaches. One of another user is an error: nodes run what is in it.
func MakePrivate(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is of user %d: move it away, or set XDG_CACHE_HOME to a folder of your own", dir, st.Uid)
	}
	return f.Chmod(0o700)
}

// prepare makes the directories, and removes what no image has.
func (s *Store) prepare() error {
	for _, d := range []string{blobsDir, tmpDir} {
		if err := s.root.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	return s.change(context.Background(), func(i *index) (bool, error) { return false, nil })
}

// lookUp gives what the store has of an image.
func (s *Store) lookUp(ref string) (entry, contents, error) {
	i, err := s.readIndex()
	if err != nil {
		return entry{}, contents{}, err
	}
	at, err := i.find(ref)
	if err != nil {
		return entry{}, contents{}, err
	}
	c, err := s.read(i.Manifests[at[0]])
	return i.Manifests[at[0]], c, err
}

// List gives all images, by name.
func (s *Store) List(ctx context.Context) ([]Image, error) {
	var list []Image
	err := s.locked(ctx, func() error {
		i, err := s.readIndex()
		if err != nil {
			return err
		}
		for _, d := range i.Manifests {
			c, err := s.read(d)
			if err != nil {
				list = append(list, Image{Name: d.Annotations[refName], Digest: d.Digest.String(), Damage: err.Error()})
				continue
			}
			list = append(list, s.image(d, c))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b Image) int { return strings.Compare(a.Name+" "+a.Digest, b.Name+" "+b.Digest) })
	return list, nil
}

// Remove takes a name from its image, or all names where ref is a digest ("sha256:" and at least 12 of its digits). What no image has any
// more is deleted. [ErrNotFound] is in the error's chain where there is none.
func (s *Store) Remove(ctx context.Context, ref string) error {
	return s.change(ctx, func(i *index) (bool, error) {
		at, err := i.find(ref)
		if err != nil {
			return false, err
		}
		for _, n := range slices.Backward(at) {
			i.Manifests = slices.Delete(i.Manifests, n, n+1)
		}
		return true, nil
	})
}

// explain says of an error of the disk what to do.
func (s *Store) explain(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w; make room on the disk of %s ('packetwalk image rm' removes images), or set XDG_CACHE_HOME to a folder on another",
			err, s.dir)
	}
	return err
}

// image returns an entry of the index as people get it.
func (s *Store) image(d v1.Descriptor, c contents) Image {
	of := c.config.Config
	img := Image{Name: d.Annotations[refName], Digest: d.Digest.String(), Config: Config{
		Entrypoint: of.Entrypoint, Cmd: of.Cmd, Env: of.Env, User: of.User, WorkingDir: of.WorkingDir, StopSignal: of.StopSignal,
		Volumes: slices.Sorted(maps.Keys(of.Volumes)), Ports: ports(of.ExposedPorts),
	}}
	if info, err := s.root.Stat(blobPath(d.Digest)); err == nil {
		img.Stored = info.ModTime()
	}
	img.Layers = len(c.manifest.Layers)
	for _, l := range c.manifest.Layers {
		img.Size += l.Size
	}
	return img
}

// ports returns those that an image says it serves; one without a protocol is of TCP.
func ports(exposed map[string]struct{}) []string {
	var list []string
	for p := range exposed {
		if !strings.Contains(p, "/") {
			p += "/tcp"
		}
		list = append(list, p)
	}
	slices.Sort(list)
	return slices.Compact(list)
}
