package tempfile_test

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"packetwalk.dev/internal/base/tempfile"
)

func TestCreate(t *testing.T) {
	dir := t.TempDir()
	f, err := tempfile.Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("text"); err != nil {
		t.Error(err)
	}
	read := make([]byte, 4)
	if _, err := f.ReadAt(read, 0); err != nil || string(read) != "text" {
		t.Errorf("read %q, %v", read, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestExplain(t *testing.T) {
	_, missing := os.Open("/nonexistent/file")
	for name, c := range map[string]struct {
		err  error
		want bool
	}{"full": {syscall.ENOSPC, true}, "missing": {missing, true}, "other": {syscall.EPERM, false}} {
		t.Run(name, func(t *testing.T) {
			if got := strings.Contains(tempfile.Explain(c.err).Error(), "TMPDIR"); got != c.want {
				t.Errorf("remedy: %v", got)
			}
		})
	}
}
