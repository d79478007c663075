package boot

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/container"
)

// The messages of a first process on its way to its shim, one packet each (SOCK_SEQPACKET) on descriptor container.ReportFd. Those of
// container.Report… say that it has nothing left to do but become its command, and what went wrong, also then; the end of all says that it
// is the command.
const (
	// messageAccount has whom the command runs as, a container.Account as JSON, and on a terminal its master (unix(7), SCM_RIGHTS).
	messageAccount = '@'
	messageMost    = 16 << 10 // bytes
)

// shim is the life of the process beside a container: the parent of its first process, which learns its exit status, and the reader of its
// streams. It stays on the main thread: with that the first process ends before it is the command (PR_SET_PDEATHSIG).
func shim(dir string) int {
	b := &boot{report: os.NewFile(container.ReportFd, "report")}
	unix.CloseOnExec(container.ReportFd)
	unix.Umask(0o022)
	// Swallowed and not ignored, which the command would inherit.
	signal.Notify(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
	streams := &streams{}
	proc, err := b.begin(dir, streams)
	if err != nil {
		b.fail(err)
		return 1
	}
	b.runs()
	streams.begin(b)
	status := wait(proc)
	b.spec.EndRest()
	streams.finish()
	if b.attach != nil {
		b.attach.close()
	}
	b.end(status)
	return 0
}

func wait(proc *os.Process) syscall.WaitStatus {
	state, err := proc.Wait()
	if err != nil { // it cannot: the process is our child and nobody else waits
		fmt.Fprintln(os.Stderr, err)
		return exited(1)
	}
	return state.Sys().(syscall.WaitStatus)
}

// begin starts the first process and waits until it is the command.
func (b *boot) begin(dir string, s *streams) (proc *os.Process, err error) {
	if err = endFirst(); err != nil {
		return nil, err
	}
	if b.dir, err = os.OpenRoot(dir); err != nil {
		return nil, err
	}
	if b.spec, err = container.ReadSpec(b.dir); err != nil {
		return nil, err
	}
	self, err := container.Self()
	if err != nil {
		return nil, err
	}
	// From here on Adopt can find us, whatever becomes of who started us.
	b.state.Shim = &self
	if err = container.WriteState(b.dir, b.state); err != nil {
		return nil, err
	}
	if b.log, err = b.openLog(os.OpenRoot); err != nil {
		return nil, err
	}
	if b.spec.Stdin || b.spec.TTY {
		if b.attach, err = listenAttach(b.dir); err != nil {
			return nil, err
		}
	}
	if err = s.open(&b.spec); err != nil {
		return nil, err
	}
	if err = b.starterLives(); err != nil {
		return nil, err
	}
	return b.beginInit(s)
}

func (b *boot) beginInit(s *streams) (proc *os.Process, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	ours, theirs := pair[0], os.NewFile(uintptr(pair[1]), "report")
	defer unix.Close(ours)
	proc, err = b.startInit(append(s.child[:], theirs)) // theirs is container.ReportFd
	s.closeChild()
	theirs.Close()
	if err != nil {
		return nil, fmt.Errorf("start the first process: %w", err)
	}
	if b.state.Ident, err = container.Identify(proc.Pid); err == nil {
		err = container.WriteState(b.dir, b.state)
	}
	if heard := b.listen(ours, s); heard != nil {
		err = heard // also of one that has ended already
	}
	if err != nil {
		_ = proc.Kill()
		wait(proc)
		return nil, err
	}
	return proc, nil
}

// startInit starts the first process in its namespaces. This thread is the main one, whose end it does not survive.
func (b *boot) startInit(files []*os.File) (proc *os.Process, err error) {
	// By its path: of what /proc/self/exe leads to, in this mount namespace, the new one could not make a mount.
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	argv := []string{os.Args[0], container.StageInit, b.spec.Dir}
	attr := &os.ProcAttr{Dir: "/", Env: os.Environ(), Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true, Cloneflags: container.NewNamespaces}}
	if b.spec.ProcessesOf == "" && b.spec.ProcessesBelow == "" {
		return os.StartProcess(self, argv, attr)
	}
	other := os.NewFile(container.ProcessesFd, "processes")
	defer other.Close()
	unix.CloseOnExec(container.ProcessesFd)
	if b.spec.ProcessesOf != "" {
		attr.Sys.Cloneflags &^= unix.CLONE_NEWPID
	}
	return container.StartIn(background, other, self, argv, attr)
}

// listen takes the first process's messages until it is the command; an error says why it is not.
func (b *boot) listen(socket int, s *streams) error {
	executes := false
	for message, rights := make([]byte, messageMost), make([]byte, unix.CmsgSpace(4)); ; {
		n, rn, _, _, err := unix.Recvmsg(socket, message, rights, unix.MSG_CMSG_CLOEXEC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("hear of the first process: %w", err)
		case n == 0 && executes:
			return nil
		case n == 0:
			return errors.New("the first process ended before it was the command")
		}
		switch text := message[1:n]; message[0] {
		case container.ReportRuns:
			executes = true
		case messageAccount:
			if err := b.learn(text, rights[:rn], s); err != nil {
				return fmt.Errorf("hear of the container's user: %w", err)
			}
		case container.ReportCommand:
			return fmt.Errorf("%w: %s", container.ErrStart, text)
		default:
			return errors.New(string(text))
		}
	}
}

// learn takes messageAccount.
func (b *boot) learn(text, rights []byte, s *streams) error {
	if err := json.Unmarshal(text, &b.user); err != nil {
		return err
	}
	b.state.User = &b.user
	if !s.tty {
		return nil
	}
	control, err := unix.ParseSocketControlMessage(rights)
	if err == nil && len(control) == 0 {
		err = errors.New("there is no terminal")
	}
	if err != nil {
		return err
	}
	fds, err := unix.ParseUnixRights(&control[0])
	if err != nil {
		return err
	}
	// In the poller, which a terminal's master can be in.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return err
	}
	s.master(os.NewFile(uintptr(fds[0]), "ptmx"), b.spec.Stdin)
	return nil
}
