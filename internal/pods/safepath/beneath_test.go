package safepath

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWriteFiles shows that a volume's files change all at once, behind one link, and that files no longer requested are removed.
func TestWriteFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "v")
	write := func(files ...File) {
		t.Helper()
		if err := WriteFiles(dir, files, nil); err != nil {
			t.Fatal(err)
		}
	}
	link := func() string { l, _ := os.Readlink(filepath.Join(dir, dataLink)); return l }
	write(File{"a", []byte("1"), 0o600}, File{"sub/b", []byte("2"), 0o644})
	st, err := os.Stat(filepath.Join(dir, "a"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", st, err)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "sub/b")); string(b) != "2" {
		t.Errorf("sub/b is %q", b)
	}
	write(File{"a", []byte("1"), 0o600})
	if _, err := os.Lstat(filepath.Join(dir, "sub")); !os.IsNotExist(err) {
		t.Errorf("sub: %v", err)
	}
	before := link()
	write(File{"a", []byte("1"), 0o600})
	if link() != before {
		t.Error("what is right was written again")
	}
	write(File{"a", []byte("2"), 0o600})
	if _, err := os.Stat(filepath.Join(dir, before)); !os.IsNotExist(err) {
		t.Errorf("old data: %v", err)
	}
	if err := WriteFiles(dir, []File{{"../out", nil, 0o644}}, nil); err == nil {
		t.Error("a file outside of the volume was written")
	}
}

// A container that could write to a volume once has put links there, at everything that is written, replaced or removed: nothing happens
// where they lead.
func TestWriteFilesFollowsNoLink(t *testing.T) {
	dir, machine := t.TempDir(), t.TempDir()
	victim := filepath.Join(machine, "victim")
	if err := os.WriteFile(victim, []byte("of the machine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{
		"a": victim, "sub": machine, "old": machine, "..data": machine, "..data_tmp": machine, "a_tmp": victim,
		"..2026_01_01_00_00_00.x": machine,
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	group := int64(12345)
	for _, text := range []string{"1", "2"} {
		if err := WriteFiles(dir, []File{{"a", []byte(text), 0o644}, {"sub/victim", []byte(text), 0o644}}, &group); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "sub/victim"} {
			if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != text {
				t.Errorf("%s holds %q, %v", name, b, err)
			}
		}
	}
	info, err := os.Stat(victim)
	b, _ := os.ReadFile(victim)
	if err != nil || info.Mode().Perm() != 0o600 || string(b) != "of the machine" || info.Sys().(*syscall.Stat_t).Gid == uint32(group) {
		t.Errorf("the machine's file is %v %q, %v", info, b, err)
	}
	if left, _ := os.ReadDir(machine); len(left) != 1 {
		t.Errorf("the machine has %v", left)
	}
}

func TestOpen(t *testing.T) {
	dir, machine := t.TempDir(), t.TempDir()
	for name, target := range map[string]string{
		"in": "real", "away": machine, "up": "../" + filepath.Base(machine), "magic": "/proc/thread-self/root", "real/back": "../real",
		"real/out": "../in",
	} {
		if err := os.MkdirAll(filepath.Join(dir, "real"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		names []string
		err   error
	}{
		{nil, nil}, {[]string{"."}, nil}, {[]string{"./real"}, nil}, {[]string{"in"}, nil}, {[]string{"real", "."}, nil},
		{[]string{"real/out/back"}, nil},
		{[]string{"real", "back"}, unix.EXDEV}, {[]string{"real", "out"}, unix.EXDEV}, {[]string{"away"}, unix.EXDEV},
		{[]string{"up"}, unix.EXDEV},
		{[]string{".."}, unix.EXDEV}, {[]string{"/"}, unix.EXDEV}, {[]string{"magic"}, unix.EXDEV}, {[]string{"none"}, unix.ENOENT},
		{[]string{"none", "x"}, unix.ENOENT},
	} {
		f, err := Open(dir, tt.names...)
		if !errors.Is(err, tt.err) {
			t.Errorf("%v: %v, want %v", tt.names, err, tt.err)
		}
		if err == nil {
			f.Close()
		}
	}
	for path, want := range map[string]error{
		dir: nil, dir + "/in": nil, dir + "/away": nil, "/proc/thread-self/root": unix.ELOOP, dir + "/magic/etc": unix.ELOOP, "/../..": nil,
	} {
		f, err := InRoot("/", path, unix.O_PATH)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
		if err == nil {
			f.Close()
		}
	}
}
