package isolation

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// nodeNamespaces are those of a node.
const nodeNamespaces = unix.CLONE_NEWNET | unix.CLONE_NEWUTS |
	unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP

// enter moves the calling thread into the namespaces of a node's process at once (setns(2), with a pidfd). There is no moment at which the
// pid could be another process's. The thread gets the root directory of the process. The mount namespace has another root if the node was
// created in a chroot.
func enter(pidfd int) error {
	pid, err := pidOf(pidfd)
	if err != nil {
		return fmt.Errorf("enter the node: %w", err)
	}
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("enter the node: %w", err)
	}
	defer unix.Close(root)
	err = unix.PidfdSendSignal(pidfd, 0, nil, 0) // the pid is still the process's
	if err == nil {
		err = unix.Unshare(unix.CLONE_FS)
	}
	if err == nil {
		err = unix.Setns(pidfd, nodeNamespaces)
	}
	if err == nil {
		err = errors.Join(unix.Fchdir(root), unix.Chroot("."))
	}
	if err != nil {
		return fmt.Errorf("enter the node: %w", err)
	}
	return nil
}

// pidOf returns the process number of a pidfd's process (proc_pid_fdinfo(5)).
func pidOf(pidfd int) (pid int, err error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", pidfd))
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(info), "\nPid:")
	if _, err := fmt.Sscan(after, &pid); err != nil || pid <= 0 {
		return 0, unix.ESRCH // it has ended
	}
	return pid, nil
}

// copied is what /proc/self/exe of the copy of this program that runPrivately makes begins with.
const copied = "/memfd:packetwalk-app"

// runPrivately executes this program again, with the same arguments, from a copy in memory that no process can write to. A process that
// starts on a node shows there, as /proc/PID/exe, what it executes before it is the node's own program. That must not be the machine's file
// (CVE-2019-5736).
func runPrivately() error {
	if path, err := os.Readlink(Self); err != nil || strings.HasPrefix(path, copied) {
		return err
	}
	fd, err := unix.MemfdCreate("packetwalk-app", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("packetwalk-app", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return fmt.Errorf("copy this program: %w", err)
	}
	to := os.NewFile(uintptr(fd), "packetwalk-app")
	from, err := os.Open(Self)
	if err != nil {
		return err
	}
	defer from.Close()
	if _, err := io.Copy(to, from); err != nil {
		return fmt.Errorf("copy this program: %w", err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("seal the copy of this program: %w", err)
	}
	return fmt.Errorf("execute the copy of this program: %w", unix.Exec(fmt.Sprintf("/proc/self/fd/%d", fd), os.Args, os.Environ()))
}
