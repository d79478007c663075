package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Size is a terminal's, in characters.
type Size = struct{ Width, Height uint16 }

// An Exec is a command to run in a container.
type Exec struct {
	Args []string
	Env  []string // over the container's
	Dir  string   // working directory; "" is the container's
	// TTY runs the command on a terminal of its own, whose output goes to Stdout.
	TTY            bool
	Stdin          io.Reader // nil is end of file
	Stdout, Stderr io.Writer // nil discards
	Resize         <-chan Size
}

// The exit statuses of a command that cannot be executed, as shells and container engines have them.
const (
	codeCannotExecute = 126
	codeNotFound      = 127
)

// Exec runs a command in all of the container's namespaces, with its environment, user and capabilities, and returns its exit status when
// it has ended (128+n after signal n). Output that a process which it left behind writes later is not waited for. A command that cannot be
// executed gives 127 (not found) or 126, and an error with ErrStart in its chain. When ctx ends, the command is killed, and the error is
// ctx's. Exec does not wait for a Read of Stdin that blocks.
func (c *Container) Exec(ctx context.Context, e Exec) (code int, err error) {
	if isClosed(c.done) {
		return -1, ErrNotRunning
	}
	streams, err := c.spawnExec(ctx, e)
	if err != nil {
		return execFailure("container "+c.spec.Name, err)
	}
	return streams.run(ctx, e)
}

// Report makes what Exec returned plain for people: of a command that cannot be executed the status alone is left, and the reason is
// written to Stderr, or on a terminal to Stdout.
func (e Exec) Report(code int, err error) (int, error) {
	if !errors.Is(err, ErrStart) {
		return code, err
	}
	out := e.Stderr
	if out == nil {
		out = e.Stdout
	}
	if out != nil {
		fmt.Fprintf(out, "%v\r\n", err)
	}
	return code, nil
}

func execFailure(where string, err error) (int, error) {
	err = fmt.Errorf("%s: %w", where, err)
	switch {
	case errors.Is(err, unix.ESRCH):
		return -1, fmt.Errorf("%w: %w", ErrNotRunning, err)
	case !errors.Is(err, ErrStart):
		return -1, err
	case errors.Is(err, os.ErrPermission), errors.Is(err, unix.ENOEXEC), errors.Is(err, unix.EISDIR):
		return codeCannotExecute, err
	}
	return codeNotFound, err
}

// execution is a command that runs, with our ends of its streams.
type execution struct {
	proc            *os.Process
	in, out, errout *os.File // in and out are the same file, the terminal's master, with a terminal
	tty             bool
}

// containerNamespaces are those of a container.
const containerNamespaces = unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWNS

// EndFirst is the oom_score_adj of all processes of containers, the highest: the user's own programs are not what should end for them.
// Written with CAP_SYS_RESOURCE it cannot be lowered without.
var EndFirst = []byte("1000")

// spawnExec starts the command.
func (c *Container) spawnExec(ctx context.Context, e Exec) (x *execution, err error) {
	if c.pidfd == nil {
		return nil, ErrNotRunning
	}
	var own int // for passing on
	err = onFd(c.pidfd, func(fd int) (err error) { own, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); return err })
	if c.pidfdClosed() {
		err = cmp.Or(err, ErrNotRunning)
	}
	if err != nil {
		return nil, err
	}
	pidfd := os.NewFile(uintptr(own), "pidfd")
	defer pidfd.Close()
	o := order{Enter: containerNamespaces, Group: c.spec.Group, Spec: &c.spec, Env: octets(c.spec.Environ(&c.user, e.Env, e.TTY)),
		Dir: cmp.Or(e.Dir, c.spec.WorkingDir), User: c.user}
	return e.spawn(ctx, o, c.binary, pidfd)
}

// spawn starts the command, by an order that has the rest.
func (e Exec) spawn(ctx context.Context, o order, binary string, pidfd *os.File) (*execution, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	o.Args, o.TTY = octets(e.Args), e.TTY
	x := &execution{tty: e.TTY}
	var theirs [3]*os.File
	if e.TTY {
		theirs, err = x.terminal(pidfd, o.User.UID)
	} else {
		theirs, err = x.pipes(e, null)
	}
	if err == nil {
		OnThread(func() (clean bool) { x.proc, err = o.start(ctx, binary, pidfd, theirs[:]); return true })
	}
	closeFiles(theirs[:])
	if err != nil {
		closeFiles([]*os.File{x.in, x.out, x.errout})
		return nil, err
	}
	return x, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close() // the second time for a terminal, which is an error and no harm
		}
	}
}

// Enter takes the calling thread into namespaces of a process at once (setns(2), with a pidfd): there is no moment at which the pid could
// be somebody else's. For the mount namespace the thread must have a working directory of its own, and it gets the root of the process:
// that of the namespace is another one where the process was made in a chroot.
func Enter(pidfd, namespaces int) error {
	root := -1
	var err error
	if namespaces&unix.CLONE_NEWNS != 0 {
		if root, err = rootOf(pidfd); err == nil {
			defer unix.Close(root)
		}
	}
	if err == nil {
		err = unix.Unshare(unix.CLONE_FS)
	}
	if err == nil {
		err = unix.Setns(pidfd, namespaces)
	}
	if err == nil && root >= 0 {
		err = errors.Join(unix.Fchdir(root), unix.Chroot("."))
	}
	if err != nil {
		return fmt.Errorf("enter the namespaces of process: %w", err)
	}
	return nil
}

