package container

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/pods/beneath"
)

// Environ is the environment of a process in the container: defaults, the image's, the Spec's, extra; of two with one name the later
// counts.
func (s *Spec) Environ(who *Account, extra []string, tty bool) []string {
	env := []string{"PATH=" + program.Path, "HOME=" + who.Home, "HOSTNAME=" + s.Hostname}
	if tty {
		env = append(env, "TERM=xterm")
	}
	for _, more := range [][]string{s.ImageEnv, s.Env, extra} {
		env = append(env, more...)
	}
	return lastOfEach(env)
}

// Argv is the command line.
func (s *Spec) Argv() []string { return slices.Concat(s.Command, s.Args) }

// lastOfEach keeps the last of the pairs with one name, at the place of the first.
func lastOfEach(env []string) []string {
	place := make(map[string]int, len(env))
	kept := env[:0:0]
	for _, pair := range env {
		name, _, _ := strings.Cut(pair, "=")
		if i, ok := place[name]; ok {
			kept[i] = pair
			continue
		}
		place[name] = len(kept)
		kept = append(kept, pair)
	}
	return kept
}

// Getenv finds a variable's value in an environment.
func Getenv(env []string, name string) string {
	for _, pair := range env {
		if n, v, _ := strings.Cut(pair, "="); n == name {
			return v
		}
	}
	return ""
}

// LookPath finds the executable file of a command as execvp does, with the environment's PATH, in the calling thread's file system. Its
// errors have ErrStart in their chain and the words that container engines use.
func LookPath(name string, env []string, dir string) (string, error) {
	if name == "" {
		return "", fmt.Errorf("%w: no command specified", ErrStart)
	}
	if strings.ContainsRune(name, '/') {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		if err := executable(path); err != nil {
			return "", fmt.Errorf("%w: exec: %q: %w", ErrStart, name, err)
		}
		return path, nil
	}
	var denied error
	for _, d := range filepath.SplitList(Getenv(env, "PATH")) {
		path := filepath.Join(dir, d, name)
		if filepath.IsAbs(d) {
			path = filepath.Join(d, name)
		}
		err := executable(path)
		if err == nil {
			return path, nil
		}
		if errors.Is(err, os.ErrPermission) {
			denied = err
		}
	}
	if denied != nil {
		return "", fmt.Errorf("%w: exec: %q: %w", ErrStart, name, denied)
	}
	return "", fmt.Errorf("%w: exec: %q: executable file not found in $PATH", ErrStart, name)
}

func executable(path string) error {
	file, err := beneath.InRoot("/", path, unix.O_PATH)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.IsDir() {
		return &os.PathError{Op: "exec", Path: path, Err: syscall.EISDIR}
	}
	if info.Mode()&0o111 == 0 {
		return &os.PathError{Op: "exec", Path: path, Err: syscall.EACCES}
	}
	return nil
}

// A Process is a command that Become executes.
type Process struct {
	Args []string
	Env  []string
	Dir  string
	TTY  bool // the standard input is a terminal, to be the controlling one
	User Account
}

// Become executes a command with the container's capabilities and working directory in place of the calling process, on its main thread
// and with its standard streams; it leads a session already. last is called when nothing is left but the execution. It returns what went
// wrong; errors of the command have ErrStart in their chain.
func (s *Spec) Become(p Process, last func() error) error {
	path, err := s.limit(p)
	if err != nil {
		return err
	}
	if p.TTY {
		if err := unix.IoctlSetInt(0, unix.TIOCSCTTY, 0); err != nil {
			return fmt.Errorf("make the terminal the controlling one: %w", err)
		}
	}
	if err := p.User.become(); err != nil {
		return err
	}
	if err := last(); err != nil {
		return err
	}
	return fmt.Errorf("%w: exec: %q: %w", ErrStart, p.Args[0], unix.Exec(path, p.Args, p.Env))
}

// limit takes the calling thread to the working directory and takes from what it executes next all that the container has not; it gives the
// executable file's path.
func (s *Spec) limit(p Process) (path string, err error) {
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // a working directory of this thread's own
		return "", fmt.Errorf("spawn: %w", err)
	}
	if err := s.Chdir(p.Dir); err != nil {
		return "", err
	}
	if path, err = LookPath(first(p.Args), p.Env, cmp.Or(p.Dir, "/")); err != nil {
		return "", err
	}
	keep, err := s.Capabilities()
	if err != nil {
		return "", err
	}
	if err := limitThread(keep, s.NoNewPrivs); err != nil {
		return "", err
	}
	return path, filterThread()
}

// Chdir takes the calling thread, and those that share its working directory, to one of the container's; "" is /. It goes by descriptor and
// not by a link of /proc, which would lead to what this process has open of the machine.
func (s *Spec) Chdir(dir string) error {
	to, err := beneath.InRoot("/", cmp.Or(dir, "/"), unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		defer to.Close()
		err = unix.Fchdir(int(to.Fd()))
	}
	if err != nil {
		return fmt.Errorf("%w: working directory: %w", ErrStart, err)
	}
	return nil
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// credential is the account's; nil for root without more, who we are already.
func (a *Account) credential() *syscall.Credential {
	if a.Root() {
		return nil
	}
	c := &syscall.Credential{Uid: uint32(a.UID), Gid: uint32(a.GID)}
	for _, g := range a.Groups {
		c.Groups = append(c.Groups, uint32(g))
	}
	return c
}

// become takes this process from root to the account.
func (a *Account) become() error {
	if a.Root() {
		return nil
	}
	err := syscall.Setgroups(a.Groups)
	if err == nil {
		err = syscall.Setresgid(a.GID, a.GID, a.GID)
	}
	if err == nil {
		err = syscall.Setresuid(a.UID, a.UID, a.UID)
	}
	if err != nil {
		return fmt.Errorf("become user %d, group %d: %w", a.UID, a.GID, err)
	}
	return nil
}

// OpenTerminal makes a pseudo-terminal of the container's, in which the calling thread is, owned by uid. No link is followed, and the
// terminal is asked of its master: the container's processes may have put anything into /dev (ioctl_tty(2), TIOCGPTPEER).
func OpenTerminal(uid int) (master, terminal *os.File, err error) {
	how := unix.OpenHow{Flags: unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, "/dev/pts/ptmx", &how)
	if err != nil {
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	err = onFd(master, func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		if errno != 0 {
			return errno
		}
		n, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
		terminal = os.NewFile(peer, fmt.Sprintf("/dev/pts/%d", n))
		return err
	})
	if err == nil {
		err = terminal.Chown(uid, -1)
	}
	if err != nil {
		closeFiles([]*os.File{master, terminal})
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	return master, terminal, nil
}

// Resize sets a terminal's size.
func Resize(master *os.File, s Size) error {
	return onFd(master, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: s.Height, Col: s.Width})
	})
}

// onFd calls f with the file's descriptor and leaves the file in the poller, which File.Fd would not.
func onFd(file *os.File, f func(fd int) error) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := conn.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}

// SetSysctls writes settings by their names below /proc/sys, in the calling thread's namespaces.
func SetSysctls(values map[string]string) error {
	for name, value := range values {
		if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0); err != nil {
			return fmt.Errorf("set sysctl: %w", err)
		}
	}
	return nil
}
