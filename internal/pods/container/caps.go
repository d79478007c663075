package container

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// capNames are the capabilities by number; capability(7), include/uapi/linux/capability.h.
var capNames = [...]string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE",
	"NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT",
	"SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE",
	"AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ",
	"PERFMON", "BPF", "CHECKPOINT_RESTORE",
}

// A CapSet is a set of capabilities, bit n for capability number n.
type CapSet uint64

// defaultCaps are what a container has without a word about it: the default set that container engines document, less MKNOD (there is no
// device cgroup here, so a device node would be the machine's disk).
var defaultCaps = mustCaps("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE",
	"NET_RAW", "SYS_CHROOT", "AUDIT_WRITE", "SETFCAP")

// appCaps are what one of a built-in application has: its network is there to be tried out.
var appCaps = defaultCaps | mustCaps("NET_ADMIN")

// labCaps are all that a container can have: what "ALL" and Privileged give. A container has no user namespace, so each other capability of
// capabilities(7) would act on the machine: SYS_ADMIN mounts its file systems and makes what is read-only writable, DAC_READ_SEARCH opens
// its files by handle, MKNOD its disks, SYS_BOOT loads another kernel, SYS_NICE takes its processors with real-time scheduling,
// SYS_RESOURCE takes back that the kernel ends containers first when memory runs out. It is a list of what is allowed, so that a new
// capability of the kernel is not in it.
var labCaps = appCaps | mustCaps("NET_BROADCAST", "IPC_LOCK", "IPC_OWNER")

// quietCaps can be named but are not given. SYS_PTRACE would open the first process, which holds the container's directory, to the
// container. Without it a process can still trace those of its own user, which have no more capabilities than it has; and kubectl debug
// names it for every container that it adds, whether it is used or not.
var quietCaps = mustCaps("SYS_PTRACE")

const allCaps = CapSet(1)<<len(capNames) - 1

// Capabilities is the set that a container of this Spec runs with. Names that are unknown, and added ones that the lab gives to nobody, are
// an error that lists them, with ErrStart in its chain.
func (s *Spec) Capabilities() (CapSet, error) {
	add, errAdd := parseCaps(s.AddCaps)
	drop, errDrop := parseCaps(s.DropCaps)
	if errAdd != nil {
		return 0, fmt.Errorf("%w: capabilities to add: %w", ErrStart, errAdd)
	}
	if errDrop != nil {
		return 0, fmt.Errorf("%w: capabilities to drop: %w", ErrStart, errDrop)
	}
	if refused := add & allCaps &^ (labCaps | quietCaps); refused != 0 {
		return 0, fmt.Errorf("%w: capability %s would act on the whole machine, and the lab does not give it; take it out of capabilities.add",
			ErrStart, refused.names())
	}
	set := defaultCaps
	if s.App != "" {
		set = appCaps
	}
	if s.Privileged || add.has(capAll) {
		set = labCaps
	}
	// Dropping ALL comes before the additions, so that "drop ALL, add NET_RAW" means NET_RAW alone; the Pod Security Standards rely on it.
	if drop.has(capAll) {
		set = 0
	}
	return (set | add&labCaps) &^ (drop & allCaps), nil
}

// capAll stands for "ALL" in a parsed list.
const capAll = 63

func (c CapSet) has(n int) bool { return c&(1<<n) != 0 }

// names lists the set as a manifest does.
func (c CapSet) names() string {
	return strings.ToUpper(strings.ReplaceAll(strings.ReplaceAll(c.String(), "cap_", ""), ",", ", "))
}

// String lists the set as capsh does, lower case with commas.
func (c CapSet) String() string {
	var names []string
	for n, name := range capNames {
		if c.has(n) {
			names = append(names, "cap_"+strings.ToLower(name))
		}
	}
	return strings.Join(names, ",")
}

func parseCaps(names []string) (CapSet, error) {
	var set CapSet
	var unknown []string
	for _, name := range names {
		if n, ok := capNumber(name); ok {
			set |= 1 << n
		} else {
			unknown = append(unknown, name)
		}
	}
	if unknown != nil {
		return 0, fmt.Errorf("unknown capability %s; capability(7) has the names", strings.Join(unknown, ", "))
	}
	return set, nil
}

func capNumber(name string) (int, bool) {
	name = strings.TrimPrefix(strings.ToUpper(name), "CAP_")
	if name == "ALL" {
		return capAll, true
	}
	for n, known := range capNames {
		if name == known {
			return n, true
		}
	}
	return 0, false
}

func mustCaps(names ...string) CapSet {
	set, err := parseCaps(names)
	if err != nil {
		panic(err)
	}
	return set
}

// limitThread takes from the calling thread's bounding, inheritable and ambient sets what is not in keep, and sets no_new_privs if asked:
// what the thread executes next has no more. The thread itself keeps its rights. The caller has locked the goroutine to its thread and does
// not unlock it (capabilities(7): the sets belong to threads).
func limitThread(keep CapSet, noNewPrivs bool) error {
	for n := range 64 {
		if keep.has(n) {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(n), 0, 0, 0)
		if err == unix.EINVAL {
			break // past the kernel's last capability
		}
		if err != nil {
			return fmt.Errorf("drop capability %d from the bounding set: %w", n, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	if noNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("set no_new_privs: %w", err)
		}
	}
	return nil
}
