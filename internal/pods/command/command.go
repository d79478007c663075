// Package command runs one of this machine's programs in a network namespace for a client that is not trusted with the machine: in a
// container of the program runc, as the user nobody with CAP_NET_RAW, with a read-only view of the machine's programs and no other files.
package command

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/console"
	runc "github.com/containerd/go-runc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/removetree"
	"packetwalk.dev/internal/pods/nodeapi"
)

// A Runner runs commands. Its fields are absolute paths, but for Cgroup, which is below the root of each hierarchy.
type Runner struct {
	Dir    string // for what runc keeps of the commands that run
	Cgroup string // the parent of each command's group
}

// A Place is where a command runs.
type Place struct {
	NetNS      string
	Hostname   string
	ResolvConf string // a file; "" for none
}

// shown are the machine's directories and files that commands see.
var shown = []string{"/usr", "/etc/alternatives", "/etc/ssl", "/etc/ca-certificates", "/etc/protocols", "/etc/services", "/etc/passwd", "/etc/group",
	"/etc/nsswitch.conf", "/etc/ld.so.cache", "/etc/iproute2"}

// links are the root's that lead into /usr where a distribution is merged, and directories elsewhere.
var links = []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// nobody is the user and the group that commands run as.
const nobody = 65534

// The limits of a command with all that it starts.
const (
	maxTasks  int64 = 512
	maxMemory int64 = 1 << 30 // bytes
)

// raw lets ping and tcpdump work.
var raw = []string{"CAP_NET_RAW"}

// prefix begins the names of containers and bundles.
const prefix = "exec-"

func (r Runner) runc() *runc.Runc { return &runc.Runc{Root: filepath.Join(r.Dir, "runc")} }

// EndAll ends the commands of an earlier process, whose clients have gone.
func (r Runner) EndAll() error {
	left, err := filepath.Glob(filepath.Join(r.Dir, prefix+"*"))
	for _, bundle := range left {
		_ = command{r.runc(), filepath.Base(bundle), bundle}.remove() // one that never began is not there
		err = errors.Join(err, removetree.Remove(bundle))
	}
	return err
}

// AdoptOrphans has this process be the parent of containers, which runc starts and leaves. It must be called before Run.
func AdoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// Run runs a command to its end, or until ctx ends; nothing that it started stays. Its error is a [utilexec.CodeExitError] where the
// command ended with another status than 0, 128+N by signal N, 127 where it cannot be executed.
func (r Runner) Run(ctx context.Context, at Place, args []string, tty bool, streams nodeapi.Streams) error {
	if _, err := exec.LookPath("runc"); err != nil {
		return fmt.Errorf("%w; install it: apt-get install runc", err)
	}
	id := prefix + strings.ToLower(rand.Text())
	bundle := filepath.Join(r.Dir, id)
	if err := os.MkdirAll(filepath.Join(bundle, "root"), 0o755); err != nil {
		return err
	}
	defer func() { _ = removetree.Remove(bundle) }()
	spec := at.spec(args, tty)
	spec.Linux.CgroupsPath = filepath.Join("/", r.Cgroup, id)
	text, err := json.Marshal(spec)
	if err == nil {
		err = atomicfile.Write(filepath.Join(bundle, "config.json"), text, 0o600)
	}
	if err != nil {
		return err
	}
	c := command{r.runc(), id, bundle}
	defer func() { _ = c.remove() }() // its status is more than that
	if tty {
		return c.onTerminal(ctx, streams)
	}
	return c.onPipes(ctx, streams)
}

// command is the container of one command.
type command struct {
	*runc.Runc
	id, bundle string
}

// runcTime is how long runc may take to create a container, to start it or to end it.
const runcTime = 30 * time.Second

// remove ends the container, also one that there is no more.
func (c command) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), runcTime)
	defer cancel()
	return c.Delete(ctx, c.id, &runc.DeleteOpts{Force: true})
}

// notFound is the status of a command that cannot be executed, as shells have it.
const notFound = 127

// run creates the container, starts it and waits for its end. Its process is ours to wait for ([AdoptOrphans]). Runc is
// not killed when ctx ends: a container that it made in part could not be removed. One that is not started is removed, because it holds the
// command's standard streams.
func (c command) run(ctx context.Context, o runc.CreateOpts) error {
	o.PidFile = filepath.Join(c.bundle, "pid")
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), runcTime)
	defer cancel()
	if err := c.Create(bounded, c.id, c.bundle, &o); bounded.Err() != nil {
		return errors.Join(fmt.Errorf("runc create: %w", bounded.Err()), c.remove())
	} else if err != nil {
		return nodeapi.ExitError(notFound, nil) // why is on its standard error
	}
	pid, err := runc.ReadPidFile(o.PidFile)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = c.Start(bounded, c.id)
	}
	if err != nil {
		return errors.Join(err, c.remove())
	}
	ended := make(chan unix.WaitStatus, 1)
	go func() {
		var status unix.WaitStatus
		for {
			if _, err := unix.Wait4(pid, &status, 0, nil); !errors.Is(err, unix.EINTR) {
				break
			}
		}
		ended <- status
	}()
	select {
	case status := <-ended:
		if status.Signaled() {
			return nodeapi.ExitError(128+int(status.Signal()), nil)
		}
		return nodeapi.ExitError(status.ExitStatus(), nil)
	case <-ctx.Done():
		return errors.Join(ctx.Err(), c.remove())
	}
}

