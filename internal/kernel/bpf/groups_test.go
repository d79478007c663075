package bpf

import (
	"testing"

	"github.com/cilium/ebpf"

	"packetwalk.dev/internal/testing/bpftest"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestRemovedGroup: a group that was removed meanwhile does not make a program of all the others one of some.
func TestRemovedGroup(t *testing.T) {
	kerneltest.NeedRoot(t)
	dir, group := bpftest.Group(t, "packetwalk-removed")
	id := bpftest.AttachToGroup(t, dir, "all", ebpf.AttachCGroupInet4Connect, bpftest.Pass())
	programs, err := groupPrograms([]string{group, group + "/gone"}, true)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, p := range programs {
		if found = found || p.ID == id; p.Some {
			t.Errorf("%s is said to be that of some groups", &p)
		}
	}
	if !found {
		t.Error("the program was not found")
	}
}

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
