package bpf

import (
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// socketHooks are the beginnings of the names of LSM hooks that get sockets or packets (include/linux/lsm_hook_defs.h). A program at another
// hook, such as systemd's at file_open, gets none.
var socketHooks = []string{"socket_", "sock_", "sk_", "inet_", "xfrm_", "secmark_", "req_classify_flow"}

// getsSockets reports whether programs at an LSM hook may get sockets or packets. One at an unknown hook, "", may.
func getsSockets(hook string) bool {
	for _, prefix := range socketHooks {
		if strings.HasPrefix(hook, prefix) {
			return true
		}
	}
	return hook == ""
}

// hookName returns the name of the LSM hook with a number in the kernel's BTF, "" if it is unknown.
func hookName(id btf.TypeID) string {
	kernel, err := btf.LoadKernelSpec()
	if err != nil || id == 0 {
		return ""
	}
	t, err := kernel.TypeByID(id)
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(t.TypeName(), "bpf_lsm_")
}

// Of struct bpf_prog_info (include/uapi/linux/bpf.h). Before Linux 6.0 it does not have attach_btf_id, which is 0 then.
const (
	attachBTFID     = 224
	programInfoSize = 232
)

// hookOf returns the name of the LSM hook of a program, "" if it is unknown or the program is gone.
func hookOf(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return ""
	}
	defer p.Close()
	const getInfo = 15 // BPF_OBJ_GET_INFO_BY_FD
	var info [programInfoSize]byte
	query := struct {
		fd, size uint32
		info     unsafe.Pointer
	}{uint32(p.FD()), uint32(len(info)), unsafe.Pointer(&info)}
	if _, _, errno := unix.Syscall(unix.SYS_BPF, getInfo, uintptr(unsafe.Pointer(&query)), unsafe.Sizeof(query)); errno != 0 {
		return ""
	}
	return hookName(btf.TypeID(*(*uint32)(unsafe.Pointer(&info[attachBTFID]))))
}
