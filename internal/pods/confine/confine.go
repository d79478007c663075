// Package confine runs a static network server as the user nobody, which shares only a network namespace with the machine: the
// applications of VMs and internet hosts, and the name servers. The program has new mount, PID, IPC and UTS namespaces, a read-only
// root with the files of its Spec and nothing else, no capability but CAP_NET_BIND_SERVICE, and gets none by executing others.
//
// [Start] starts packetwalk-app with [Args], which becomes the program by [Main].
package confine

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/limitio"
)

// Spec describes the program.
type Spec struct {
	Hostname string            `json:"hostname"`
	Program  string            `json:"program"` // its file
	Args     []string          `json:"args"`    // with its name
	Env      []string          `json:"env"`
	Files    map[string]string `json:"files"` // by their paths in the root
	Mounts   []Mount           `json:"mounts"`
}

// Mount is a directory or a file of the machine in the program's root. Root owns it, or the user nobody where it is writable.
type Mount struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Writable    bool   `json:"writable,omitempty"`
}

// Nobody is the user and the group that programs run as.
const Nobody = 65534

// command is packetwalk-app's first argument.
const command = "confined"

// Args are packetwalk-app's for a spec in a file, which only root may write.
func Args(file string) []string { return []string{command, file} }

// Start starts packetwalk-app with Args through start, in the namespaces that it needs.
func Start(c *exec.Cmd, start func(*exec.Cmd) error) error {
	c.SysProcAttr.Cloneflags |= unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	return start(c)
}

// maxSpec is the most that is read of a spec, in bytes.
const maxSpec = 1 << 20

// Main becomes the program, where args are those of a process that Start started. It returns only with ok false, or when it cannot. The
// caller must have locked the goroutine to the main thread.
func Main(args []string) (status int, ok bool) {
	if len(args) != 3 || args[1] != command {
		return 0, false
	}
	err := execServer(args[2])
	fmt.Fprintln(os.Stderr, "packetwalk-app:", err)
	return 125, true
}

func execServer(file string) error {
	text, err := limitio.ReadFile(file, maxSpec)
	if err != nil {
		return err
	}
	var s Spec
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	if len(s.Args) == 0 {
		return fmt.Errorf("read %s: no program's name", file)
	}
	program := "/" + filepath.Base(s.Args[0]) // which ps and ss show
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return fmt.Errorf("set hostname: %w", err)
	}
	if err := s.changeRoot(filepath.Dir(file), Mount{Source: s.Program, Destination: program}); err != nil {
		return err
	}
	if err := dropPrivileges(); err != nil {
		return err
	}
	if err := unix.Exec(program, s.Args, s.Env); err != nil {
		return fmt.Errorf("execute %s: %w", s.Program, err)
	}
	return nil
}

// rootSize bounds the file system that the root is, which the files of the spec fill.
const rootSize = "size=2m,nr_inodes=1k,mode=755"

// changeRoot makes a root of the program and the spec's files and mounts, and leaves the machine's. at is a directory to mount it on for a
// moment.
func (s *Spec) changeRoot(at string, program Mount) error {
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts from the machine: %w", err)
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", flags, rootSize); err != nil {
		return fmt.Errorf("mount the root: %w", err)
	}
	root, err := os.OpenRoot(at)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, path := range slices.Sorted(maps.Keys(s.Files)) {
		name := strings.TrimPrefix(path, "/")
		if err := errors.Join(root.MkdirAll(filepath.Dir(name), 0o755), root.WriteFile(name, []byte(s.Files[path]), 0o644)); err != nil {
			return err
		}
	}
	if err := program.make(root, at, flags|unix.MS_RDONLY); err != nil {
		return fmt.Errorf("mount %s: %w", program.Source, err)
	}
	for _, m := range s.Mounts {
		own := flags | unix.MS_NOEXEC
		if !m.Writable {
			own |= unix.MS_RDONLY
		}
		if err := m.make(root, at, own); err != nil {
			return fmt.Errorf("mount %s: %w", m.Source, err)
		}
	}
	if err := os.Chdir(at); err != nil {
		return err
	}
	// The old root is put where the new one is, and taken away from there (pivot_root(2)).
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the machine's root: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|flags, ""); err != nil {
		return fmt.Errorf("make the root read-only: %w", err)
	}
	return os.Chdir("/")
}

func (m *Mount) make(root *os.Root, at string, flags uintptr) error {
	info, err := os.Lstat(m.Source)
	if err != nil {
		return err
	}
	name := strings.TrimPrefix(m.Destination, "/")
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if info.IsDir() {
		err = root.MkdirAll(name, 0o755)
	} else {
		err = root.WriteFile(name, nil, 0o644)
	}
	if err != nil {
		return err
	}
	to := filepath.Join(at, m.Destination)
	if err := unix.Mount(m.Source, to, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", to, "", flags|unix.MS_REMOUNT|unix.MS_BIND, "")
}

// kept is the program's one capability: listen on ports below 1024.
const kept = unix.CAP_NET_BIND_SERVICE

// dropPrivileges has the calling thread run as the user nobody, with one capability that the program inherits (capabilities(7), "ambient").
func dropPrivileges() error {
	runtime.LockOSThread()
	for c := uintptr(0); ; c++ {
		if _, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0); err != nil {
			break // the kernel has no more
		}
		if c == kept {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	ids := func(call uintptr) error {
		if _, _, errno := unix.RawSyscall(call, Nobody, Nobody, Nobody); errno != 0 { // of this thread alone: it executes the program
			return errno
		}
		return nil
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return fmt.Errorf("leave groups: %w", errno)
	}
	if err := errors.Join(unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0), ids(unix.SYS_SETRESGID), ids(unix.SYS_SETRESUID)); err != nil {
		return fmt.Errorf("become user nobody: %w", err)
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: 1 << kept, Permitted: 1 << kept, Inheritable: 1 << kept}}
	if err := unix.Capset(&head, &data[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, kept, 0, 0); err != nil {
		return fmt.Errorf("keep the capability to listen on all ports: %w", err)
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}
