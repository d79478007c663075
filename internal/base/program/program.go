//go:build linux

package program

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// MaxOutput is how much a program may print whose Command says nothing else, in bytes. The most that we know of are a million connections.
const MaxOutput = 256 << 20

// maxWords is how much is kept of what a program complains, in bytes.
const maxWords = 64 << 10

// ending is how long a program that was killed may take to be gone.
const ending = 300 * time.Millisecond

// draining is how long it may take to read what a program that has ended left in its pipes: at most 64 KiB, on a machine that may be busy.
const draining = 5 * time.Second

// Command is one run of a program.
type Command struct {
	// Path of the program; a name without a slash is looked for on the PATH.
	Path string
	// Args are its arguments; Name is the one before them, for programs that go by it, "" for Path.
	Args []string
	Name string
	// Env is its environment, nil for ours; Stdin what it reads, nil for nothing; Files are open in it from descriptor 3 on.
	Env   []string
	Stdin []byte
	Files []*os.File
	// Root is the folder that it sees as /, and Path is in; "" for ours.
	Root string
	// Dir is its working directory, "" for ours, or / in Root; As the user that it runs as, nil for ours.
	Dir string
	As  *syscall.Credential
	// Limit is how long it may take; 0 for [Limit]. MaxOutput is how much it may print, in bytes; 0 for [MaxOutput].
	Limit     time.Duration
	MaxOutput int
	// Fails matches errors on standard error that its exit status does not show; nil for none.
	Fails *regexp.Regexp
	// In runs a function on a thread of its own, for instance in a network namespace, and waits for it; nil for any thread.
	In func(func() error) error
	// Started is told the process's number; it may be nil.
	Started func(pid int)
}

// ErrIncomplete is why a program failed that ended with status 0.
var ErrIncomplete = errors.New("incomplete output")

// Error is why a program failed.
type Error struct {
	Command string // with its arguments
	Err     error  // an *exec.ExitError, an error wrapping exec.ErrNotFound, the cause of the context's end, that the limit was reached
	Stderr  string // what it said, on one line
}

// Error returns one line.
func (e *Error) Error() string {
	if e.Stderr == "" {
		return fmt.Sprintf("%s: %v", e.Command, e.Err)
	}
	return fmt.Sprintf("%s: %v: %s", e.Command, e.Err, e.Stderr)
}

// Unwrap gives Err.
func (e *Error) Unwrap() error { return e.Err }

// Output runs the program and returns what it printed, also with an error, which is an *Error. The program and those that it started are
// killed when the context ends or the limit is reached, and Output returns soon after, even where the kernel does not let the program go;
// the program itself is also killed when our process ends in any way.
func (c Command) Output(ctx context.Context) ([]byte, error) {
	limit := cmp.Or(c.Limit, Limit)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it did not end within %v and was killed", limit))
	defer cancel()
	out, words := output{limit: cmp.Or(c.MaxOutput, MaxOutput)}, output{limit: maxWords, passOver: true}
	cmd := c.prepare(ctx)
	cmd.Stdout, cmd.Stderr = &out, &words
	in := c.In
	if in == nil {
		in = onThread
	}
	done := make(chan error, 1)
	go func() {
		// The kernel sends Pdeathsig when the thread ends that started the program: the thread stays until it has ended.
		done <- in(func() error { return c.run(cmd) })
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done:
		case <-time.After(3 * ending):
			return nil, &Error{c.words(), fmt.Errorf("%w; the kernel does not let it go", context.Cause(ctx)), ""}
		}
	}
	if err == nil && (c.Fails == nil || !c.Fails.MatchString(words.String())) {
		return out.Bytes(), nil
	}
	switch {
	case err == nil:
		err = ErrIncomplete
	case out.over:
		err = fmt.Errorf("it printed more than %d bytes and was ended", out.limit)
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	if errors.Is(err, exec.ErrNotFound) {
		err = fmt.Errorf("%w; install it: apt-get install %s", err, Package(c.Path))
	}
	return out.Bytes(), &Error{c.words(), err, strings.Join(strings.Fields(words.String()), " ")}
}

// NotStarted reports whether an error of Output says that the program could not be started: it is not there, may not be run, is for another
// machine, or lacks what it is linked with (126 and 127 are what shells and dynamic linkers end with then).
func NotStarted(err error) bool {
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return ended.ExitCode() == 126 || ended.ExitCode() == 127
	}
	var path *fs.PathError // of fork and exec
	return errors.As(err, &path) || errors.Is(err, exec.ErrNotFound)
}

// output keeps what is written up to a limit. What is over is passed over, or ends the program by a broken pipe. It gives no buffer away
// (io.ReaderFrom), whose growth would have no limit.
type output struct {
	buffer   bytes.Buffer
	limit    int
	passOver bool
	over     bool
}

func (o *output) Write(b []byte) (int, error) {
	room := min(len(b), o.limit-o.buffer.Len())
	o.buffer.Write(b[:room])
	if room == len(b) {
		return room, nil
	}
	if o.over = true; o.passOver {
		return len(b), nil
	}
	return room, io.ErrShortWrite
}

func (o *output) Bytes() []byte  { return o.buffer.Bytes() }
func (o *output) String() string { return o.buffer.String() }

func (c Command) prepare(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.Path, c.Args...)
	cmd.Args[0] = cmp.Or(c.Name, c.Path)
	cmd.Env, cmd.ExtraFiles, cmd.Dir = c.Env, c.Files, c.Dir
	if c.Stdin != nil {
		cmd.Stdin = bytes.NewReader(c.Stdin)
	}
	if c.Root != "" {
		cmd.Dir = cmp.Or(c.Dir, "/")
	}
	// A group of its own: a terminal's Ctrl-C is for us, and it can be killed with all that it started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: c.Root, Credential: c.As, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = draining
	return cmd
}

func (c Command) run(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	if c.Started != nil {
		c.Started(cmd.Process.Pid)
	}
	err := cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) { // one of the group has its output open, so that the group's number is still its own
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		err = errors.New("it left something behind that holds its output open")
	}
	return err
}

func (c Command) words() string {
	return strings.Join(append([]string{cmp.Or(c.Name, c.Path)}, c.Args...), " ")
}

func onThread(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return f()
}

// Package returns Debian's package of a program that we run.
func Package(name string) string {
	name = name[strings.LastIndexByte(name, '/')+1:]
	switch {
	case name == "nft":
		return "nftables"
	case name == "ip", name == "bridge":
		return "iproute2"
	case name == "mkfs.ext4":
		return "e2fsprogs"
	case name == "modprobe":
		return "kmod"
	case name == "unshare":
		return "util-linux"
	case strings.HasPrefix(name, "iptables"), strings.HasPrefix(name, "ip6tables"):
		return "iptables"
	case strings.HasPrefix(name, "ebtables"):
		return "ebtables"
	}
	return name
}
