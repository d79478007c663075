package boot

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/container"
)

// below starts a stage in fresh namespaces as a child of its own parent, and tells that its pid: what container.StartBelow is at work on.
func below(stage, dir string) int {
	report := os.NewFile(container.StartedFd, "started")
	unix.CloseOnExec(container.StartedFd)
	said, err := startBelow(stage, dir)
	if err != nil {
		said = err.Error()
	}
	_, _ = report.WriteString(said) // who listens may have ended; what was started finds that out itself
	return 0
}

func startBelow(stage, dir string) (pid string, err error) {
	if err := errors.Join(hide(), endWithShim()); err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	fd := -1
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr, os.NewFile(container.ReportFd, "report")}
	_, err = os.StartProcess(self, []string{os.Args[0], stage, dir}, &os.ProcAttr{Dir: "/", Env: os.Environ(), Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true, Cloneflags: container.NewNamespaces | unix.CLONE_PARENT, PidFD: &fd}})
	if err != nil {
		return "", err
	}
	// The pid in this process's own namespace is of no use to our parent. /proc is that of the mount namespace, which is its own.
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(info)) {
		if number, ok := strings.CutPrefix(line, "Pid:"); ok {
			return strings.TrimSpace(number), nil
		}
	}
	return "", errors.New("the kernel does not tell the pid of a pidfd")
}
