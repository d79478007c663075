package images

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestAssemble: directories become layers with owners, modes, links and capabilities, always with the same digest.
func TestAssemble(t *testing.T) {
	kerneltest.NeedRoot(t)
	low, high := t.TempDir(), t.TempDir()
	const capability = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" // cap_net_raw=ep (capabilities(7))
	for _, err := range []error{
		os.MkdirAll(filepath.Join(low, "usr/bin"), 0o755), os.Symlink("usr/bin", filepath.Join(low, "bin")),
		os.WriteFile(filepath.Join(low, "usr/bin/su"), []byte("su"), 0o755), os.Chmod(filepath.Join(low, "usr/bin/su"), 0o755|os.ModeSetuid),
		os.WriteFile(filepath.Join(low, "shadow"), nil, 0o640), os.Chown(filepath.Join(low, "shadow"), 0, 42),
		os.WriteFile(filepath.Join(low, "ping"), []byte("ping"), 0o755),
		unix.Setxattr(filepath.Join(low, "ping"), "security.capability", []byte(capability), 0),
		os.Mkdir(filepath.Join(low, "tmp"), 0o755), os.Chmod(filepath.Join(low, "tmp"), 0o777|os.ModeSticky),
		os.WriteFile(filepath.Join(high, "app"), []byte("app"), 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s := newStore(t)
	what := Assembly{Name: "built/in:1", Layers: []Layer{{Dir: low}, {Dir: high}}, Entrypoint: []string{"/app"}, Cmd: []string{"x"},
		Env: []string{"A=1"}, Ports: []int{80}}
	first, err := s.Assemble(t.Context(), what)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(low, "ping"), epoch, epoch); err != nil {
		t.Fatal(err)
	}
	if again, err := s.Assemble(t.Context(), what); err != nil || again.Digest != first.Digest {
		t.Errorf("again: %s, %v; want %s", again.Digest, err, first.Digest)
	}
	got, layers := unpack(t, s, "built/in:1")
	if len(layers) != 2 || got.Config.Cmd[0] != "x" || got.Config.Env[1] != "A=1" || got.Config.Ports[0] != "80/tcp" {
		t.Fatalf("%+v", got)
	}
	at := func(name string) string { return filepath.Join(layers[0], name) }
	var st unix.Stat_t
	if err := unix.Lstat(at("shadow"), &st); err != nil || st.Gid != 42 || st.Mode&0o7777 != 0o640 {
		t.Errorf("shadow: %+v, %v", st, err)
	}
	if info, err := os.Stat(at("bin/su")); err != nil || info.Mode() != 0o755|os.ModeSetuid {
		t.Errorf("su: %v, %v", info, err)
	}
	if info, err := os.Stat(at("tmp")); err != nil || info.Mode().Perm() != 0o777 || info.Mode()&os.ModeSticky == 0 {
		t.Errorf("tmp: %v, %v", info, err)
	}
	value := make([]byte, 64)
	if n, err := unix.Lgetxattr(at("ping"), "security.capability", value); err != nil || string(value[:n]) != capability {
		t.Errorf("the capability of ping: %q, %v", value[:max(n, 0)], err)
	}
	if err := unix.Mkfifo(filepath.Join(high, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Assemble(t.Context(), what); err == nil {
		t.Error("a pipe is taken")
	}
}

// TestAssembleFrom: an image has another's layers below its own, whose files are copies, links and texts.
func TestAssembleFrom(t *testing.T) {
	kerneltest.NeedRoot(t)
	s := newStore(t)
	low, program := t.TempDir(), filepath.Join(t.TempDir(), "program")
	if err := errors.Join(os.Mkdir(filepath.Join(low, "tmp"), 0o755), os.WriteFile(program, []byte("elf"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Assemble(t.Context(), Assembly{Name: "below", Layers: []Layer{{Dir: low}}}); err != nil {
		t.Fatal(err)
	}
	files := []File{{Path: "/.own/program", Source: program}, {Path: "/usr/bin/x", Link: "/.own/program"},
		{Path: "/usr/share/t", Text: "text"}, {Path: "/usr/bin/su", Source: program, Mode: 0o4755}, {Path: "/secret", Text: "s", Mode: 0o600},
		{Path: "/root/", Mode: 0o700}, {Path: "/root/.profile", Text: "p"}}
	what := Assembly{Name: "above", From: "below", Layers: []Layer{{Files: files}}, User: "1234"}
	if _, err := s.Assemble(t.Context(), what); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "below"); err != nil {
		t.Fatal(err)
	}
	got, layers := unpack(t, s, "above")
	if len(layers) != 2 || got.Config.User != "1234" {
		t.Fatalf("%+v", got)
	}
	if _, err := os.Stat(filepath.Join(layers[0], "tmp")); err != nil {
		t.Errorf("the layer below: %v", err)
	}
	own := layers[1]
	for name, mode := range map[string]fs.FileMode{"/.own/program": 0o755, "/usr/share": fs.ModeDir | 0o755, "/usr/share/t": 0o644,
		"/usr/bin/su": fs.ModeSetuid | 0o755, "/secret": 0o600, "/root": fs.ModeDir | 0o700, "/root/.profile": 0o644} {
		if info, err := os.Stat(own + name); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v, want %v", name, info, err, mode)
		}
	}
	link, err1 := os.Readlink(own + "/usr/bin/x")
	text, err2 := os.ReadFile(own + "/usr/share/t")
	if err := errors.Join(err1, err2); err != nil || link != "/.own/program" || string(text) != "text" {
		t.Errorf("%q, %q, %v", link, text, err)
	}
	if _, err := s.Assemble(t.Context(), Assembly{Name: "none", From: "below"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("of an image that is gone: %v", err)
	}
}

// TestOwnNames: what is loaded or built does not take the place of an image of ours.
func TestOwnNames(t *testing.T) {
	kerneltest.NeedRoot(t)
	s := newStore(t)
	const name = "packetwalk.dev/built-in/nginx:1"
	layer := t.TempDir()
	if _, err := s.Assemble(t.Context(), Assembly{Name: name, Layers: []Layer{{Dir: layer}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(t.Context(), s.dir); err == nil || !strings.Contains(err.Error(), "built-in applications") {
		t.Errorf("loaded: %v", err)
	}
	if _, err := s.Build(t.Context(), Recipe{Name: name, Source: os.Args[0]}); err == nil ||
		!strings.Contains(err.Error(), "built-in applications") {
		t.Errorf("built: %v", err)
	}
	if _, err := s.Fetch(t.Context(), name, nil); err == nil || !strings.Contains(err.Error(), "built-in applications") {
		t.Errorf("fetched: %v", err)
	}
}

// TestReleasedName: packetwalk's own image, by a tag or a digest, is no image that Assemble makes, and what only begins as its name is.
func TestReleasedName(t *testing.T) {
	for name, free := range map[string]bool{
		"packetwalk.dev/packetwalk:v1": true, "packetwalk.dev/packetwalk@sha256:" + strings.Repeat("a", 64): true,
		"packetwalk.dev/packetwalk-x:v1": false, "packetwalk.dev/packetwalk/x:v1": false, "packetwalk.dev/distribution:v1": false,
		"packetwalk.dev:443/packetwalk:v1": true, "ghcr.io/packetwalk:v1": true,
	} {
		if err := checkFree(name); (err == nil) != free {
			t.Errorf("%s: %v", name, err)
		}
	}
}
