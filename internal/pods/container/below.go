package container

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel makes a process namespace below the maker's own alone, and a thread that has entered another one by setns is still in its own
// (clone(2), EINVAL). So that a starter that is to start something below another process namespace has a copy of itself in there do it,
// which ends then. Who has processes in there may stop or end the copy: who ordered it waits for a bounded time, and ends what has begun.

// A fork is what a copy of this process is to do, or to be. All of it is made before: a copy has one thread, and Go's runtime does not go
// on in it, so that it makes system calls and nothing else.
type fork struct {
	path       *byte
	args, envs []*byte
	flags      uintptr // clone(2)'s, of what it starts
	report     int     // takes a word of each that has begun or failed
	copied     int32   // a pidfd of the copy
	words      word
	own        [4]uintptr // what is done with a signal when nobody has said so (sigaction(2), the kernel's struct)
}

// A word is what a copy says: a pidfd of what it has started, in the descriptors that it shares with us, or why there is none.
type word struct{ pidfd, errno int32 }

// wordSize is in bytes.
const wordSize = int(unsafe.Sizeof(word{}))

// signals is how many there are.
const signals = 64

// forkBelow executes a program of ours in new namespaces, whose process namespace is below the one that the calling thread has entered.
// copied is the process number of what has ended for that. Both are children of this process's parent (CLONE_PARENT).
func forkBelow(path string, p Process, flags uintptr) (pid, copied int, err error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return 0, 0, err
	}
	report := os.NewFile(uintptr(ends[0]), "report")
	defer report.Close()
	f := fork{flags: flags, report: ends[1]}
	f.path, err = unix.BytePtrFromString(path)
	if err == nil {
		f.args, err = syscall.SlicePtrFromStrings(p.Args)
	}
	if err == nil {
		f.envs, err = syscall.SlicePtrFromStrings(p.Env)
	}
	var none, all, own unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err == nil { // the copies have our handlers, which they must not call
		err = unix.PthreadSigmask(unix.SIG_SETMASK, &all, &own)
	}
	var errno syscall.Errno
	if err == nil {
		copied, errno = f.twice(&none)
		err = unix.PthreadSigmask(unix.SIG_SETMASK, &own, nil)
	}
	if errno != 0 {
		err = errno
	}
	if err == nil {
		err = awaitPidfd(int(f.copied))
	}
	unix.Close(ends[1]) // not before: the copy has the same descriptors
	if err == nil {
		pid, err = readWords(report)
	}
	if err == nil {
		return pid, copied, nil
	}
	return 0, copied, fmt.Errorf("below another process namespace: %w", err)
}

// twice makes the copy, and in the copy what becomes the program.
//
//go:nosplit
//go:norace
func (f *fork) twice(none *unix.Sigset_t) (copied int, errno syscall.Errno) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_FILES|unix.CLONE_PARENT|unix.CLONE_PIDFD|uintptr(unix.SIGCHLD), 0,
		uintptr(unsafe.Pointer(&f.copied)), 0, 0, 0)
	if errno != 0 || pid != 0 {
		return int(pid), errno
	}
	_, _, errno = unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0)
	if errno == 0 {
		pid, _, errno = unix.RawSyscall6(unix.SYS_CLONE, f.flags|unix.CLONE_PARENT|unix.CLONE_PIDFD|uintptr(unix.SIGCHLD), 0,
			uintptr(unsafe.Pointer(&f.words.pidfd)), 0, 0, 0)
	}
	if errno == 0 && pid == 0 {
		for sig := uintptr(1); sig <= signals; sig++ { // for the time between the next two; some cannot be set and need not be
			_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&f.own)), 0, signals/8, 0, 0)
		}
		if _, _, errno = unix.RawSyscall(unix.SYS_SETSID, 0, 0, 0); errno == 0 {
			_, _, errno = unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(none)), 0, signals/8, 0, 0)
		}
		if errno == 0 {
			_, _, errno = unix.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(f.path)), uintptr(unsafe.Pointer(&f.args[0])),
				uintptr(unsafe.Pointer(&f.envs[0])))
		}
	}
	f.words.errno = int32(errno)
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(f.report), uintptr(unsafe.Pointer(&f.words)), uintptr(wordSize))
	for {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

// awaitPidfd waits for the end of a process.
func awaitPidfd(fd int) error {
	for {
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); err != unix.EINTR {
			return err
		}
	}
}

// readWords reads until what was started is the program, or has ended, and gives its process number in our own process namespace, which
// /proc is of.
func readWords(report io.Reader) (pid int, err error) {
	text, err := io.ReadAll(report)
	pidfd := int32(-1)
	for ; len(text) >= wordSize; text = text[wordSize:] {
		w := *(*word)(unsafe.Pointer(&text[0]))
		if w.errno != 0 {
			return 0, syscall.Errno(w.errno)
		}
		pidfd = w.pidfd
	}
	if pidfd < 0 {
		return 0, cmp.Or(err, fmt.Errorf("what was to start it was ended"))
	}
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", pidfd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(info)) {
		if number, ok := strings.CutPrefix(line, "Pid:"); ok {
			return strconv.Atoi(strings.TrimSpace(number))
		}
	}
	return 0, fmt.Errorf("the kernel does not tell the number of a process by its descriptor")
}
