package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/preflight"
)

// TestProgramRows: doctor names old packages of Debian, and what cannot be read is not taken for sound.
func TestProgramRows(t *testing.T) {
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct{ name, locked, runc, want string }{
		{name: "sound", locked: "2026-11-30\n"},
		{name: "old", locked: "2026-08-01\n", want: "recent packages of Debian: chosen on 2026-08-01"},
		{name: "no day", want: "recent packages of Debian: does not say when"},
		{name: "no date", locked: "soon", want: "recent packages of Debian: cannot parse"},
		{name: "no program", locked: "2026-11-30", runc: "text", want: "no known holes in containerd and runc: read the modules of"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := layout.Binaries{RealNode: t.TempDir(), Base: t.TempDir()}
			for file, text := range map[string]string{filepath.Join(b.Base, "locked"): tt.locked, filepath.Join(b.RealNode, "runc"): tt.runc} {
				if text == "" {
					continue
				}
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			feature, part, _ := strings.Cut(tt.want, ": ")
			for _, r := range programRows(b, now) {
				bad := r.Result != preflight.Works
				if bad != (r.Feature == feature) || bad && (!strings.Contains(r.Cause, part) || r.Remedy == "") {
					t.Errorf("%+v, want %q", r, tt.want)
				}
			}
		})
	}
}
