package bpf

import (
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/bpftest"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestHookName: the kernel's BTF names the hooks, and says where the number of a program's hook is.
func TestHookName(t *testing.T) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		kerneltest.Missing(t, "the kernel's BTF")
	}
	for _, hook := range []string{"socket_connect", "file_open"} {
		var f *btf.Func
		if err := kernel.TypeByName("bpf_lsm_"+hook, &f); err != nil {
			t.Fatal(err)
		}
		id, err := kernel.TypeID(f)
		if err != nil {
			t.Fatal(err)
		}
		if got := hookName(id); got != hook {
			t.Errorf("hook %q, want %q", got, hook)
		}
	}
	var info *btf.Struct
	if err := kernel.TypeByName("bpf_prog_info", &info); err != nil {
		t.Fatal(err)
	}
	for _, m := range info.Members {
		if m.Name == "attach_btf_id" && m.Offset.Bytes() != attachBTFID {
			t.Errorf("attach_btf_id is at %d", m.Offset.Bytes())
		}
	}
	if size := unsafe.Sizeof([programInfoSize]byte{}); size < attachBTFID+4 {
		t.Errorf("size %d", size)
	}
}

// TestGetsSockets: programs at hooks of files are none of a packet's, and those at unknown hooks may be.
func TestGetsSockets(t *testing.T) {
	for hook, want := range map[string]bool{"socket_connect": true, "inet_conn_request": true, "file_open": false, "bprm_check_security": false, "": true} {
		if got := getsSockets(hook); got != want {
			t.Errorf("%q: %v", hook, got)
		}
	}
}

// TestUppermostGroup: a program is found in its group by what is attached there, and by what applies there.
func TestUppermostGroup(t *testing.T) {
	kerneltest.NeedRoot(t)
	const kind = ebpf.AttachCGroupInet4Connect
	outer, path := bpftest.Group(t, "packetwalk-uppermost")
	if err := unix.Mkdir(outer+"/pod", 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := mountGroups()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	for dir, want := range map[string]string{outer: path, outer + "/pod": path + "/pod"} {
		id := ebpf.ProgramID(bpftest.AttachToGroup(t, dir, "p", kind, bpftest.Pass()))
		for _, effective := range []bool{false, true} {
			r := reader{root: root, programs: map[groupHook][]ebpf.ProgramID{}}
			if got, err := r.attachedTo(path+"/pod", kind, id, effective); got != want || err != nil {
				t.Errorf("effective %v: group %q, error %v, want %q", effective, got, err, want)
			}
		}
	}
}
