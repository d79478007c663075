package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/base/procstat"
	"packetwalk.dev/internal/model/snapshot"
)

// attachTypes are the places in control groups where a program can change or drop a packet, or the socket that sends it, or change what the
// socket's process is told of a packet. Programs at other places see no packet (device, sysctl), or come too late (sock_release).
var attachTypes = []struct {
	kind ebpf.AttachType
	name string // as bpftool(8) has it
}{
	{ebpf.AttachCGroupInetSockCreate, "sock_create"},
	{ebpf.AttachCGroupInet4Bind, "bind4"}, {ebpf.AttachCGroupInet6Bind, "bind6"},
	{ebpf.AttachCGroupInet4Connect, "connect4"}, {ebpf.AttachCGroupInet6Connect, "connect6"},
	{ebpf.AttachCGroupUDP4Sendmsg, "sendmsg4"}, {ebpf.AttachCGroupUDP6Sendmsg, "sendmsg6"},
	{ebpf.AttachCGroupUDP4Recvmsg, "recvmsg4"}, {ebpf.AttachCGroupUDP6Recvmsg, "recvmsg6"},
	{ebpf.AttachCgroupInet4GetPeername, "getpeername4"}, {ebpf.AttachCgroupInet6GetPeername, "getpeername6"},
	{ebpf.AttachCgroupInet4GetSockname, "getsockname4"}, {ebpf.AttachCgroupInet6GetSockname, "getsockname6"},
	{ebpf.AttachCGroupSockOps, "sock_ops"},
	{ebpf.AttachCGroupInetEgress, "egress"}, {ebpf.AttachCGroupInetIngress, "ingress"},
	{ebpf.AttachLSMCgroup, "lsm_cgroup"}, // at all hooks of LSM
}

// inFirstCgroupNamespace calls do where paths of control groups begin at the machine's root: a container may have a root for itself.
func inFirstCgroupNamespace(do func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks it: the thread ends with the goroutine
		err := enterFirstCgroupNamespace()
		if err == nil {
			err = do()
		}
		result <- err
	}()
	return <-result
}

// enterFirstCgroupNamespace moves the calling thread. Without the right to do so it stays: groups outside of its own root cannot be opened
// then, and programs there count as not read.
func enterFirstCgroupNamespace() error {
	const first = "/proc/1/ns/cgroup"
	fd, err := unix.Open(first, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return &os.PathError{Op: "open", Path: first, Err: err}
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWCGROUP); err != nil && !errors.Is(err, unix.EPERM) {
		return os.NewSyscallError("setns", err)
	}
	return nil
}

// maxCgroupFile is more than /proc/PID/cgroup has, in bytes: 16 hierarchies with paths of PATH_MAX.
const maxCgroupFile = 1 << 17

// anyNamespace stands for the inode number of a network namespace that may not be read. It may be any.
const anyNamespace = 0

// processGroups finds the control groups of version 2 of all processes, by the inode numbers of their network namespaces. They are empty on
// a machine where that version was never mounted: it has no programs in control groups.
func processGroups() (map[uint64][]string, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	groups := map[uint64]map[string]bool{}
	for _, dir := range dirs {
		var st unix.Stat_t
		text, err := limitio.ReadFile(dir+"/cgroup", maxCgroupFile)
		if err != nil && !procstat.Ended(err) {
			return nil, fmt.Errorf("read the control groups of processes: %w", err)
		}
		unread := unix.Stat(dir+"/ns/net", &st)
		if err != nil || procstat.Ended(unread) {
			continue
		}
		if unread != nil {
			st.Ino = anyNamespace
		}
		if group, ok := unified(string(text)); ok {
			if groups[st.Ino] == nil {
				groups[st.Ino] = map[string]bool{}
			}
			groups[st.Ino][group] = true
		}
	}
	sorted := map[uint64][]string{}
	for ns, all := range groups {
		sorted[ns] = slices.Sorted(maps.Keys(all))
	}
	return sorted, nil
}

// unified finds the group of version 2 in /proc/PID/cgroup (cgroups(7)). One above the root of the namespace counts as the root: what
// applies above applies there, too.
func unified(text string) (group string, ok bool) {
	for line := range strings.Lines(text) {
		if group, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			if strings.Trim(group, "/.") == "" {
				group = "/"
			}
			return strings.TrimSuffix(group, " (deleted)"), true
		}
	}
	return "", false
}

