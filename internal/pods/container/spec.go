package container

import (
	"cmp"
	"errors"
	"syscall"
	"time"

	"packetwalk.dev/internal/pods/cgroup"
)

// A Spec says what to start. It is plain data; Start writes it to Dir/spec.json, where Adopt reads it.
type Spec struct {
	ID   string // unique among the caller's containers; for the caller's use, like Name and Labels
	Name string
	// Dir is the container's directory for its state (spec.json, state.json, attach.sock), absolute; Start makes it, mode 0700, and
	// Remove deletes it. One directory belongs to one container: a restarted container gets a new one, or the old one after Remove.
	Dir string
	// LogPath is the log file, absolute, in CRI's format (see ReadLogs). Start makes its directory. "" writes no log.
	// Remove does not delete it.
	LogPath string
	// NetNS is the path of a network namespace, as /run/netns/x or /proc/PID/ns/net; "" makes a new one that has a loopback interface,
	// which is up, and nothing else.
	NetNS string
	// ProcessesOf is the Dir of a container that runs, whose process namespace this one's processes share; "" makes a new one: below that of
	// the container with the Dir ProcessesBelow, which sees its processes, or below the caller's own.
	ProcessesOf, ProcessesBelow string
	Hostname                    string // "" keeps the host's
	// Layers are the directories below the root's writable layer, the lowest first (overlayfs's lowerdir).
	Layers []string
	// App is the name of the built-in application that the layers are of; "" for an image of others. A command that is one of its programs
	// (nginx, /kuard, …) runs in the first process.
	App string
	// Command and Args are the command line; its first word is looked for in $PATH of the container's file system.
	Command, Args []string
	// Env are "NAME=value" pairs over ImageEnv, the image's own; PATH, HOME, HOSTNAME and, with a terminal, TERM are given where neither has
	// them.
	Env, ImageEnv []string
	WorkingDir    string // "" is /
	// Sysctls are settings of the container's IPC namespace, by their names below /proc/sys, as "kernel/shm_rmid_forced". The caller has
	// looked at the names.
	Sysctls map[string]string
	// ResolvConf and Hosts are the contents of /etc/resolv.conf and /etc/hosts. nil makes them: no name server; localhost and the hostname.
	ResolvConf, Hosts []byte
	Mounts            []Mount
	// Limits bound what the container's processes use together; Start fills in Runtime.Bounds where there are none.
	Limits cgroup.Limits
	// Group is the container's control group, where the machine has any; Start makes it.
	Group cgroup.Group
	// Upper is the directory for the root's writable layer, absolute, on a file system that overlayfs takes for one (ext4): Start makes it
	// anew, and Remove deletes it. "" has the layer in memory, 256 MiB of it at most, which is used only as written.
	Upper string
	// TTY gives the command a terminal, Stdin a standard input that Attach writes to. Without Stdin it reads end of file.
	TTY, Stdin bool
	// StdinOnce ends the standard input when the first Attach with one ends.
	StdinOnce bool
	// ReadOnlyRoot makes the file system read-only, all but /dev, the mounts and Volumes.
	ReadOnlyRoot bool
	// Volumes are the directories that the image declares to be written to, absolute; made where they are missing.
	Volumes []string
	// Privileged gives every capability that acts in the container's namespaces only (see Capabilities; SYS_ADMIN is none of them), and a
	// writable /proc/sys/net.
	Privileged        bool
	AddCaps, DropCaps []string // "NET_ADMIN" or "CAP_NET_ADMIN", in any case; "ALL"
	NoNewPrivs        bool     // allowPrivilegeEscalation: false
	// User is whom the image names ("www-data", "1000:1000"), of the container's own accounts; UID and GID win. Without any it is 0.
	User     string
	UID, GID *int64
	Groups   []int64 // supplementary groups, beside those that the container's accounts give the user, or
	// StrictGroups, in their place.
	StrictGroups bool
	// StopSignal is what Stop sends first; 0 is SIGTERM.
	StopSignal syscall.Signal
	Labels     map[string]string
}

// A Mount is a directory or file of the machine in the container's file system at Destination (absolute; its parents and, if missing,
// itself are made). What is mounted below it on the machine is not part of it; devices in it cannot be opened.
type Mount struct {
	Source string // where no container can put a link
	// Beneath are paths that containers may have made, each found beneath what Source and those before lead to: no link leads further. They
	// are followed when the mount is made, so that a link that is changed at any time before gains nothing.
	Beneath     []string `json:",omitempty"`
	Destination string
	ReadOnly    bool
}

// Exit is how a container ended.
type Exit struct {
	// Code is the exit status, 128+n after signal n. 137 with Reason ReasonUnknown if nobody saw how the container ended.
	Code                  int
	Signal                int // 0 if it exited
	StartedAt, FinishedAt time.Time
	Reason                string // Reason…, as a pod's status shows it
	Message               string // more about it; often ""
}

// The reasons of an Exit; kubelet's words.
const (
	ReasonCompleted = "Completed"              // exit status 0
	ReasonError     = "Error"                  // another exit status, or a signal
	ReasonMemory    = "OOMKilled"              // the kernel ended a process of it, because its memory was used up
	ReasonUnknown   = "ContainerStatusUnknown" // it ended when nobody watched (the machine was restarted)
)

// ErrStart is in the chain of each error of Start that the container itself is the reason of: the command is not there or cannot be
// executed, the working directory is missing. The rest of the message is what a pod's status shows, as `exec: "nosuch": executable file not
// found in $PATH`. What is a fault of the machine does not have it.
var ErrStart = errors.New("cannot start container")

// ErrNotRunning is the answer of Exec and Attach when the container has ended.
var ErrNotRunning = errors.New("container is not running")

// ErrNoContainer is the answer of Adopt where a directory holds no started container; there is nothing to clean up but the directory.
var ErrNoContainer = errors.New("no container in directory")

// Layer is the directory of the root's writable layer, "upper".
func (s *Spec) Layer() string { return cmp.Or(s.Upper, s.Dir) }
