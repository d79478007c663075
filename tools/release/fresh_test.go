package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestFresh: a release is refused for each of its locks that is old or has no date, and for a runc with known holes.
func TestFresh(t *testing.T) {
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	const recent, old = "# amd64 was locked on 2026-11-20\n", "# arm64 was locked on 2026-10-01\n"
	sound := map[string]string{
		"tools/image/packages.lock": recent, "scripts/base.lock": recent,
		"controlplane/go.mod": "module x\n", "controlplane/containerd/go.mod": "module y\nrequire github.com/opencontainers/runc v1.5.3\n",
	}
	for _, tt := range []struct{ name, file, text, want string }{
		{name: "sound"},
		{"old image", "tools/image/packages.lock", old, `may be 30; run "make image LOCK=update"`},
		{"old nodes of one architecture", "scripts/base.lock", recent + old, `is 61 days old, and may be 30; run "make lock"`},
		{"no date", "scripts/base.lock", "amd64 bash 5\n", "does not say when"},
		{"runc of Debian", "controlplane/containerd/go.mod", "module y\nrequire github.com/opencontainers/runc v1.1.15\n", "CVE-2025-52881"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			for file, text := range sound {
				if file == tt.file {
					text = tt.text
				}
				path := filepath.Join(root, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			err := checkFresh(root, now)
			if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// TestCheckoutFresh: the versions of this checkout have no known holes; its locks have dates.
func TestCheckoutFresh(t *testing.T) {
	if err := checkFresh("../..", time.Time{}); err != nil {
		t.Error(err)
	}
}
