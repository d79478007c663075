package layout

import (
	"os"
	"testing"
)

// TestTools checks that a lab's directory leads to the files that its nodes started with last, and to no files before.
func TestTools(t *testing.T) {
	d := Dir(t.TempDir())
	if got := d.Tools(); got != "" {
		t.Errorf("without nodes: %q", got)
	}
	first, second := t.TempDir(), t.TempDir()
	for _, root := range []string{first, first, second} {
		if err := d.SetTools(root); err != nil {
			t.Fatal(err)
		}
		if got := d.Tools(); got != root {
			t.Errorf("%q, want %q", got, root)
		}
	}
	if left, err := os.ReadDir(string(d)); err != nil || len(left) != 1 {
		t.Errorf("the directory has %v, %v", left, err)
	}
}
