package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRaiseInotify(t *testing.T) {
	file := filepath.Join(t.TempDir(), "max_user_instances")
	for _, test := range []struct {
		text, want string
		was        int
	}{{"128\n", "4096", 128}, {"4096\n", "4096\n", 0}, {"100000\n", "100000\n", 0}} {
		if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		was, err := raiseInotify(file)
		if got, _ := os.ReadFile(file); string(got) != test.want || was != test.was || err != nil {
			t.Errorf("of %q: %q, was %d, %v; want %q and %d", test.text, got, was, err, test.want, test.was)
		}
	}
	if _, err := raiseInotify(filepath.Join(file, "x")); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("without the file: %v", err)
	}
}
