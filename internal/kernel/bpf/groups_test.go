package bpf

import "testing"

// TestUnified: the group of version 2 is found beside those of version 1, and one above the root is the root.
func TestUnified(t *testing.T) {
	for text, want := range map[string]string{
		"4:memory:/a\n0::/kubepods/pod1/c\n": "/kubepods/pod1/c", "0::/\n": "/", "0::/../../..\n": "/", "0::/../b\n": "/../b",
		"0::/gone (deleted)\n": "/gone", "4:memory:/a\n": "", "": "", "0::/with:colon\n": "/with:colon",
	} {
		if group, ok := unified(text); group != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", text, group, ok)
		}
	}
}
