package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/procstat"
)

// handle is a process that runs. done closes when it has ended, after exit is set.
type handle struct {
	pid   int
	since time.Time
	fd    int // pid file descriptor (pidfd_open(2)): a signal through it cannot reach a later process of the same number
	done  chan struct{}
	exit  string // how it ended: "exit status 1", "signal: killed"
}

// spawn starts the process through start and records it in its pid file.
func spawn(process Process, start Start) (*handle, error) {
	log, err := openLog(process.LogFile)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	command := exec.Command(process.Path, process.Args...)
	command.Env, command.Dir = process.Env, process.Dir
	command.Stdout, command.Stderr = log, log // a file, not a pipe: the process writes on when we are gone
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := start(command); err != nil {
		return nil, fmt.Errorf("start %s: %w", process.Name, err)
	}
	h := &handle{pid: command.Process.Pid, since: time.Now(), done: make(chan struct{})}
	// Our own child cannot be reaped before Wait, so its number is still its own here.
	h.fd, err = unix.PidfdOpen(h.pid, 0)
	if err == nil {
		err = writePid(process.PidFile, h.pid)
	}
	if err != nil {
		err = errors.Join(err, command.Process.Kill(), command.Wait())
		return nil, fmt.Errorf("record %s: %w", process.Name, err)
	}
	go func() {
		h.exit = describe(command.Wait(), command.ProcessState)
		close(h.done)
	}()
	return h, nil
}

// describe says how a child ended.
func describe(err error, state *os.ProcessState) string {
	if state != nil {
		return state.String()
	}
	return err.Error()
}

// adopt finds the process that the pid file names, when it is still that process; nil when there is none.
func adopt(process Process) (*handle, error) {
	pid, started, err := readPid(process.PidFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("adopt %s, pid %d: %w", process.Name, pid, err)
	}
	// The descriptor holds whatever has the number now; its start time shows whether that is the recorded process.
	alive, err := runs(pid, started)
	if err != nil || !alive {
		unix.Close(fd)
		return nil, err
	}
	h := &handle{pid: pid, since: bootTime(started), fd: fd, done: make(chan struct{})}
	go func() {
		h.exit = waitPidfd(fd)
		close(h.done)
	}()
	return h, nil
}

// runs reports whether the process that has the number was started then and has not ended.
func runs(pid int, started uint64) (bool, error) {
	stat, err := procstat.Read("/proc/" + strconv.Itoa(pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("adopt pid %d: %w", pid, err)
	}
	return stat.Start == started && stat.State != procstat.Zombie, nil
}

// waitPidfd waits for the end of a process that is not our child; how it ended only its parent learns.
func waitPidfd(fd int) string {
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if err == nil {
			return "ended (status unknown: started by an earlier run)"
		}
		if !errors.Is(err, unix.EINTR) {
			return "lost: " + err.Error()
		}
	}
}

// signal sends a signal; a process that has ended already is no error.
func (h *handle) signal(signal unix.Signal) error {
	err := unix.PidfdSendSignal(h.fd, signal, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// close frees the descriptor; only after done.
func (h *handle) close() { unix.Close(h.fd) }

// stop ends the process: SIGTERM, and SIGKILL to what is still there after grace.
func (h *handle) stop(grace time.Duration) error {
	if err := h.signal(unix.SIGTERM); err != nil {
		return err
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-h.done:
		return nil
	case <-timer.C:
	}
	if err := h.signal(unix.SIGKILL); err != nil {
		return err
	}
	<-h.done
	return nil
}

// writePid records a process: its number and its start time, clock ticks since boot, which no later process of the same number shares.
func writePid(path string, pid int) error {
	if path == "" {
		return nil
	}
	stat, err := procstat.Read("/proc/" + strconv.Itoa(pid))
	if err != nil {
		return err
	}
	return atomicfile.Write(path, fmt.Appendf(nil, "%d %d\n", pid, stat.Start), 0o600)
}

func readPid(path string) (pid int, start uint64, err error) {
	if path == "" {
		return 0, 0, fs.ErrNotExist
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	pid, start, ok := parsePid(string(text))
	if !ok {
		return 0, 0, fmt.Errorf("pid file %s: %q is not a pid and a start time; remove it after ending that process by hand", path, text)
	}
	return pid, start, nil
}

func parsePid(text string) (pid int, start uint64, ok bool) {
	fields := strings.Fields(text)
	if len(fields) != 2 {
		return 0, 0, false
	}
	pid, err := strconv.Atoi(fields[0])
	if err != nil || pid <= 0 {
		return 0, 0, false
	}
	start, err = strconv.ParseUint(fields[1], 10, 64)
	return pid, start, err == nil
}

// bootTime turns clock ticks since boot into a time of day.
func bootTime(ticks uint64) time.Time {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return time.Now()
	}
	age := time.Duration(now.Nano()) - time.Duration(ticks)*procstat.Tick
	return time.Now().Add(-age)
}
