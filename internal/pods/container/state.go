package container

import (
	"packetwalk.dev/internal/base/atomicfile"

	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The files of Spec.Dir.
const (
	SpecFile   = "spec.json"   // the Spec
	stateFile  = "state.json"  // the State, written by the first process
	AttachFile = "attach.sock" // unix socket, with TTY or Stdin
	stderrFile = "stderr"      // what the process that Start starts had to say about itself; empty in good times
)

// A State is what is recorded of a container: by its shim, or where it has none by its first process.
type State struct {
	// Ident is the container's first process, its pid namespace's init; zero before it is there.
	Ident
	// Shim is the first process's parent; nil where the first process is a built-in application, which is its own.
	Shim      *Ident    `json:"shim,omitempty"`
	StartedAt time.Time `json:"startedAt"` // zero until the application runs
	Exit      *Exit     `json:"exit,omitempty"`
	// User is who the container's processes are, by its own accounts; nil where that is not known yet.
	User *Account `json:"user,omitempty"`
}

// An Ident is a process, as no later one is.
type Ident struct {
	Pid int `json:"pid"` // in the machine's pid namespace
	// StartTicks and BootID tell it from a later one with the same pid: field 22 of /proc/PID/stat (proc_pid_stat(5)) and
	// /proc/sys/kernel/random/boot_id.
	StartTicks uint64 `json:"startTicks"`
	BootID     string `json:"bootID"`
}

// account is who a container's processes are; of one that an older version started it is what the pod says.
func (s *State) account(spec *Spec) (a Account) {
	if s.User != nil {
		return *s.User
	}
	a.Home = "/root"
	if spec.UID != nil && *spec.UID != 0 {
		a.UID, a.Home = int(*spec.UID), "/"
	}
	if spec.GID != nil {
		a.GID = int(*spec.GID)
	}
	for _, g := range spec.Groups {
		a.Groups = append(a.Groups, int(g))
	}
	return a
}

// An Account is whom processes run as.
type Account struct {
	UID    int    `json:"uid"`
	GID    int    `json:"gid"`
	Groups []int  `json:"groups,omitempty"` // supplementary ones
	Home   string `json:"home"`
}

// Root tells whether it is root with root's group only.
func (a *Account) Root() bool { return a.UID == 0 && a.GID == 0 && len(a.Groups) == 0 }

// WriteState replaces dir's state file at once, so that a reader finds the old or the new one.
func WriteState(dir *os.Root, s State) error { return writeJSON(dir, stateFile, s) }

// readState reads a directory's state; an error that is fs.ErrNotExist where none was written.
func readState(dir *os.Root) (State, error) {
	var s State
	err := readJSON(dir, stateFile, &s)
	return s, err
}

// ReadSpec reads the Spec of a container's directory.
func ReadSpec(dir *os.Root) (Spec, error) {
	var s Spec
	err := readJSON(dir, SpecFile, &s)
	return s, err
}

func writeJSON(dir *os.Root, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	if err := atomicfile.WriteIn(dir, name, data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func readJSON(dir *os.Root, name string, v any) error {
	data, err := dir.ReadFile(name)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// Self is the calling process as the /proc that it sees numbers it: a first process calls it before it has a /proc of its own.
func Self() (Ident, error) { return identify("self") }

// Identify is the process with a pid, which the caller knows to be there: a child of its own, that may have ended.
func Identify(pid int) (Ident, error) { return identify(strconv.Itoa(pid)) }

func identify(which string) (Ident, error) {
	pid, ticks, err := readStat("/proc/" + which + "/stat")
	if err != nil && (pid == 0 || !errors.Is(err, errZombie)) {
		return Ident{}, err
	}
	boot, err := bootID()
	return Ident{Pid: pid, StartTicks: ticks, BootID: boot}, err
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(bytes.TrimSpace(b)), err
}

// alive says whether the process still runs; a zombie does not.
func (i Ident) alive() bool {
	boot, err := bootID()
	if err != nil || boot != i.BootID {
		return false
	}
	_, ticks, err := readStat(fmt.Sprintf("/proc/%d/stat", i.Pid))
	return err == nil && ticks == i.StartTicks
}

// open gives a descriptor of the process for the poller (pidfd_open(2)); nil when it has ended. The check comes after the opening: a pid
// that is somebody else's by then does not have the process's start time.
func (i Ident) open() *os.File {
	fd, err := unix.PidfdOpen(i.Pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil
	}
	if !i.alive() {
		unix.Close(fd)
		return nil
	}
	return os.NewFile(uintptr(fd), "pidfd")
}

var errZombie = errors.New("process has ended")

func readStat(path string) (pid int, startTicks uint64, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", errZombie, err)
		}
		return 0, 0, err
	}
	return parseStat(string(b))
}

// parseStat takes pid and start time out of a /proc/PID/stat line. The command's name may hold anything, also ") Z 1": what follows the
// last parenthesis counts. The error of one that has ended comes with both.
func parseStat(line string) (pid int, startTicks uint64, err error) {
	open, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return 0, 0, fmt.Errorf("stat line %q has no command", line)
	}
	fields := strings.Fields(line[end+1:]) // field 3, the state, is the first
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("stat line %q has too few fields", line)
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(line[:open])); err != nil {
		return 0, 0, fmt.Errorf("stat line: %w", err)
	}
	if startTicks, err = strconv.ParseUint(fields[19], 10, 64); err != nil {
		return 0, 0, fmt.Errorf("stat line: %w", err)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		err = errZombie
	}
	return pid, startTicks, err
}
