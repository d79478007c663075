package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestMain is also the other process of tests: it loads an archive, and unpacks what is in it.
func TestMain(m *testing.M) {
	if dir := os.Getenv("IMAGES_TEST_STORE"); dir != "" {
		if err := other(dir, os.Getenv("IMAGES_TEST_ARCHIVE")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func other(dir, archive string) error {
	s, err := Open(dir)
	if err != nil {
		return err
	}
	ctx := context.Background()
	if archive != "" {
		if _, err := s.Load(ctx, archive); err != nil {
			return err
		}
	}
	_, err = s.Image(ctx, "a:1")
	return err
}

func otherProcess(t testing.TB, dir, archive string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "IMAGES_TEST_STORE="+dir, "IMAGES_TEST_ARCHIVE="+archive)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd
}

// large is an image of a layer with so many files, and a small one below it.
func large(t testing.TB, files int) string {
	t.Helper()
	list := make([]file, files)
	for n := range list {
		list[n] = regular(fmt.Sprintf("d%d/f%d", n%100, n), strings.Repeat("text ", 200))
	}
	return saveLayout(t, imageOf(t, nil, tarOf(t, regular("base", "")), tarOf(t, list...)), "a:1")
}

// TestTwoProcesses: processes that load and unpack the same at once all get it, and there is one of it.
func TestTwoProcesses(t *testing.T) {
	kerneltest.NeedRoot(t)
	dir, path := filepath.Join(t.TempDir(), "store"), large(t, 500)
	var all []*exec.Cmd
	for range 4 {
		all = append(all, otherProcess(t, dir, path))
	}
	for _, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	img, err := s.Image(t.Context(), "a:1")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(namesBelow(t, img.Layers[1])); n != 600 {
		t.Errorf("%d files and folders", n)
	}
	list, err := s.List(t.Context())
	layers, err2 := s.names(layersDir)
	blobs, err3 := s.names(blobsDir)
	if err := errors.Join(err, err2, err3); err != nil || len(list) != 1 || len(layers) != 2 || len(blobs) != 4 {
		t.Errorf("%d images, %d layers, %d blobs, %v", len(list), len(layers), len(blobs), err)
	}
	if left := leftovers(t, s); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestKilled: of a process that is killed while it loads or unpacks, at whatever point, nothing is left when the next opens the store,
// and that goes on.
func TestKilled(t *testing.T) {
	kerneltest.NeedRoot(t)
	path := large(t, 2000)
	inMiddle := 0
	for n := range 4 {
		dir := filepath.Join(t.TempDir(), "store")
		s, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		archive := path
		if n%2 == 0 { // it is only to unpack
			mustLoad(t, s, path)
			archive = ""
		}
		cmd := otherProcess(t, dir, archive)
		for begun := time.Now(); len(leftovers(t, s)) == 0 && time.Since(begun) < time.Minute; { // until it is at work
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if len(leftovers(t, s)) > 0 {
			inMiddle++
		}
		if s, err = Open(dir); err != nil {
			t.Fatal(err)
		}
		if left := leftovers(t, s); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		for _, img := range mustLoad(t, s, path) {
			got, err := s.Image(t.Context(), img.Name)
			if err != nil || len(namesBelow(t, got.Layers[1])) != 2100 {
				t.Errorf("%v: %d files", err, len(namesBelow(t, got.Layers[1])))
			}
		}
	}
	if inMiddle == 0 {
		t.Error("no process was killed in the middle")
	}
}

// TestWaiting: who wants a layer that another unpacks waits for it, as long as its context lasts.
func TestWaiting(t *testing.T) {
	s := newStore(t)
	mustLoad(t, s, saveDocker(t, imageOf(t, nil, tarOf(t, regular("f", ""))), "a:1"))
	i, err := s.readIndex()
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.read(i.Manifests[0])
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.newStage(t.Context(), "layer-"+c.layerIDs()[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := s.sweep(t.Context()); err != nil { // which leaves what a living process has
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error)
	go func() {
		_, err := s.Image(ctx, "a:1")
		ended <- err
	}()
	cancel(errors.New("enough"))
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("%v", err)
	}
	if err := st.close(); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if _, err := s.Image(t.Context(), "a:1"); err != nil {
			t.Error(err)
		}
	}
}

// TestFullDisk: the error says what to do, and nothing is left.
func TestFullDisk(t *testing.T) {
	kerneltest.NeedRoot(t)
	path := large(t, 2000) // 2 MB of files, hardly anything compressed
	privately(t, func() {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
		s, err := Open(filepath.Join(dir, "store"))
		if err != nil {
			t.Error(err)
			return
		}
		mustLoad(t, s, path)
		fails := func(err error) {
			if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "make room on the disk of "+dir) {
				t.Errorf("%v", err)
			}
			if left := leftovers(t, s); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		}
		_, err = s.Image(t.Context(), "a:1")
		fails(err)
		if layers, err := s.names(layersDir); len(layers) > 1 || err != nil {
			t.Errorf("layers %v, %v", layers, err)
		}
		too := imageOf(t, nil, random(t, 2<<20))
		_, err = s.Load(t.Context(), saveDocker(t, too, "b:1"))
		fails(err)
		_, err = s.Fetch(t.Context(), "b:1", registered{too})
		fails(err)
		if list, err := s.List(t.Context()); len(list) != 1 || err != nil {
			t.Errorf("%v, %v", list, err)
		}
	})
}

// registered is an image that a registry has.
type registered struct{ v1.Image }

func (r registered) Manifest(context.Context) (Manifest, error) {
	text, err := r.RawManifest()
	return Manifest{Content: text}, err
}

func (r registered) Open(_ context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	if d.MediaType.IsConfig() {
		text, err := r.RawConfigFile()
		return io.NopCloser(bytes.NewReader(text)), err
	}
	l, err := r.LayerByDigest(d.Digest)
	if err != nil {
		return nil, err
	}
	return l.Compressed()
}

// random is a layer that cannot be compressed.
func random(t testing.TB, size int) []byte {
	body := make([]byte, size)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(body)
	return tarOf(t, regular("random", string(body)))
}

// TestMounted: layers that an overlay has, in whatever namespace, and by whatever path, are in use.
func TestMounted(t *testing.T) {
	kerneltest.NeedRoot(t)
	s := newStore(t)
	mustLoad(t, s, saveDocker(t, imageOf(t, nil, tarOf(t, regular("a", "")), tarOf(t, regular("b", ""))), "a:1"))
	mustLoad(t, s, saveDocker(t, imageOf(t, nil, tarOf(t, regular("c", ""))), "b:1"))
	img, err := s.Image(t.Context(), "a:1")
	_, err2 := s.Image(t.Context(), "b:1")
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	privately(t, func() {
		at := t.TempDir()
		if err := os.Chdir(filepath.Dir(img.Layers[0])); err != nil { // of this thread
			t.Error(err)
		}
		options := "lowerdir=" + filepath.Base(img.Layers[1]) + ":" + filepath.Base(img.Layers[0])
		if err := unix.Mount("overlay", at, "overlay", unix.MS_RDONLY, options); err != nil {
			t.Error(err)
			return
		}
		for _, name := range []string{"a:1", "b:1"} {
			if err := s.Remove(t.Context(), name); err != nil {
				t.Error(err)
			}
		}
		if _, err := os.Stat(filepath.Join(at, "a")); err != nil {
			t.Errorf("a container lost a file: %v", err)
		}
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	})
	got, err := s.names(layersDir)
	for n := range got {
		got[n] = filepath.Join(s.dir, layersDir, got[n])
	}
	slices.Sort(got)
	slices.Sort(img.Layers)
	if err != nil || !slices.Equal(got, img.Layers) {
		t.Errorf("%v, %v, want %v", got, err, img.Layers)
	}
	if s, err = Open(s.dir); err != nil {
		t.Fatal(err)
	}
	if got, err := s.names(layersDir); len(got) > 0 || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

// TestOpen: a store is ours alone, and one that is damaged says so.
func TestOpen(t *testing.T) {
	s := newStore(t)
	if err := os.Chmod(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(s.dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(s.dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, indexFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(s.dir); err == nil || !strings.Contains(err.Error(), "remove "+s.dir) {
		t.Errorf("an index that is cut off: %v", err)
	}
	if os.Geteuid() != 0 {
		return
	}
	theirs := t.TempDir()
	if err := os.Chown(theirs, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(theirs); err == nil || !strings.Contains(err.Error(), "is of user 1000") {
		t.Errorf("%v", err)
	}
}
