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
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestMain runs the tests, or as the other process of a test loads an archive.
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
	_, err = s.Load(context.Background(), archive)
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

// large returns an image with a small layer, and one of so many bytes above it.
func large(t testing.TB, size int) string {
	t.Helper()
	return saveLayout(t, imageOf(t, nil, tarOf(t, regular("base", "")), random(t, size)), "a:1")
}

// TestTwoProcesses: processes that load the same image at once all get it, and there is one of it.
func TestTwoProcesses(t *testing.T) {
	kerneltest.NeedRoot(t)
	dir, path := filepath.Join(t.TempDir(), "store"), large(t, 1<<20)
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
	if err := s.Save(t.Context(), io.Discard, "a:1"); err != nil { // which checks all digests
		t.Error(err)
	}
	list, err := s.List(t.Context())
	blobs, err2 := s.names(blobsDir)
	if err := errors.Join(err, err2); err != nil || len(list) != 1 || len(blobs) != 4 {
		t.Errorf("%d images, %d blobs, %v", len(list), len(blobs), err)
	}
	if left := leftovers(t, s); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestKilled: a process that is killed while it loads, at whatever point, leaves nothing once the next opens the store, and that one loads.
func TestKilled(t *testing.T) {
	kerneltest.NeedRoot(t)
	path := large(t, 64<<20)
	inMiddle := 0
	for range 4 {
		dir := filepath.Join(t.TempDir(), "store")
		s, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		cmd := otherProcess(t, dir, path)
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
		mustLoad(t, s, path)
		if err := s.Save(t.Context(), io.Discard, "a:1"); err != nil {
			t.Error(err)
		}
	}
	if inMiddle == 0 {
		t.Error("no process was killed in the middle")
	}
}

// TestFullDisk: the error says what to do, and nothing is left.
func TestFullDisk(t *testing.T) {
	kerneltest.NeedRoot(t)
	path := saveDocker(t, sample(t), "a:1")
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
		too := imageOf(t, nil, random(t, 2<<20))
		_, err = s.Load(t.Context(), saveDocker(t, too, "b:1"))
		fails(err)
		_, err = s.Fetch(t.Context(), "b:1", registryImage{too})
		fails(err)
		if list, err := s.List(t.Context()); len(list) != 1 || err != nil {
			t.Errorf("%v, %v", list, err)
		}
	})
}

// TestFetchLimit: an image's layers count together; the store has the first one already.
func TestFetchLimit(t *testing.T) {
	s := newStore(t)
	s.most.image = 20_000
	for _, tt := range []struct {
		name   string
		layers int
		fails  bool
	}{{"one", 1, false}, {"four", 4, true}} {
		var layers [][]byte
		for n := range tt.layers {
			layers = append(layers, tarOf(t, regular(fmt.Sprint(n), ""), regular("f", string(random(t, 8000)))))
		}
		_, err := s.Fetch(t.Context(), tt.name, registryImage{imageOf(t, nil, layers...)})
		if (err != nil) != tt.fails || err != nil && !strings.Contains(err.Error(), "more than 20000 bytes") {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// registryImage is an image that a registry has.
type registryImage struct{ v1.Image }

func (r registryImage) Manifest(context.Context) (Manifest, error) {
	text, err := r.RawManifest()
	return Manifest{Content: text}, err
}

func (r registryImage) Open(_ context.Context, d v1.Descriptor) (io.ReadCloser, error) {
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

// random returns a layer that cannot be compressed.
func random(t testing.TB, size int) []byte {
	body := make([]byte, size)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(body)
	return tarOf(t, regular("random", string(body)))
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