// groupPrograms lists the programs that apply to control groups, and those that apply to others, which may have processes of the namespace,
// too. Without groups it lists those that apply to every process of the machine. services says that the groups are those of a machine's
// services.
func groupPrograms(groups, others []string, services bool) ([]snapshot.Program, error) {
	visible, err := cgroupsMounted()
	if err != nil || !visible {
		return nil, err
	}
	root, err := mountGroups()
	if err != nil {
		return nil, fmt.Errorf("mount control groups: %w", err)
	}
	defer unix.Close(root)
	if len(groups) == 0 {
		groups = []string{"/"}
	}
	r := reader{root: root, programs: map[groupHook][]ebpf.ProgramID{}}
	count := map[snapshot.Program]int{}
	var all []snapshot.Program
	exist := 0
	for i, group := range slices.Concat(groups, others) {
		found, err := r.effective(group)
		if errors.Is(err, unix.ENOENT) {
			continue // it was removed
		}
		if err != nil {
			return nil, fmt.Errorf("programs of control group %s: %w", group, err)
		}
		sure := 0
		if i < len(groups) {
			sure = 1
		}
		exist += sure
		for _, p := range found {
			if _, known := count[p]; !known {
				all = append(all, p)
			}
			count[p] += sure
		}
	}
	for i := range all {
		all[i].Some = services && count[all[i]] < exist
		all[i].Name = nameOf(ebpf.ProgramID(all[i].ID))
	}
	return all, nil
}

// cgroupsMounted reports whether version 2 was ever mounted. Before that it has no programs, and mounting it would show in every process's
// /proc/PID/cgroup.
func cgroupsMounted() (bool, error) {
	text, err := limitio.ReadFile("/proc/thread-self/cgroup", maxCgroupFile)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // a kernel without control groups
	}
	_, ok := unified(string(text))
	return ok, err
}

// mountGroups mounts control groups at no directory, for this process alone, so that no path of a container is followed.
func mountGroups() (fd int, err error) {
	context, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return 0, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return 0, os.NewSyscallError("fsconfig", err)
	}
	fd, err = unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	return fd, os.NewSyscallError("fsmount", err)
}

// groupHook names a hook of a control group.
type groupHook struct {
	group string
	kind  ebpf.AttachType
}

// reader queries the groups of one mount. programs holds what attachedTo has asked for.
type reader struct {
	root     int
	programs map[groupHook][]ebpf.ProgramID
}

// effective lists the programs that apply to a group, each with the group that it is attached to: "" if that is above the root of the
// mount.
func (r *reader) effective(group string) (all []snapshot.Program, err error) {
	fd, err := r.open(group)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	for _, t := range attachTypes {
		ids, err := query(fd, t.kind, queryEffective)
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			// The kernel lists programs of LSM that are attached to a group itself only with their flags, for which package link does not ask.
			at, err := r.attachedTo(group, t.kind, id, t.kind == ebpf.AttachLSMCgroup)
			if err != nil {
				return nil, err
			}
			p := snapshot.Program{Attach: t.name, ID: uint32(id), Group: at}
			if t.kind == ebpf.AttachLSMCgroup {
				if p.Hook = hookOf(id); !getsSockets(p.Hook) {
					continue
				}
			}
			all = append(all, p)
		}
	}
	return all, nil
}

// attachedTo finds the group to which a program is attached: one itself, or one above it. With effective it returns the uppermost group to
// which the program applies.
func (r *reader) attachedTo(group string, kind ebpf.AttachType, id ebpf.ProgramID, effective bool) (string, error) {
	for last := ""; ; group = path.Dir(group) {
		ids, err := r.list(groupHook{group, kind}, effective)
		switch has := slices.Contains(ids, id); {
		case err != nil:
			return "", err
		case has && !effective:
			return group, nil
		case !has && effective:
			return last, nil
		case group == "/" && has:
			return group, nil
		case group == "/":
			return "", nil
		}
		last = group
	}
}

// list lists the programs at a hook of a group: those that apply to it, or those that are attached to it itself.
func (r *reader) list(at groupHook, effective bool) ([]ebpf.ProgramID, error) {
	if ids, ok := r.programs[at]; ok {
		return ids, nil
	}
	fd, err := r.open(at.group)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var flags uint32
	if effective {
		flags = queryEffective
	}
	ids, err := query(fd, at.kind, flags)
	if err == nil {
		r.programs[at] = ids
	}
	return ids, err
}

func (r *reader) open(group string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(r.root, "."+group, &how)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: group, Err: err}
	}
	return fd, nil
}
