package isolation

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"packetwalk.dev/internal/pods/cgroup"
)

// leftTime is how long what a command has left behind is waited for to write more.
const leftTime = time.Second

// nodeFd is the descriptor in which execOnNode gets a pidfd of the node's first process.
const nodeFd = 3

// execOnNode runs a command on the node whose first process the pidfd in nodeFd is of, and gives its exit status. This process
// stays outside, with the caller's files: nothing on the node holds a file of the machine's. It must be the main thread, whose namespaces
// change.
func execOnNode(args []string) (status int, err error) {
	pid, err := pidOf(nodeFd)
	if err != nil {
		return 0, err
	}
	group, err := cgroup.Of(pid)
	if err != nil {
		return 0, err
	}
	if err := errors.Join(group.Join(), enter(nodeFd), unix.Close(nodeFd)); err != nil {
		return 0, err
	}
	if err := LimitNode(); err != nil {
		return 0, err
	}
	if err := os.Chdir(nodeHome); err != nil { // where the command is looked for, too
		return 0, err
	}
	if len(args) == 0 {
		args = []string{"/bin/bash", "-l"}
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return notExecuted(err), err
	}
	alive, held, err := os.Pipe() // closes with this process
	if err != nil {
		return 0, err
	}
	defer held.Close()
	var s streams
	if err := s.open(); err != nil {
		return 0, err
	}
	defer s.restore()
	s.last.Store(time.Now().UnixNano())
	child, err := startProgram(append([]string{path}, args[1:]...), &syscall.ProcAttr{Dir: nodeHome, Env: os.Environ(),
		Files: append(s.descriptors(), alive.Fd()), Sys: &syscall.SysProcAttr{Setsid: true, Setctty: s.terminal}})
	if err != nil {
		return 0, err
	}
	alive.Close()
	go endOnSignal(child)
	over := s.copy()
	ended, err := wait(child)
	if err != nil {
		return 0, fmt.Errorf("wait for %s: %w", path, err)
	}
	s.drain(over)
	return exitStatus(ended), nil
}

// endOnSignal ends the command, with what is in its process group, when this process is to end.
func endOnSignal(pid int) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	<-signals
	_ = unix.Kill(-pid, unix.SIGKILL) // it leads a session; one that has ended is waited for
}

// streams are a command's: pipes, or between two terminals one of the node's own.
type streams struct {
	terminal bool
	theirs   [3]*os.File // the command's
	ours     [3]*os.File // the other ends; of a terminal the first is all
	before   *term.State
	writing  atomic.Int32 // how many of the two outputs are being written
	last     atomic.Int64 // when something was written last, Unix nanoseconds
}

// drain waits until over closes, or nothing more has come for leftTime. Who reads what is written may take their time.
func (s *streams) drain(over <-chan struct{}) {
	for end := time.Now(); ; {
		select {
		case <-over:
			return
		case <-time.After(leftTime / 10):
		}
		if s.writing.Load() == 0 && time.Since(time.Unix(0, s.last.Load())) > leftTime && time.Since(end) > leftTime {
			return
		}
	}
}

// move copies until the other end is closed.
func (s *streams) move(to io.Writer, from io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		s.writing.Add(1)
		if n > 0 {
			_, _ = to.Write(buf[:n]) // the reader may be gone
		}
		s.last.Store(time.Now().UnixNano())
		s.writing.Add(-1)
		if err != nil {
			return
		}
	}
}

func (s *streams) open() (err error) {
	if s.terminal = term.IsTerminal(0) && term.IsTerminal(1); s.terminal {
		master, slave, err := openTerminal()
		if err != nil {
			return err
		}
		s.ours[0], s.theirs = master, [3]*os.File{slave, slave, slave}
		s.resize()
		s.before, err = term.MakeRaw(0)
		return err
	}
	s.theirs[0], s.ours[0], err = os.Pipe()
	for i := 1; i < 3 && err == nil; i++ {
		s.ours[i], s.theirs[i], err = os.Pipe()
	}
	return err
}

func (s *streams) descriptors() (list []uintptr) {
	for _, f := range s.theirs {
		list = append(list, f.Fd())
	}
	return list
}

// copy moves what is written until the other ends are closed, and closes over then.
func (s *streams) copy() (over <-chan struct{}) {
	for _, f := range s.theirs {
		f.Close() // of a terminal the second time, which is an error and no harm
	}
	done := make(chan struct{})
	if s.terminal {
		changed := make(chan os.Signal, 1)
		signal.Notify(changed, unix.SIGWINCH)
		go func() {
			for range changed {
				s.resize()
			}
		}()
		go func() { _, _ = io.Copy(s.ours[0], os.Stdin) }()
		go func() { s.move(os.Stdout, s.ours[0]); close(done) }() // EIO when the terminal is closed everywhere
		return done
	}
	go func() { _, _ = io.Copy(s.ours[0], os.Stdin); s.ours[0].Close() }()
	out := make(chan struct{})
	go func() { s.move(os.Stdout, s.ours[1]); close(out) }()
	go func() { s.move(os.Stderr, s.ours[2]); <-out; close(done) }()
	return done
}

// resize gives the node's terminal the size of the caller's.
func (s *streams) resize() {
	if width, height, err := term.GetSize(0); err == nil {
		_ = unix.IoctlSetWinsize(int(s.ours[0].Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(height), Col: uint16(width)})
	}
}

func (s *streams) restore() {
	if s.before != nil {
		_ = term.Restore(0, s.before)
	}
}

// openTerminal makes a pseudo-terminal of the node's, in which the calling thread is. No link is followed, and the terminal is asked of its
// master: the node's processes may have put anything into /dev (ioctl_tty(2), TIOCGPTPEER).
func openTerminal() (master, terminal *os.File, err error) {
	how := unix.OpenHow{Flags: unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, "/dev/pts/ptmx", &how)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return nil, nil, fmt.Errorf("open a terminal: %w", errno)
	}
	return os.NewFile(uintptr(fd), "terminal"), os.NewFile(peer, "terminal"), nil
}