// rootOf opens the root directory of a pidfd's process.
func rootOf(pidfd int) (int, error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", pidfd))
	if err != nil {
		return -1, err
	}
	var pid int
	_, after, _ := strings.Cut(string(info), "\nPid:")
	if _, err := fmt.Sscan(after, &pid); err != nil || pid <= 0 {
		return -1, unix.ESRCH // it has ended (proc_pid_fdinfo(5))
	}
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		if err = unix.PidfdSendSignal(pidfd, 0, nil, 0); err == nil { // the pid is still the process's
			return root, nil
		}
		unix.Close(root)
	}
	return -1, err
}

// terminal makes a terminal of the container's, from a thread that has entered its file system and ends then.
func (x *execution) terminal(pidfd *os.File, uid int) (theirs [3]*os.File, err error) {
	OnThread(func() (clean bool) {
		var terminal *os.File
		if err = onFd(pidfd, func(fd int) error { return Enter(fd, unix.CLONE_NEWNS) }); err == nil {
			x.in, terminal, err = OpenTerminal(uid)
		}
		x.out, theirs = x.in, [3]*os.File{terminal, terminal, terminal}
		return false
	})
	return theirs, err
}

func (x *execution) pipes(e Exec, null *os.File) (theirs [3]*os.File, err error) {
	theirs[0] = null // the machine's: the container's may be anything by now
	if e.Stdin != nil {
		theirs[0], x.in, err = os.Pipe()
	}
	if err == nil {
		x.out, theirs[1], err = os.Pipe()
	}
	if err == nil {
		x.errout, theirs[2], err = os.Pipe()
	}
	return theirs, err
}

// run moves the streams until the command has ended.
func (x *execution) run(ctx context.Context, e Exec) (int, error) {
	defer closeFiles([]*os.File{x.in, x.out, x.errout})
	ended := make(chan struct{})
	if e.Resize != nil && x.tty {
		go x.follow(e.Resize, ended)
	}
	if e.Stdin != nil {
		go x.feed(e.Stdin)
	}
	var outputs sync.WaitGroup
	outputs.Go(func() { copyOutput(ctx, e.Stdout, x.out) })
	if x.errout != nil {
		outputs.Go(func() { copyOutput(ctx, e.Stderr, x.errout) })
	}
	stop := context.AfterFunc(ctx, func() {
		// The command leads a session and process group of its own; what it started there goes with it.
		_ = unix.Kill(-x.proc.Pid, unix.SIGKILL)
		_ = x.proc.Kill()
	})
	status, err := x.proc.Wait()
	close(ended)
	stop()
	for _, f := range []*os.File{x.out, x.errout} {
		if f != nil {
			_ = f.SetReadDeadline(time.Unix(1, 0)) // copyOutput takes what is there and returns
		}
	}
	outputs.Wait()
	if err != nil {
		return -1, fmt.Errorf("wait for command: %w", err)
	}
	var exit Exit
	exit.set(status.Sys().(syscall.WaitStatus))
	if ctx.Err() != nil && exit.Signal == int(unix.SIGKILL) {
		return exit.Code, context.Cause(ctx)
	}
	return exit.Code, nil
}

func (x *execution) follow(sizes <-chan Size, ended <-chan struct{}) {
	for {
		select {
		case size, ok := <-sizes:
			if !ok {
				return
			}
			_ = Resize(x.in, size) // a terminal that is gone has no size
		case <-ended:
			return
		}
	}
}

// endOfTransmission is what a terminal in canonical mode reads as end of file (VEOF, termios(3)).
const endOfTransmission = 4

func (x *execution) feed(stdin io.Reader) {
	_, _ = io.Copy(x.in, stdin) // a command that does not read its input is no error
	if x.tty {
		_, _ = x.in.Write([]byte{endOfTransmission})
		return
	}
	_ = x.in.Close()
}

// copyOutput copies until end of file, or, after the reader's deadline has been set, what is left to read without waiting: a process that
// the command left behind may hold the other end open for ever.
func copyOutput(ctx context.Context, w io.Writer, r *os.File) {
	if w == nil {
		w = io.Discard
	}
	_, err := io.Copy(onlyWriter{w}, r)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, unix.EIO) {
		w = io.Discard // the writer failed; the command must not block on a full pipe
		_, err = io.Copy(w, r)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		drain(ctx, w, r)
	}
}

// onlyWriter hides ReadFrom, which could splice past a deadline.
type onlyWriter struct{ io.Writer }

// maxLeft is the most that a pipe or terminal holds of a command that has ended (/proc/sys/fs/pipe-max-size), in octets. What comes after
// it is of processes that the command left behind, which may write faster than it is read.
const maxLeft = 1 << 20

// drain copies what is left, or a part of it when ctx ends.
func drain(ctx context.Context, w io.Writer, r *os.File) {
	if r.SetReadDeadline(time.Time{}) != nil {
		return
	}
	conn, err := r.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 32<<10)
	for left := maxLeft; left > 0 && ctx.Err() == nil; {
		n := 0
		err := conn.Read(func(fd uintptr) bool {
			n, _ = unix.Read(int(fd), buf[:min(left, len(buf))])
			return true
		})
		if err != nil || n <= 0 {
			return
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return
		}
		left -= n
	}
}
