package container

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/cgroup"
)

// Who is in a process namespace may stop what begins there, also before it is the command, and who has forked it waits for that (vfork(2)):
// a thread of Go's that does so holds up all others when next the runtime stops the world. So that nobody forks into another's process
// namespace but a starter, a process of StageStart: it is in our own, where nothing of a container sees it, it leaves what it has started
// to us as our child (CLONE_PARENT), and we wait for it as long as we like.

// An order is what a starter is to start.
type order struct {
	Enter      int          // namespaces of the process that the pidfd is of (setns(2)), among them CLONE_NEWPID
	Group      cgroup.Group // to begin in
	Spec       *Spec        // of the container that the command is in, which says what it may
	Path       string       // a program of ours, of the machine's file system, that may all; "" with Spec, or in a machine of its own
	Args, Env  [][]byte     // of any bytes
	Dir        string
	TTY        bool
	User       Account
	Cloneflags uintptr // beside CLONE_PARENT
}

// A started is what a starter says: the pid of what it has started, or why there is none; and that of what has ended for it (forkBelow).
type started struct {
	Pid, Copied int
	Error       *failure
}

// A failure is an error that comes from a starter: errors.Is finds ErrStart and the system call's error.
type failure struct {
	Text  string
	Errno syscall.Errno
	Start bool
}

func (f *failure) Error() string { return f.Text }

func (f *failure) Is(target error) bool {
	return f.Start && target == ErrStart || f.Errno != 0 && errors.Is(f.Errno, target)
}

func newFailure(err error) *failure {
	f := &failure{Text: err.Error(), Start: errors.Is(err, ErrStart)}
	errors.As(err, &f.Errno)
	return f
}

// startTime is how long a starter, which takes milliseconds, is waited for.
const startTime = 30 * time.Second

var errStopped = fmt.Errorf("it does not begin within %v: something in its process namespace holds it up", startTime)

// start has a starter, packetwalk-app at the path binary, start a process with files from descriptor 0 on, in namespaces of the process
// that a pidfd is of. The calling thread is locked to its goroutine. When ctx ends, or after startTime, nothing of it is left.
func (o order) start(ctx context.Context, binary string, pidfd *os.File, files []*os.File) (*os.Process, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, errStopped)
	defer cancel()
	before := children()
	a, err := o.ask(ctx, binary, pidfd, files)
	if err != nil {
		endChildren(before)
		return nil, err
	}
	if a.Copied != 0 {
		reapNumber(a.Copied)
	}
	return os.FindProcess(a.Pid) // nobody has waited for it yet, so that the pid is its own
}

// children are those that the calling thread has started, and that nobody has waited for (proc_pid_children(5)).
func children() []string {
	text, _ := os.ReadFile("/proc/thread-self/children") // of a kernel without it nothing is found
	return strings.Fields(string(text))
}

// endChildren ends the calling thread's children but for those before: a process that nobody has waited for keeps all process namespaces
// that it is in. The thread has started no others since; and those of a thread that ends become the first thread's, if it lives.
func endChildren(before []string) {
	for left := true; left; { // one that is ended may just have started another
		left = false
		for _, child := range children() {
			if pid, err := strconv.Atoi(child); err == nil && !slices.Contains(before, child) {
				left = true
				reapNumber(pid)
				before = append(before, child)
			}
		}
	}
}

// reapNumber is reap of a child for which nobody has waited.
func reapNumber(pid int) {
	if proc, err := os.FindProcess(pid); err == nil {
		reap(proc)
	}
}

// StartIn starts a stage of packetwalk-app, at the path name, in the process namespace of the process that a pidfd is of, or with
// CLONE_NEWPID among its flags in one below it. The calling thread is locked to its goroutine, and the stage is its child. Of attr count
// Files, Env and Sys.Cloneflags.
func StartIn(ctx context.Context, pidfd *os.File, name string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
	o := order{Enter: unix.CLONE_NEWPID, Path: name, Args: octets(argv), Env: octets(attr.Env), Cloneflags: attr.Sys.Cloneflags}
	return o.start(ctx, name, pidfd, attr.Files)
}

