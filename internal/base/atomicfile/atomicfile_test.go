package atomicfile_test

import (
	"os"
	"path/filepath"
	"testing"

	"packetwalk.dev/internal/base/atomicfile"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "file")
	if err := os.Symlink(outside, path); err != nil {
		t.Fatal(err)
	}
	for mode, text := range map[os.FileMode]string{0o600: "a long first text", 0o644: "short"} {
		if err := atomicfile.Write(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != mode {
			t.Errorf("mode %v, %v, want %v", info.Mode(), err, mode)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("got %q, %v", got, err)
		}
	}
	if got, _ := os.ReadFile(outside); string(got) != "theirs" {
		t.Errorf("wrote through the link: %q", got)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

// TestFailedWriteKeepsWhatWasThere: a reader that has the file open, or opens it later, sees the old text when the new one cannot take its
// place.
func TestFailedWriteKeepsWhatWasThere(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.MkdirAll(filepath.Join(path, "a-folder-is-there"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(path, []byte("new"), 0o600); err == nil {
		t.Error("replaced a folder")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

// TestWriteIn: a folder that was moved away meanwhile is the one that is written to, and a name leads out of none.
func TestWriteIn(t *testing.T) {
	parent := t.TempDir()
	if err := os.Mkdir(filepath.Join(parent, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.OpenRoot(filepath.Join(parent, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := os.Rename(filepath.Join(parent, "a"), filepath.Join(parent, "b")); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.WriteIn(dir, "file", []byte("text"), 0o640); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(parent, "b", "file")); err != nil || string(got) != "text" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := atomicfile.WriteIn(dir, "../file", nil, 0o600); err == nil {
		t.Error("wrote beside the folder")
	}
}

// TestCreate: what is written bit by bit is there when it is committed, and nothing of it when it is not.
func TestCreate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, commit := range []bool{false, true} {
		f, err := atomicfile.Create(path, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"n", "ew"} {
			if _, err := f.Write([]byte(part)); err != nil {
				t.Fatal(err)
			}
		}
		if got, _ := os.ReadFile(path); string(got) != "old" {
			t.Errorf("before it is committed there is %q", got)
		}
		if commit {
			if err := f.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if entries, _ := os.ReadDir(dir); len(entries) != 1 {
			t.Errorf("left behind: %v", entries)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if got, _ := os.ReadFile(path); string(got) != "new" {
		t.Errorf("there is %q", got)
	}
	if _, err := atomicfile.Create(filepath.Join(dir, "none", "file"), 0o600); err == nil {
		t.Error("made a file where there is no folder")
	}
}
