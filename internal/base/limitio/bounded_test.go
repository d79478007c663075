package limitio

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for size, ok := range map[int]bool{0: true, 9: true, 10: true, 11: false, 5000: false} {
		if err := os.WriteFile(path, []byte(strings.Repeat("x", size)), 0o600); err != nil {
			t.Fatal(err)
		}
		data, err := ReadFile(path, 10)
		var long *TooLongError
		if ok && (err != nil || len(data) != size) || !ok && (!errors.As(err, &long) || data != nil || !strings.Contains(err.Error(), path)) {
			t.Errorf("%d bytes: %d, %v", size, len(data), err)
		}
	}
	// What has no end ends here.
	if _, err := ReadFile("/dev/zero", 64<<20); err == nil || !strings.Contains(err.Error(), "64 MiB") {
		t.Errorf("/dev/zero: %v", err)
	}
}
