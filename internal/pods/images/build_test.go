package images

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/testing/kerneltest"
)

// self copies a static program: the test's own.
func self(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// writeDir writes a directory.
func writeDir(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestBuild: the program runs with nothing but its image as root, and the same files make the same image wherever and whenever.
func TestBuild(t *testing.T) {
	kerneltest.NeedRoot(t)
	var first Image
	for n := range 2 {
		s := newStore(t)
		dir := writeDir(t, map[string]string{"index.html": "hello", "sub/run": "x"})
		run := filepath.Join(dir, "sub/run")
		if err := errors.Join(os.Symlink("/etc/shadow", filepath.Join(dir, "link")), os.Chmod(run, 0o700),
			os.Chtimes(run, time.Now(), time.Unix(int64(n)*1e6, 0)), os.Chown(run, n, n)); err != nil {
			t.Fatal(err)
		}
		img, err := s.Build(t.Context(), Recipe{Name: "docker.io/library/app:v1", Source: self(t, "app"), Env: []string{"A=1"}, User: "nobody",
			WorkingDir: "/srv", Add: []Addition{{dir, "/srv/static"}}})
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			first = img
		} else if img.Digest != first.Digest {
			t.Errorf("%s, and %s", img.Digest, first.Digest)
		}
		want := Config{Entrypoint: []string{"/app"}, Env: []string{defaultPath, "A=1"}, User: "nobody", WorkingDir: "/srv"}
		if d := cmp.Diff(want, img.Config); d != "" || img.Name != "app:v1" {
			t.Errorf("%s %s", img.Name, d)
		}
		_, layers := unpack(t, s, "app:v1")
		root := layers[0]
		for name, want := range map[string]string{
			"app": "-rwxr-xr-x 0:0 0", "tmp": "dtrwxrwxrwx 0:0 0", "etc": "drwxr-xr-x 0:0 0", "etc/passwd": "-rw-r--r-- 0:0 0 root:x:0:0:",
			"srv/static": "drwxr-xr-x 0:0 0", "srv/static/index.html": "-rw-r--r-- 0:0 0 hello", "srv/static/sub/run": "-rwxr-xr-x 0:0 0 x",
			"srv/static/link": "Lrwxrwxrwx 0:0 0 /etc/shadow",
		} {
			if got := describe(t, filepath.Join(root, name)); !strings.HasPrefix(got, want) {
				t.Errorf("%s: %.80s, want %s", name, got, want)
			}
		}
		out, err := program.Command{Path: "/app", Args: []string{"-test.list", "^TestBuild$"}, Root: root}.Output(t.Context())
		if err != nil || !strings.HasPrefix(string(out), "TestBuild\n") {
			t.Errorf("%s, %v", out, err)
		}
	}
}

// describe returns a file's mode, owner, time and content as text.
func describe(t testing.TB, path string) string {
	t.Helper()
	info, err := os.Lstat(path)
	var st unix.Stat_t
	if err := errors.Join(err, unix.Lstat(path, &st)); err != nil {
		t.Error(err)
		return ""
	}
	text := fmt.Sprintf("%v %d:%d %d", info.Mode(), st.Uid, st.Gid, st.Mtim.Sec)
	switch {
	case info.Mode().IsRegular():
		body, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		text += " " + string(body)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			t.Error(err)
		}
		text += " " + target
	}
	return text
}

