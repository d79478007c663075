package bpf_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/bpf"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/testing/bpftest"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/testing/netnstest"
)

// programs lists the programs of a namespace.
func programs(t *testing.T, ns *netns.Namespace) []snapshot.Program {
	t.Helper()
	all, err := new(bpf.Finder).Programs(ns)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestControlGroups: the programs of a namespace are those that apply to the control groups of its processes, with the groups that have
// them.
func TestControlGroups(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns, other := netnstest.Create(t, t.TempDir()+"/a"), netnstest.Create(t, t.TempDir()+"/b")
	outer, outerPath := bpftest.Group(t, "packetwalk-bpf")
	inner := outer + "/pod"
	if err := unix.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	bpftest.Start(t, ns, inner, "sleep", "600")
	bpftest.Start(t, other, outer, "sleep", "600")
	before := programs(t, ns) // of the whole machine
	want := []snapshot.Program{
		{Attach: "connect4", Name: "above", Group: outerPath,
			ID: bpftest.AttachToGroup(t, outer, "above", ebpf.AttachCGroupInet4Connect, bpftest.Pass())},
		{Attach: "sendmsg6", Name: "own", Group: outerPath + "/pod",
			ID: bpftest.AttachToGroup(t, inner, "own", ebpf.AttachCGroupUDP6Sendmsg, bpftest.Pass())},
		{Attach: "recvmsg4", Name: "received", Group: outerPath + "/pod",
			ID: bpftest.AttachToGroup(t, inner, "received", ebpf.AttachCGroupUDP4Recvmsg, bpftest.Pass())},
		{Attach: "getpeername4", Name: "peer", Group: outerPath + "/pod",
			ID: bpftest.AttachToGroup(t, inner, "peer", ebpf.AttachCgroupInet4GetPeername, bpftest.Pass())},
		{Attach: "getsockname6", Name: "self", Group: outerPath + "/pod",
			ID: bpftest.AttachToGroup(t, inner, "self", ebpf.AttachCgroupInet6GetSockname, bpftest.Pass())},
		{Attach: "egress", Name: "skb", Group: outerPath + "/pod",
			ID: bpftest.AttachToGroup(t, inner, "skb", ebpf.AttachCGroupInetEgress, bpftest.Pass())},
	}
	for name, attach := range map[string]ebpf.AttachType{
		"device": ebpf.AttachCGroupDevice, "sysctl": ebpf.AttachCGroupSysctl,
	} {
		bpftest.AttachToGroup(t, inner, name, attach, bpftest.Pass())
	}
	found := slices.DeleteFunc(programs(t, ns), func(p snapshot.Program) bool { return slices.Contains(before, p) })
	if !slices.Equal(found, want) {
		t.Errorf("found %+v\nwant  %+v", found, want)
	}
	found = slices.DeleteFunc(programs(t, other), func(p snapshot.Program) bool { return slices.Contains(before, p) })
	if !slices.Equal(found, want[:1]) {
		t.Errorf("in the group above: found %+v\nwant %+v", found, want[:1])
	}
}

// TestServices: a program in the group of one of a machine's services applies to some of its processes. That of one of a pod's containers
// may be the sender's.
func TestServices(t *testing.T) {
	kerneltest.NeedRoot(t)
	machine, err := netns.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	for ns, some := range map[*netns.Namespace]bool{machine: true, netnstest.Create(t, t.TempDir()+"/pod"): false} {
		group, _ := bpftest.Group(t, fmt.Sprint("packetwalk-service-", some))
		other, _ := bpftest.Group(t, fmt.Sprint("packetwalk-other-", some))
		bpftest.Start(t, ns, group, "sleep", "600")
		bpftest.Start(t, ns, other, "sleep", "600")
		id := bpftest.AttachToGroup(t, group, "sd_fw_egress", ebpf.AttachCGroupInetEgress, bpftest.Pass())
		found := programs(t, ns)
		i := slices.IndexFunc(found, func(p snapshot.Program) bool { return p.ID == id })
		if i < 0 || found[i].Some != some {
			t.Errorf("want some %v: found %+v", some, found)
		}
	}
}

// TestNamespace: programs of sk_lookup are those of their namespace. Those of which the kernel does not tell the namespace would get into
// the walks of other tests: test/plugin has them.
func TestNamespace(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns, other := netnstest.Create(t, t.TempDir()+"/a"), netnstest.Create(t, t.TempDir()+"/b")
	lookup := snapshot.Program{Attach: "sk_lookup", Name: "lookup", ID: bpftest.AttachToNamespace(t, ns, "lookup", bpftest.Pass())}
	for ns, want := range map[*netns.Namespace]bool{ns: true, other: false} {
		if found := programs(t, ns); slices.Contains(found, lookup) != want {
			t.Errorf("found %+v", found)
		}
	}
}

// TestWithoutRights: programs that a process may not ask for are unknown, and not none.
func TestWithoutRights(t *testing.T) {
	if !kerneltest.WithoutRights(t) {
		return
	}
	if _, err := bpf.AtLink(1, ebpf.AttachTCXIngress, "tcx"); !errors.Is(err, unix.EPERM) {
		t.Errorf("error %v, want EPERM", err)
	}
}

// TestGoneLink: a link that has gone has no programs, and is no reason to know nothing of the others.
func TestGoneLink(t *testing.T) {
	kerneltest.NeedRoot(t)
	for _, side := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress, ebpf.AttachNetkitPrimary, ebpf.AttachNetkitPeer} {
		if found, err := bpf.AtLink(1<<30, side, ""); len(found) > 0 || err != nil {
			t.Errorf("%v: %v, %v", side, found, err)
		}
	}
}

// TestLSM: programs of LSM in control groups are found with their hooks. Those that get no sockets are left out.
func TestLSM(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := netnstest.Create(t, t.TempDir()+"/a")
	outer, path := bpftest.Group(t, "packetwalk-lsm")
	inner := outer + "/pod"
	if err := unix.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	bpftest.Start(t, ns, inner, "sleep", "600")
	before := programs(t, ns)
	want := []snapshot.Program{
		{Attach: "lsm_cgroup", Hook: "socket_bind", Name: "own", Group: path + "/pod",
			ID: bpftest.AttachLSM(t, inner, "own", "socket_bind", bpftest.Pass())},
		{Attach: "lsm_cgroup", Hook: "socket_connect", Name: "above", Group: path,
			ID: bpftest.AttachLSM(t, outer, "above", "socket_connect", bpftest.Pass())},
	}
	bpftest.AttachLSM(t, "", "files", "file_open", bpftest.Return(0))
	found := slices.DeleteFunc(programs(t, ns), func(p snapshot.Program) bool { return slices.Contains(before, p) })
	slices.SortFunc(found, func(a, b snapshot.Program) int { return strings.Compare(a.Hook, b.Hook) })
	if !slices.Equal(found, want) {
		t.Errorf("found %+v\nwant  %+v", found, want)
	}
}