// onTerminal runs the command on a new terminal.
func (c command) onTerminal(ctx context.Context, s nodeapi.Streams) error {
	socket, err := runc.NewTempConsoleSocket()
	if err != nil {
		return err
	}
	defer socket.Close()
	received := make(chan console.Console, 1)
	go func() {
		defer close(received)
		if terminal, err := socket.ReceiveMaster(); err == nil { // it ends when the socket is closed
			received <- terminal
		}
	}()
	ran := make(chan error, 1)
	go func() { ran <- c.run(ctx, runc.CreateOpts{ConsoleSocket: socket}) }()
	var terminal console.Console
	select {
	case terminal = <-received:
	case err := <-ran: // before it had one
		return err
	}
	defer terminal.Close()
	go func() {
		for size := range s.Resize {
			_ = terminal.Resize(console.WinSize{Height: size.Height, Width: size.Width})
		}
	}()
	if s.Stdin != nil {
		go func() { _, _ = io.Copy(terminal, s.Stdin) }()
	}
	shown := make(chan struct{})
	go func() {
		_, _ = io.Copy(s.Stdout, terminal) // ends with EIO when the command has
		close(shown)
	}()
	err = <-ran
	<-shown
	return err
}

// onPipes runs the command on pipes, and does not wait for a client that sends nothing more.
func (c command) onPipes(ctx context.Context, s nodeapi.Streams) error {
	pipes, err := runc.NewPipeIO(nobody, nobody)
	if err != nil {
		return err
	}
	defer pipes.Close()
	go func() {
		if s.Stdin != nil {
			_, _ = io.Copy(pipes.Stdin(), s.Stdin)
		}
		_ = pipes.Stdin().Close()
	}()
	var read sync.WaitGroup
	carry := func(to io.Writer, from io.Reader) {
		read.Go(func() { _, _ = io.Copy(cmp.Or(to, io.Discard), from) })
	}
	carry(s.Stdout, pipes.Stdout())
	carry(s.Stderr, pipes.Stderr())
	err = c.run(ctx, runc.CreateOpts{IO: pipes})
	_ = pipes.(runc.StartCloser).CloseAfterStart() // where runc itself did not start
	read.Wait()                                    // the container's end is that of all its processes
	return err
}

// spec is the container of one command (OCI runtime specification).
func (p Place) spec(args []string, tty bool) *specs.Spec {
	s := &specs.Spec{
		Version: "1.0.2", Hostname: p.Hostname, Root: &specs.Root{Path: "root", Readonly: true},
		Process: &specs.Process{
			Terminal: tty, Args: args, Cwd: "/", NoNewPrivileges: true, User: specs.User{UID: nobody, GID: nobody},
			Env:          []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "TERM=xterm", "HOSTNAME=" + p.Hostname},
			Capabilities: &specs.LinuxCapabilities{Bounding: raw, Effective: raw, Permitted: raw, Inheritable: raw, Ambient: raw},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755", "size=64k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		},
		Linux: &specs.Linux{
			Seccomp:   seccomp(),
			Resources: &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: new(maxTasks)}, Memory: &specs.LinuxMemory{Limit: new(maxMemory)}},
			Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
				{Type: specs.MountNamespace}, {Type: specs.NetworkNamespace, Path: p.NetNS}},
			MaskedPaths: []string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug",
				"/proc/scsi", "/sys/firmware", "/sys/fs/cgroup"},
			ReadonlyPaths: []string{"/proc/asound", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	for _, path := range append(shown[:len(shown):len(shown)], links...) {
		if _, err := os.Stat(path); err == nil {
			s.Mounts = append(s.Mounts, bind(path, path))
		}
	}
	if p.ResolvConf != "" {
		s.Mounts = append(s.Mounts, bind(p.ResolvConf, "/etc/resolv.conf"))
	}
	return s
}

func bind(from, to string) specs.Mount {
	return specs.Mount{Destination: to, Type: "bind", Source: from, Options: []string{"rbind", "ro", "nosuid", "nodev"}}
}

// refused are system calls of which a command needs none, and by which programs have got out of containers: other namespaces, mounts, and
// parts of the kernel where faults were found (docs.docker.com, "Seccomp security profiles for Docker").
var refused = []string{"unshare", "setns", "mount", "umount2", "pivot_root", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick",
	"mount_setattr", "bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key", "request_key", "io_uring_setup", "io_uring_enter",
	"io_uring_register", "open_by_handle_at", "name_to_handle_at", "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "syslog"}

// seccomp refuses those, new user namespaces, and sockets of AF_VSOCK, which is in no network namespace and leads out of virtual machines.
// C libraries go from clone3, whose flags no filter can see, to clone.
func seccomp() *specs.LinuxSeccomp {
	refuse := func(errno uint, args []specs.LinuxSeccompArg, names ...string) specs.LinuxSyscall {
		return specs.LinuxSyscall{Names: names, Action: specs.ActErrno, ErrnoRet: &errno, Args: args}
	}
	return &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{
		refuse(uint(unix.EPERM), nil, refused...),
		refuse(uint(unix.EPERM), []specs.LinuxSeccompArg{{Index: 0, Value: unix.CLONE_NEWUSER, ValueTwo: unix.CLONE_NEWUSER,
			Op: specs.OpMaskedEqual}}, "clone"),
		refuse(uint(unix.EPERM), []specs.LinuxSeccompArg{{Index: 0, Value: unix.AF_VSOCK, Op: specs.OpEqualTo}}, "socket"),
		refuse(uint(unix.ENOSYS), nil, "clone3"),
	}}
}
