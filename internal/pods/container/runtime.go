package container

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/base/tree"
	"packetwalk.dev/internal/pods/app"
	"packetwalk.dev/internal/pods/cgroup"
)

// A Runtime starts containers.
type Runtime struct {
	// Binary is the path of packetwalk-app, a container's shim or first process.
	Binary string
	// Groups is where containers' control groups are, Bounds what a container has for limits that its Spec does not have.
	Groups cgroup.Tree
	Bounds cgroup.Limits
}

// A Container is a container that runs or ran. Its methods are safe for concurrent use.
type Container struct {
	spec    Spec
	binary  string // Runtime.Binary
	user    Account
	pid     int
	pidfd   *os.File // of the first process; nil when it had ended before it was opened
	shim    *os.File // likewise of the shim; nil where there is none
	started time.Time
	done    chan struct{}

	mu     sync.Mutex
	exit   Exit
	killed bool // by us, with SIGKILL
}

// firstEnv keeps a shim, or a first process that is an application, small: it serves a few connections, and hundreds of it run at once. No
// variable reaches a command.
var firstEnv = []string{"GOMAXPROCS=1", "GOGC=25", "PATH=" + program.Path}

// The stages of a container, by the first argument of packetwalk-app; the second is Spec.Dir.
const (
	// StageApplication is the container's first process, in fresh namespaces, and the built-in application itself.
	StageApplication = "first"
	// StageShim is the parent of the container's first process, on the machine but for the network namespace: it writes the log, serves Attach
	// and records the end. It has no more memory than a first process would that kept a command for its child, and nothing in the container
	// sees it.
	StageShim = "shim"
	// StageInit is the first process, in fresh namespaces, on its way to be the command.
	StageInit = "init"
	// StageStart is a process that starts another one in another process namespace, and ends. Its argument is not a directory (Starter).
	StageStart = "start"
)

// The bytes that begin a report to Start, on the descriptor ReportFd.
const (
	ReportFd      = 3
	ProcessesFd   = 4 // of a shim: a pidfd of the first process of Spec.ProcessesOf or ProcessesBelow, where there is one
	ReportRuns    = '+'
	ReportCommand = '!' // and the message of an ErrStart
	ReportMachine = '-' // and the message of another error
)

// stage is that of the process which Start starts. A built-in application without need of a terminal, an input or another user is the
// container's first process and writes log and state itself: hundreds run at once.
func (s *Spec) stage() string {
	if s.App == "" || s.ProcessesOf != "" || s.TTY || s.Stdin || s.User != "" || number(s.UID) != 0 || number(s.GID) != 0 ||
		len(s.Groups) > 0 {
		return StageShim
	}
	a, err := app.ByName(s.App)
	if err != nil {
		return StageShim
	}
	if _, ok := a.Program(first(s.Argv())); ok {
		return StageApplication
	}
	return StageShim
}

