package boot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/app"
	"packetwalk.dev/internal/pods/container"
)

var background = context.Background()

// A boot is a container on its way, and what keeps it: its shim, or a built-in application that is its first process.
type boot struct {
	dir    *os.Root
	spec   container.Spec
	state  container.State
	user   container.Account
	log    *logFile
	attach *attachServer
	report *os.File
	once   sync.Once
}

// first is the life of a built-in application that is its container's first process.
func first(dir string) int {
	runtime.UnlockOSThread() // no thread is special here
	b := &boot{report: os.NewFile(container.ReportFd, "report")}
	unix.CloseOnExec(container.ReportFd)
	unix.Umask(0o022)
	if err := hide(); err != nil {
		b.fail(err)
		return 1
	}
	program, err := b.prepare(dir)
	if err != nil {
		b.fail(err)
		return 1
	}
	status := b.application(program)
	b.end(status)
	return status.ExitStatus()
}

// hide keeps the container's processes from what this one has open, which leads to the machine's files (ptrace(2), access mode checking).
func hide() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hide the first process: %w", err)
	}
	return nil
}

// prepare goes from fresh namespaces to a container with nothing running in it. What needs the machine's files comes before makeRoot.
func (b *boot) prepare(dir string) (program app.Program, err error) {
	if err = endFirst(); err != nil {
		return program, err
	}
	if b.dir, err = aside(dir); err != nil {
		return program, err
	}
	if b.spec, err = container.ReadSpec(b.dir); err != nil {
		return program, err
	}
	if b.state.Ident, err = container.Self(); err != nil {
		return program, err
	}
	// From here on Adopt can find us, whatever becomes of who started us.
	if err = container.WriteState(b.dir, b.state); err != nil {
		return program, err
	}
	if b.log, err = b.openLog(aside); err != nil {
		return program, err
	}
	if err = b.makeContainer(); err != nil {
		return program, err
	}
	a, err := app.ByName(b.spec.App)
	if err != nil {
		return program, err
	}
	program, ok := a.Program(b.spec.Argv()[0])
	if !ok {
		return program, fmt.Errorf("%s is no program of %s", b.spec.Argv()[0], a.Name)
	}
	return program, b.starterLives()
}

// endFirst: when memory runs out the kernel ends containers before any program of the user's (proc_pid_oom_score_adj(5)); children inherit
// it.
func endFirst() error {
	if err := os.WriteFile("/proc/self/oom_score_adj", container.EndFirst, 0); err != nil {
		return fmt.Errorf("be the first to end when memory runs out: %w", err)
	}
	return nil
}

// makeContainer makes all that the container's first process is to find, in fresh namespaces. The machine's files are gone afterwards.
func (b *boot) makeContainer() (err error) {
	if err = b.spec.Group.Join(); err != nil {
		return err
	}
	if b.spec.Hostname != "" {
		if err = unix.Sethostname([]byte(b.spec.Hostname)); err != nil {
			return fmt.Errorf("set hostname %q: %w", b.spec.Hostname, err)
		}
	} else if b.spec.Hostname, err = os.Hostname(); err != nil {
		return err
	}
	if b.spec.NetNS == "" {
		if err = loopbackUp(); err != nil {
			return err
		}
	}
	if err = container.SetSysctls(b.spec.Sysctls); err != nil {
		return err
	}
	if err = makeRoot(&b.spec); err != nil {
		return err
	}
	if b.user, err = account(&b.spec); err != nil {
		return err
	}
	b.state.User = &b.user
	if b.spec.WorkingDir != "" {
		if dir, err := mountPoint(filepath.Clean(b.spec.WorkingDir), true); err == nil { // as runc does; where it cannot be, Chdir says so
			dir.Close()
		}
	}
	return nil
}

// starterLives makes an end of a start whose starter died before there was a state to adopt the container by.
func (b *boot) starterLives() error {
	poll := []unix.PollFd{{Fd: container.ReportFd}}
	if n, err := unix.Poll(poll, 0); err == nil && n > 0 && poll[0].Revents&unix.POLLERR != 0 {
		return errors.New("the process that started the container has ended")
	}
	return nil
}

// loopbackUp sets lo up in a network namespace of our own (netdevice(7)).
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err == nil {
		req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
		err = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
	}
	if err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// runs reports to Start that the container runs, once.
func (b *boot) runs() {
	b.once.Do(func() {
		b.state.StartedAt = time.Now()
		if err := container.WriteState(b.dir, b.state); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		b.send(container.ReportRuns, "")
	})
}

// fail reports to Start why there is no container.
func (b *boot) fail(err error) {
	kind := byte(container.ReportMachine)
	message := err.Error()
	if errors.Is(err, container.ErrStart) {
		kind = container.ReportCommand
		message = strings.TrimPrefix(message, container.ErrStart.Error()+": ")
	}
	b.once.Do(func() { b.send(kind, message) })
}

func (b *boot) send(kind byte, message string) {
	_, _ = b.report.Write(append([]byte{kind}, message...)) // who started us may be gone; that is no reason to end
	b.report.Close()
}

func (b *boot) end(status syscall.WaitStatus) {
	if b.state.StartedAt.IsZero() {
		return // Start was told why
	}
	exit := container.NewExit(status, b.state.StartedAt, b.spec.Group)
	b.state.Exit = &exit
	if err := container.WriteState(b.dir, b.state); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// application is a built-in program in this process.
func (b *boot) application(program app.Program) syscall.WaitStatus {
	app.BuryOthers()
	ctx, stop := signal.NotifyContext(background, unix.SIGTERM, unix.SIGINT, unix.SIGQUIT)
	defer stop()
	stdout, stderr := b.log.stream("stdout"), b.log.stream("stderr")
	defer stdout.Close()
	defer stderr.Close()
	// What other processes of the container write to its log.
	others := &streams{}
	err := others.openFirst()
	if err == nil {
		err = b.confine()
	}
	if err != nil {
		b.fail(err)
		return exited(1)
	}
	others.begin(b)
	env := b.spec.Environ(&b.user, nil, false)
	code := program.Run(ctx, &app.Process{Args: b.spec.Argv(), Env: env, Stdout: stdout, Stderr: stderr, Ready: b.runs})
	b.runs() // a program that ended before it served did run
	_ = unix.Kill(-1, unix.SIGKILL)
	others.finish()
	return exited(code)
}

func exited(code int) syscall.WaitStatus { return syscall.WaitStatus(code & 0xff << 8) }

// confine takes this process, and what it executes, to the container's working directory, system calls and capabilities.
func (b *boot) confine() error {
	keep, err := b.spec.Capabilities()
	if err != nil {
		return err
	}
	if err := b.spec.Chdir(b.spec.WorkingDir); err != nil {
		return err
	}
	if err := container.FilterProcess(); err != nil {
		return err
	}
	return limitProcess(keep)
}

// limitProcess sets the capabilities of all threads.
func limitProcess(keep container.CapSet) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var now [2]unix.CapUserData
	if err := unix.Capget(&header, &now[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	for i := range now {
		half := uint32(keep >> (32 * i))
		now[i] = unix.CapUserData{Permitted: now[i].Permitted & half, Effective: now[i].Permitted & half}
	}
	return allThreads(&header, &now)
}
