package bpf

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/snapshot"
)

// Finder finds the programs of namespaces. It looks at the machine's processes and links once. Its zero value is ready.
type Finder struct {
	once    sync.Once
	groups  map[uint64][]string // control groups of the processes in a namespace, by its inode number
	machine []snapshot.Program  // whose namespace the kernel does not tell
	err     error
}

// Programs lists the programs that the kernel may call for a namespace's sockets and packets, other than at links.
func (f *Finder) Programs(ns *netns.Namespace) ([]snapshot.Program, error) {
	var all []snapshot.Program
	err := inFirstCgroupNamespace(func() error {
		f.once.Do(func() {
			f.groups, f.err = processGroups()
			if f.err == nil {
				f.machine, f.err = machinePrograms()
			}
		})
		if f.err != nil {
			return f.err
		}
		own, err := netns.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		defer own.Close()
		all, err = groupPrograms(f.groups[ns.Inode()], f.groups[anyNamespace], ns.Inode() == own.Inode())
		return err
	})
	if err != nil {
		return nil, err
	}
	ids, err := query(ns.FD(), ebpf.AttachSkLookup, 0)
	if err != nil {
		return nil, fmt.Errorf("query sk_lookup of %s: %w", ns.Path(), err)
	}
	for _, id := range ids {
		all = append(all, snapshot.Program{Attach: "sk_lookup", ID: uint32(id), Name: nameOf(id)})
	}
	return slices.Concat(all, f.machine), nil
}

// AtLink lists the programs at a side of a link of this thread's namespace, with name as the place of the side. It lists none if the link is
// gone, or is the end of a netkit pair at which the kernel does not tell them.
func AtLink(index int, side ebpf.AttachType, name string) (all []*snapshot.Program, err error) {
	ids, err := query(index, side, 0)
	isNetkit := side == ebpf.AttachNetkitPrimary || side == ebpf.AttachNetkitPeer
	if errors.Is(err, unix.ENODEV) || isNetkit && errors.Is(err, unix.EACCES) {
		return nil, nil
	}
	for _, id := range ids {
		all = append(all, Program(name, uint32(id)))
	}
	return all, err
}

// Program returns a program by where it is attached and by its ID, with its name.
func Program(attach string, id uint32) *snapshot.Program {
	return &snapshot.Program{Attach: attach, ID: id, Name: nameOf(ebpf.ProgramID(id))}
}

// queryEffective asks for the programs that apply to a control group, those of the groups above it included (BPF_F_QUERY_EFFECTIVE).
const queryEffective = 1

// query lists the programs at a target; none if the kernel does not know the kind of attachment, or has no BPF. A caller without the right
// to ask gets an error.
func query(target int, attach ebpf.AttachType, flags uint32) ([]ebpf.ProgramID, error) {
	for try := 0; ; try++ {
		found, err := link.QueryPrograms(link.QueryOptions{Target: target, Attach: attach, QueryFlags: flags})
		switch {
		case err == nil:
			ids := make([]ebpf.ProgramID, len(found.Programs))
			for i, p := range found.Programs {
				ids[i] = p.ID
			}
			return ids, nil
		case errors.Is(err, unix.ENOSPC) && try < 3: // one was attached between the two calls of QueryPrograms
		case errors.Is(err, ebpf.ErrNotSupported):
			return nil, mayQuery()
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
			return nil, nil
		default:
			return nil, err
		}
	}
}

// mayQuery returns an error if the process has no right to ask for programs: package link calls that "not supported", too.
func mayQuery() error {
	const progQuery = 16           // BPF_PROG_QUERY
	query := [16]uint32{1<<32 - 1} // union bpf_attr, query: no such file descriptor
	_, _, errno := unix.Syscall(unix.SYS_BPF, progQuery, uintptr(unsafe.Pointer(&query)), unsafe.Sizeof(query))
	if errno == unix.EPERM || errno == unix.EACCES {
		return os.NewSyscallError("bpf", errno)
	}
	return nil
}

// nameOf returns the name of a program, or "" if it has none or is gone.
func nameOf(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return ""
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return ""
	}
	return info.Name
}

// netfilterHooks are the names of enum nf_inet_hooks (include/uapi/linux/netfilter.h).
var netfilterHooks = []string{"prerouting", "input", "forward", "output", "postrouting"}

// machinePrograms lists programs of the whole machine, and those of which the kernel does not tell the network namespace: those at LSM's and
// netfilter's hooks, and those of sockets in maps.
func machinePrograms() (all []snapshot.Program, err error) {
	links := link.Iterator{}
	defer links.Close()
	for links.Next() {
		info, err := links.Link.Info()
		if err != nil {
			return nil, fmt.Errorf("read BPF link %d: %w", links.ID, err)
		}
		p := snapshot.Program{ID: uint32(info.Program)}
		switch info.Type {
		case link.NetfilterType:
			at := info.Netfilter()
			p.Attach, p.IPv6 = "netfilter", at.ProtocolFamily == link.NetfilterProtoIPv6
			if int(at.Hook) < len(netfilterHooks) {
				p.Hook = netfilterHooks[at.Hook]
			}
		case link.TracingType:
			at := info.Tracing()
			if ebpf.AttachType(at.AttachType) != ebpf.AttachLSMMac {
				continue
			}
			if p.Attach, p.Hook = "lsm_mac", hookName(at.TargetBtfId); !getsSockets(p.Hook) {
				continue
			}
		default:
			continue
		}
		p.Name = nameOf(info.Program)
		all = append(all, p)
	}
	if err := links.Err(); err != nil && !unsupported(err) {
		return nil, fmt.Errorf("list BPF links: %w", err)
	}
	for id := ebpf.ProgramID(0); ; {
		id, err = ebpf.ProgramGetNextID(id)
		switch {
		case errors.Is(err, os.ErrNotExist), err != nil && unsupported(err):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("list BPF programs: %w", err)
		}
		attach, err := socketMapProgram(id)
		if err != nil {
			return nil, fmt.Errorf("read BPF program %d: %w", id, err)
		}
		if attach != "" {
			all = append(all, snapshot.Program{Attach: attach, ID: uint32(id), Name: nameOf(id)})
		}
	}
}

func unsupported(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, ebpf.ErrNotSupported)
}

// socketMapProgram returns the kind of a program for sockets in maps, or "" for another one, or one that is gone.
func socketMapProgram(id ebpf.ProgramID) (string, error) {
	p, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer p.Close()
	switch p.Type() {
	case ebpf.SkSKB:
		return "sk_skb", nil
	case ebpf.SkMsg:
		return "sk_msg", nil
	}
	return "", nil
}