func number(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// Start starts a container and returns when its process runs: a built-in application listens, or failed to and has ended; a command has
// been executed. Cancelling ctx before that ends the attempt; later it does nothing. An attempt that fails leaves no process, no mount and,
// but for its log, no file.
func (r *Runtime) Start(ctx context.Context, s Spec) (*Container, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	c := &Container{spec: s, binary: r.Binary, done: make(chan struct{})}
	err := c.bound(r)
	if err == nil {
		err = c.start(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("container %s: %w", s.Name, errors.Join(err, c.spec.Group.Remove()))
	}
	return c, nil
}

// bound makes the container's control group, which is named for its directory: one container's alone.
func (c *Container) bound(r *Runtime) (err error) {
	c.spec.Limits = c.spec.Limits.Or(r.Bounds)
	c.spec.Group, err = r.Groups.Make(fmt.Sprintf("%s-%.6x", c.spec.Name, sha256.Sum256([]byte(c.spec.Dir))), c.spec.Limits)
	return err
}

func (s *Spec) check() error {
	paths := map[string]string{"directory": s.Dir, "log path": s.LogPath, "working directory": s.WorkingDir, "shared": s.ProcessesOf,
		"above": s.ProcessesBelow, "upper directory": s.Upper}
	for i, m := range s.Mounts {
		paths[fmt.Sprintf("destination of mount %d", i)] = m.Destination
		paths[fmt.Sprintf("source of mount %d", i)] = m.Source
		if m.Source == "" || m.Destination == "" {
			return fmt.Errorf("container %s: mount %d at %q needs a source and a destination", s.Name, i, m.Destination)
		}
	}
	for _, m := range s.Mounts {
		if dest := filepath.Clean(m.Destination); dest == "/" || dest == "/proc" || strings.HasPrefix(dest, "/proc/") {
			return fmt.Errorf("container %s: %w: mount at %s: / and /proc are the container's own", s.Name, ErrStart, m.Destination)
		}
	}
	if len(s.Layers) == 0 {
		return fmt.Errorf("container %s has no image", s.Name)
	}
	if s.Dir == "" {
		return fmt.Errorf("container %s has no directory", s.Name)
	}
	for i, dir := range s.Layers {
		paths[fmt.Sprintf("layer %d", i)] = dir
	}
	for what, path := range paths {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("container %s: %s %q is not absolute", s.Name, what, path)
		}
	}
	if _, err := s.Capabilities(); err != nil {
		return fmt.Errorf("container %s: %w", s.Name, err)
	}
	return nil
}

func (c *Container) start(ctx context.Context) (err error) {
	dir, err := c.makeDir()
	if err != nil {
		return err
	}
	defer dir.Close()
	defer func() {
		if err != nil {
			closeFiles([]*os.File{c.pidfd, c.shim})
			err = errors.Join(err, c.spec.removeFiles())
		}
	}()
	stderr, err := dir.OpenFile(stderrFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer stderr.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	report, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer report.Close()
	var other *os.File
	if dir := cmp.Or(c.spec.ProcessesOf, c.spec.ProcessesBelow); dir != "" {
		if other, err = openFirst(dir); err != nil {
			theirs.Close()
			return err
		}
		defer other.Close()
	}
	proc, pidfd, err := c.spawn(ctx, []*os.File{null, stderr, stderr, theirs}, other)
	theirs.Close()
	if err != nil {
		return err
	}
	defer pidfd.Close()
	if err = awaitReport(ctx, report, proc, dir); err != nil {
		c.abandon(dir)
		return err
	}
	state, err := readState(dir)
	if err == nil {
		err = c.follow(pidfd, &state)
	}
	if err != nil {
		reap(proc)
		c.abandon(dir)
		return err
	}
	go c.watch(proc)
	return nil
}

// openFirst opens the first process of the container of a directory.
func openFirst(dir string) (*os.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("share processes: %w", err)
	}
	defer root.Close()
	state, err := readState(root)
	if err != nil {
		return nil, fmt.Errorf("share processes: %w", err)
	}
	if first := state.open(); first != nil {
		return first, nil
	}
	return nil, fmt.Errorf("share processes of %s: %w", dir, ErrNotRunning)
}

// abandon ends what a shim that has ended may have started.
func (c *Container) abandon(dir *os.Root) {
	if state, err := readState(dir); err == nil && state.Shim != nil {
		c.pidfd = state.open()
		c.endOrphan()
	}
}

// follow takes over what the container's first process or shim recorded; pidfd is the one's that was started.
func (c *Container) follow(pidfd *os.File, state *State) error {
	own, err := pollable(pidfd)
	if err != nil {
		return err
	}
	c.pid, c.started, c.user = state.Pid, state.StartedAt, state.account(&c.spec)
	if state.Shim == nil {
		c.pidfd = own
		return nil
	}
	c.shim, c.pidfd = own, state.open()
	return nil
}

// makeDir makes the container's directory, which must not hold another one, with the Spec in it.
func (c *Container) makeDir() (*os.Root, error) {
	if err := os.MkdirAll(c.spec.Dir, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.OpenRoot(c.spec.Dir)
	if err != nil {
		return nil, err
	}
	if _, err = dir.Lstat(SpecFile); err == nil {
		err = fmt.Errorf("directory %s holds a container already; remove it first", c.spec.Dir)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = writeJSON(dir, SpecFile, &c.spec)
	}
	if err == nil && c.spec.LogPath != "" {
		err = os.MkdirAll(filepath.Dir(c.spec.LogPath), 0o755)
	}
	if err == nil && c.spec.Upper != "" {
		err = errors.Join(tree.Remove(c.spec.Upper), os.MkdirAll(c.spec.Upper, 0o700)) // of an attempt that a crash cut off
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// spawn starts the shim, or the first process in its new namespaces, from a thread that is in the container's network namespace for that
// moment: a child gets its parent thread's. other is the process whose process namespace the container shares, or is below; or nil.
func (c *Container) spawn(ctx context.Context, files []*os.File, other *os.File) (proc *os.Process, pidfd *os.File, err error) {
	stage, start := c.spec.stage(), os.StartProcess
	attr := &syscall.SysProcAttr{Setsid: true}
	switch {
	case stage == StageApplication:
		attr.Cloneflags = NewNamespaces
		if other != nil {
			start = func(name string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
				return StartIn(ctx, other, name, argv, attr)
			}
		}
	case other != nil:
		files = append(files, other)
	}
	if c.spec.NetNS == "" {
		attr.Cloneflags |= unix.CLONE_NEWNET
	}
	err = inNetNS(c.spec.NetNS, func() (err error) {
		argv := []string{"packetwalk-app", stage, c.spec.Dir}
		proc, err = start(c.binary, argv, &os.ProcAttr{Dir: "/", Env: firstEnv, Files: files, Sys: attr})
		return err
	})
	fd := -1
	if err == nil { // nobody has waited for it yet, so that the pid is its own
		fd, err = unix.PidfdOpen(proc.Pid, 0)
	}
	if err != nil {
		if proc != nil {
			reap(proc)
		}
		return nil, nil, fmt.Errorf("start the %s process: %w", stage, err)
	}
	return proc, os.NewFile(uintptr(fd), "pidfd"), nil
}

// NewNamespaces are those that a container's first process is in, beside the network namespace (clone(2)).
const NewNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC

// pollable gives a process's descriptor to the poller, which takes it in non-blocking mode: waiting for hundreds of containers takes no
// threads. It comes after a start has succeeded, because proc.Wait shares the mode and would not wait for a process that still runs.
func pollable(pidfd *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(pidfd.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return nil, fmt.Errorf("watch the container: %w", err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// inNetNS calls f on a thread of its own in the network namespace, or in the process's where path is "".
func inNetNS(path string, f func() error) error {
	if path == "" {
		path = "/proc/self/ns/net"
	}
	target, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	defer target.Close()
	OnThread(func() (clean bool) {
		var own *os.File
		if own, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return true
		}
		defer own.Close()
		if err = unix.Setns(int(target.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter network namespace %s: %w", path, err)
			return true
		}
		err = f()
		return unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil
	})
	return err
}

// awaitReport waits until the process that was started says that the container runs, or why not; then it has ended and been reaped.
func awaitReport(ctx context.Context, report *os.File, proc *os.Process, dir *os.Root) error {
	stop := context.AfterFunc(ctx, func() { _ = proc.Kill() })
	message, readErr := io.ReadAll(report)
	inTime := stop()
	if inTime && len(message) > 0 && message[0] == ReportRuns {
		return nil
	}
	status := reap(proc) // it has ended or is about to, but for an error of reading
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("start: %w", context.Cause(ctx))
	case readErr != nil:
		return readErr
	case len(message) > 0 && message[0] == ReportCommand:
		return fmt.Errorf("%w: %s", ErrStart, message[1:])
	case len(message) > 0:
		return errors.New(string(message[1:]))
	}
	said, _ := dir.ReadFile(stderrFile)
	return fmt.Errorf("the process ended before the container ran: %v: %s", status, bytes.TrimSpace(said))
}

// Adopt finds the container that a Start with this Spec.Dir began, by this process or one that has ended since. If it has ended meanwhile,
// Done is closed and Exit says how. It is safe to adopt a directory of an attempt that failed: the error is then ErrNoContainer.
func (r *Runtime) Adopt(dir string) (*Container, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("adopt %s: %w", dir, ErrNoContainer)
	}
	if err != nil {
		return nil, fmt.Errorf("adopt: %w", err)
	}
	defer root.Close()
	spec, err := ReadSpec(root)
	var state State
	if err == nil {
		state, err = readState(root)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("adopt %s: %w", dir, ErrNoContainer)
	}
	if err != nil {
		return nil, fmt.Errorf("adopt %s: %w", dir, err)
	}
	spec.Dir = dir
	c := &Container{spec: spec, binary: r.Binary, user: state.account(&spec), pid: state.Pid, started: state.StartedAt,
		done: make(chan struct{})}
	if state.Exit != nil {
		c.finish(nil)
		return c, nil
	}
	c.pidfd = state.open()
	if state.Shim != nil {
		c.shim = state.Shim.open()
	}
	switch {
	case state.Shim != nil && state.StartedAt.IsZero():
		c.giveUp()
		return nil, fmt.Errorf("adopt %s: %w", dir, ErrNoContainer)
	case state.Shim != nil && c.shim == nil:
		c.endOrphan()
		c.finish(nil)
	case cmp.Or(c.shim, c.pidfd) == nil:
		c.finish(nil)
	default:
		go c.watch(nil)
	}
	return c, nil
}

// giveUp ends a start that another process began and did not see the end of.
func (c *Container) giveUp() {
	if c.shim != nil && sendSignal(c.shim, unix.SIGKILL) == nil {
		awaitEnd(c.shim)
	}
	c.endOrphan()
	closeFiles([]*os.File{c.pidfd, c.shim})
	_ = c.spec.Group.Remove() // the next start takes over what is left
}

// Spec returns what the container was started from.
func (c *Container) Spec() Spec { return c.spec }

// Pid is the first process, the container's own number 1, in the machine's pid namespace, also after it ended.
func (c *Container) Pid() int { return c.pid }

// StartedAt is the time when the container's process began to run.
func (c *Container) StartedAt() time.Time { return c.started }

// Done is closed when the container has ended and Exit is known.
func (c *Container) Done() <-chan struct{} { return c.done }