// TestBuildRefuses: what is no static program of this machine, and names that cannot be.
func TestBuildRefuses(t *testing.T) {
	kerneltest.NeedRoot(t)
	foreign := self(t, "foreign")
	f, err := os.OpenFile(foreign, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	machine := binary.LittleEndian.AppendUint16(nil, uint16(elf.EM_68K))
	if _, err := f.WriteAt(machine, 18); err != nil {
		t.Fatal(err)
	}
	good := self(t, "app")
	pipe := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(pipe, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		recipe Recipe
		err    string
	}{
		"missing":    {Recipe{Source: "/nowhere"}, "no such file; give a static program"},
		"script":     {Recipe{Source: filepath.Join(writeDir(t, map[string]string{"s": "#!/bin/sh\n"}), "s")}, "is no program of Linux"},
		"dynamic":    {Recipe{Source: "/bin/ls"}, "is linked dynamically and needs /lib"},
		"foreign":    {Recipe{Source: foreign}, "is for EM_68K; this machine is EM_"},
		"device":     {Recipe{Source: "/dev/null"}, "neither a program nor a folder"},
		"named etc":  {Recipe{Source: self(t, "etc")}, "cannot be called etc"},
		"no name":    {Recipe{Source: good, Name: "A B"}, "no image reference"},
		"digest":     {Recipe{Source: good, Name: "a@sha256:" + strings.Repeat("0", 64)}, "has a digest"},
		"Dockerfile": {Recipe{Source: writeDir(t, map[string]string{"Dockerfile": "FROM x"})}, "docker save NAME | packetwalk image load -"},
		"empty":      {Recipe{Source: t.TempDir()}, "has no Go files"},
		"no main": {Recipe{Source: writeDir(t, map[string]string{"go.mod": "module x\n", "x.go": "package x\n"})},
			"no main packages to build"},
		"no compile": {Recipe{Source: writeDir(t, map[string]string{"go.mod": "module x\n", "x.go": "package main\n"})},
			"function main is undeclared"},
		"add a pipe":  {Recipe{Source: good, Add: []Addition{{pipe, "/x"}}}, "pipe is no file, folder or link"},
		"add nothing": {Recipe{Source: good, Add: []Addition{{"/nowhere", "/x"}}}, "no such file"},
		"whiteout":    {Recipe{Source: good, Add: []Addition{{writeDir(t, map[string]string{".wh.app": ""}), "/"}}}, "begins with .wh."},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			if tt.recipe.Name == "" {
				tt.recipe.Name = "x"
			}
			if _, err := s.Build(t.Context(), tt.recipe); err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v, want %q", err, tt.err)
			}
			nothingIn(t, s)
		})
	}
}

// TestBuildGo: a main package becomes a program called like it, and like its folder where it is in no module.
func TestBuildGo(t *testing.T) {
	kerneltest.NeedRoot(t)
	files := map[string]string{"main.go": "package main\n\nfunc main() { open() }\n", "open.go": "package main\n\nfunc open() {}\n",
		"open_windows.go": "package main\n\nfunc open() {}\n", "open_test.go": "package main\n"}
	alone := writeDir(t, files) // in no module
	files["go.mod"] = "module example.com/shop\n"
	s := newStore(t)
	for dir, want := range map[string]string{writeDir(t, files): "/shop", alone: "/" + filepath.Base(alone)} {
		if _, err := s.Build(t.Context(), Recipe{Name: "shop", Source: dir}); err != nil {
			t.Fatal(err)
		}
		img, layers := unpack(t, s, "shop")
		if !cmp.Equal(img.Config.Entrypoint, []string{want}) {
			t.Fatalf("%+v", img)
		}
		if _, err := (program.Command{Path: want, Root: layers[0]}).Output(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestBuildAs: under sudo the go command runs as the user who called it, with their home and groups, and what it leaves is not followed.
func TestBuildAs(t *testing.T) {
	kerneltest.NeedRoot(t)
	dir := writeDir(t, map[string]string{"go.mod": "module shop\n", "main.go": "package main\n"})
	tools, temporary := t.TempDir(), t.TempDir()
	for d := dir; d != "/tmp" && d != "/"; d = filepath.Dir(d) { // where that user comes
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(tools, 0o755), os.Chmod(temporary, 0o777|fs.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", temporary)
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	t.Setenv("SUDO_UID", "65534")
	t.Setenv("SUDO_GID", "65534")
	t.Setenv("XDG_CACHE_HOME", "/root/.cache")
	s := newStore(t)
	fake := func(script string) error {
		t.Helper()
		if err := os.WriteFile(filepath.Join(tools, "go"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := s.Build(t.Context(), Recipe{Name: "shop", Source: dir})
		return err
	}
	err := fake(`echo "$(id -u):$(id -g):$(id -G) $HOME $USER ${XDG_CACHE_HOME-none} $(pwd) $CGO_ENABLED" >&2; exit 1`)
	if want := fmt.Sprintf("65534:65534:65534 /nonexistent nobody none %s 0", dir); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	for script, want := range map[string]string{
		`ln -s /etc/shadow "$6"shop`:      "escapes",
		`mkfifo "$6"shop`:                 "is no file",
		`mkdir "$6"shop`:                  "is no file",
		`:`:                               "made 0 programs",
		`touch "$6"a "$6"b`:               "made 2 programs",
		`cp /etc/passwd "$6"shop`:         "is no program of Linux",
		`rm -r "$6"; ln -s /etc "${6%/}"`: "no such file",
		`cp /proc/self/exe "$6"shop; :`:   "is linked dynamically",
	} {
		if err := fake(script); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", script, err, want)
		}
	}
	if left, err := os.ReadDir(temporary); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}
