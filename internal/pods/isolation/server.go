package isolation

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/limitio"
)

// Server is a static network server that runs as the user nobody and shares only a network namespace with the machine: the applications of
// VMs and internet hosts, and the name servers. It has new mount, PID, IPC and UTS namespaces, a read-only root with its own files and
// nothing else, no capability but CAP_NET_BIND_SERVICE, and gets none by executing others.
type Server struct {
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

// ServerArgs returns packetwalk-app's arguments to become the Server that a file describes as JSON. Only root may write the file.
func ServerArgs(file string) []string { return []string{stageServer, file} }

// maxSpec is the most that is read of a spec, in bytes.
const maxSpec = 1 << 20

// execServer becomes the server that a file describes. It returns only an error.
func execServer(file string) error {
	text, err := limitio.ReadFile(file, maxSpec)
	if err != nil {
		return err
	}
	var s Server
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
func (s *Server) changeRoot(at string, program Mount) error {
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if err := IsolateMounts(unix.MS_PRIVATE); err != nil {
		return err
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
	if err := Pivot(at); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|flags, ""); err != nil {
		return fmt.Errorf("make the root read-only: %w", err)
	}
	return nil
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
	var others []uintptr
	for c := uintptr(0); ; c++ {
		if _, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0); err != nil {
			break // the kernel has no more
		}
		if c != kept {
			others = append(others, c)
		}
	}
	if err := dropBounding(others); err != nil {
		return err
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
