package boot

import (
	"encoding/json"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/container"
)

// begin is the container's first process on its way: it makes the container and becomes the command, the first process itself, as with
// runc. It tells its shim by messages.
func begin(dir string) int {
	b := &boot{report: os.NewFile(container.ReportFd, "report")}
	unix.CloseOnExec(container.ReportFd)
	unix.Umask(0o022)
	b.fail(b.become(dir))
	return 1
}

func (b *boot) become(dir string) error {
	if err := hide(); err != nil {
		return err
	}
	if err := endWithShim(); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	if b.spec, err = container.ReadSpec(root); err != nil {
		return err
	}
	root.Close()
	if err := b.makeContainer(); err != nil {
		return err
	}
	if err := b.ownStreams(); err != nil {
		return err
	}
	return b.spec.Become(container.Process{
		Args: b.spec.Argv(), Env: b.spec.Environ(&b.user, nil, b.spec.TTY), Dir: b.spec.WorkingDir, TTY: b.spec.TTY, User: b.user,
	}, func() error {
		if err := endWithShim(); err != nil { // what a change of user undoes (PR_SET_PDEATHSIG(2const))
			return err
		}
		return b.tell(container.ReportRuns, nil, nil) // which fails when the shim has ended already
	})
}

// endWithShim has the kernel end this process when its parent does, also when it is the command; not one that gets other rights then, which
// who watches the shim ends.
func endWithShim() error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("end with the shim: %w", err)
	}
	return nil
}

// ownStreams gives the standard streams to the container's user, who may open them by /proc, and tells the shim who that is. On a terminal
// they are one of the container's own.
func (b *boot) ownStreams() error {
	account, err := json.Marshal(b.user)
	if err != nil {
		return err
	}
	if !b.spec.TTY {
		for fd := range 3 {
			if fd == 0 && !b.spec.Stdin {
				continue // the machine's null device
			}
			if err := unix.Fchown(fd, b.user.UID, -1); err != nil {
				return fmt.Errorf("give the standard streams to user %d: %w", b.user.UID, err)
			}
		}
		return b.tell(messageAccount, account, nil)
	}
	master, terminal, err := container.OpenTerminal(b.user.UID)
	if err != nil {
		return err
	}
	for fd := range 3 {
		if err := unix.Dup3(int(terminal.Fd()), fd, 0); err != nil {
			return fmt.Errorf("standard streams on a terminal: %w", err)
		}
	}
	return b.tell(messageAccount, account, unix.UnixRights(int(master.Fd())))
}

// tell sends a message to the shim.
func (b *boot) tell(kind byte, text, rights []byte) error {
	if err := unix.Sendmsg(container.ReportFd, append([]byte{kind}, text...), rights, nil, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("tell the shim: %w", err)
	}
	return nil
}