// ask gives the order to a starter, and waits for what it says until ctx ends. Then the starter has ended.
func (o order) ask(ctx context.Context, binary string, pidfd *os.File, files []*os.File) (a started, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return a, fmt.Errorf("make a socket: %w", err)
	}
	err = unix.SetNonblock(pair[0], true) // for the poller
	socket, theirs := os.NewFile(uintptr(pair[0]), "starter"), os.NewFile(uintptr(pair[1]), "order")
	defer socket.Close()
	var starter *os.Process
	if err == nil {
		attr := &os.ProcAttr{Dir: "/", Env: firstEnv, Files: append(files[:len(files):len(files)], theirs, pidfd),
			Sys: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}}
		starter, err = os.StartProcess(binary, []string{"packetwalk-app", StageStart, strconv.Itoa(len(files))}, attr)
	}
	theirs.Close()
	if err != nil {
		return a, fmt.Errorf("start a starter: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err = json.NewEncoder(socket).Encode(o); err == nil {
		err = json.NewDecoder(socket).Decode(&a)
	}
	status := reap(starter)
	switch {
	case err != nil:
		return a, cmp.Or(context.Cause(ctx), fmt.Errorf("its starter: %w (%v)", err, status))
	case a.Error != nil:
		return a, a.Error
	}
	return a, nil
}

// Starter is the life of a starter: files is how many descriptors the process gets, the socket and the pidfd come after them. The main
// thread is locked to the main goroutine. It returns the exit status.
func Starter(files string) int {
	n, err := strconv.Atoi(files)
	if err != nil || n < 0 {
		return 2
	}
	unix.CloseOnExec(n)
	unix.CloseOnExec(n + 1)
	socket := os.NewFile(uintptr(n), "order")
	var o order
	var a started
	if err = json.NewDecoder(socket).Decode(&o); err == nil {
		// Not the main thread, to whose control group the memory of the whole process is counted.
		OnThread(func() (clean bool) { a.Pid, a.Copied, err = o.startHere(n); return false })
	}
	if err != nil {
		a.Error = newFailure(err)
	}
	_ = json.NewEncoder(socket).Encode(a) // who listens may have ended
	return 0
}

// startHere starts the process from the calling thread, which is to end then: what it has lost cannot be given back.
func (o *order) startHere(files int) (pid, copied int, err error) {
	if o.Spec != nil {
		if err = os.WriteFile("/proc/self/oom_score_adj", EndFirst, 0); err != nil {
			return 0, 0, fmt.Errorf("be the first to end when memory runs out: %w", err)
		}
	}
	if err = o.Group.JoinThread(); err != nil {
		return 0, 0, err
	}
	attr := &syscall.SysProcAttr{Setsid: true, Setctty: o.TTY, Credential: o.User.credential(),
		Cloneflags: o.Cloneflags | unix.CLONE_PARENT}
	if err = Enter(files+1, o.Enter); err != nil {
		return 0, 0, err
	}
	p := Process{Args: texts(o.Args), Env: texts(o.Env), Dir: o.Dir}
	path, err := o.limit(p)
	if err != nil {
		return 0, 0, err
	}
	if o.Cloneflags&unix.CLONE_NEWPID != 0 {
		return forkBelow(path, p, o.Cloneflags)
	}
	fds := make([]uintptr, files)
	for fd := range fds {
		fds[fd] = uintptr(fd)
	}
	if pid, err = syscall.ForkExec(path, p.Args, &syscall.ProcAttr{Env: p.Env, Files: fds, Sys: attr}); err != nil {
		err = fmt.Errorf("%w: exec: %q: %w", ErrStart, first(p.Args), &os.PathError{Op: "fork/exec", Path: path, Err: err})
	}
	return pid, 0, err
}

// limit takes from the calling thread what the process may not, and gives its executable file's path.
func (o *order) limit(p Process) (path string, err error) {
	switch {
	case o.Path != "":
		return o.Path, nil
	case o.Spec != nil:
		return o.Spec.limit(p)
	}
	if err = new(Spec).Chdir(p.Dir); err != nil {
		return "", err
	}
	if path, err = LookPath(first(p.Args), p.Env, p.Dir); err != nil {
		return "", err
	}
	return path, LimitMachine()
}

func octets(texts []string) (all [][]byte) {
	for _, text := range texts {
		all = append(all, []byte(text))
	}
	return all
}

func texts(octets [][]byte) (all []string) {
	for _, text := range octets {
		all = append(all, string(text))
	}
	return all
}
