package bpf

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/testing/bpftest"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestRemovedGroup: a group that was removed meanwhile does not make a program of all the others one of some.
func TestRemovedGroup(t *testing.T) {
	kerneltest.NeedRoot(t)
	dir, group := bpftest.Group(t, "packetwalk-removed")
	id := bpftest.AttachToGroup(t, dir, "all", ebpf.AttachCGroupInet4Connect, bpftest.Pass())
	programs, err := groupPrograms([]string{group, group + "/gone"}, nil, true)
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

// TestUnreadProcess: a process whose namespace may not be read may have any. It has not ended.
func TestUnreadProcess(t *testing.T) {
	if !kerneltest.WithoutRights(t) {
		return
	}
	groups, err := processGroups()
	if err != nil || len(groups) != 2 || len(groups[anyNamespace]) == 0 {
		t.Errorf("groups %v, error %v, want those of this process's namespace, and of any", groups, err)
	}
}

// TestOtherGroups: what applies to a process whose namespace is unknown may apply to a pod's, or to some of a machine's services.
func TestOtherGroups(t *testing.T) {
	kerneltest.NeedRoot(t)
	_, group := bpftest.Group(t, "packetwalk-own")
	dir, other := bpftest.Group(t, "packetwalk-other")
	id := bpftest.AttachToGroup(t, dir, "other", ebpf.AttachCGroupInet4Connect, bpftest.Pass())
	for _, services := range []bool{false, true} {
		programs, err := groupPrograms([]string{group}, []string{other, "/"}, services)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(programs, func(p snapshot.Program) bool { return p.ID == id })
		if i < 0 || programs[i].Some != services {
			t.Errorf("services %v: %+v", services, programs)
		}
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
