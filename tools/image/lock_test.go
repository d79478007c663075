package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestLock: the repository's own lock is read, and written the same; it has each package for both architectures.
func TestLock(t *testing.T) {
	all, err := readLock("packages.lock")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "packages.lock")
	was, err := os.ReadFile("packages.lock")
	if err != nil {
		t.Fatal(err)
	}
	_, day, _ := strings.Cut(string(was), "# locked on ")
	day, _, _ = strings.Cut(day, "\n")
	if err := writeLock(file, all, day); err != nil {
		t.Fatal(err)
	}
	is, _ := os.ReadFile(file)
	if diff := cmp.Diff(string(was), string(is)); diff != "" {
		t.Error(diff)
	}
	archs := map[string]int{}
	for _, l := range all {
		archs[l.image]++
	}
	if archs["amd64"] == 0 || archs["amd64"] != archs["arm64"] || len(archs) != 2 {
		t.Errorf("packages for %v", archs)
	}
}

// TestBadLock: each fault is named with its line and what to do.
func TestBadLock(t *testing.T) {
	for line, want := range map[string]string{
		"amd64 nftables 1.0 amd64 100 " + digest:                           "6 fields, and not 7",
		"amd64 nftables 1.0 amd64 -1 " + digest + " debian/n.deb":          `"-1" is no size`,
		"amd64 nftables 1.0 amd64 99999999999 " + digest + " a":            "is no size of a package",
		"amd64 nftables 1.0 amd64 100 " + digest[2:] + " debian/n.deb":     "is no SHA-256 digest",
		"amd64 nftables 1.0 amd64 100 " + digest + " ../debian/n.deb":      "is no path below a mirror",
		"amd64 nftables 1.0 amd64 100 " + digest + " //evil.example/n.deb": "is no path below a mirror",
	} {
		file := filepath.Join(t.TempDir(), "packages.lock")
		if err := os.WriteFile(file, []byte("# a comment\n"+line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := readLock(file)
		if err == nil || !strings.Contains(err.Error(), file+":2: ") || !strings.Contains(err.Error(), want) ||
			!strings.HasSuffix(err.Error(), "make image LOCK=update writes it anew") {
			t.Errorf("%q: %v, want %q", line, err, want)
		}
	}
}
