package container

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/mounts"
)

// restRounds bounds how often what a container has left is looked for: it may start others meanwhile.
const restRounds = 100

// EndRest ends what the container has left where its process namespace is another's: only one of its own ends with its first process.
func (s *Spec) EndRest() {
	switch {
	case s.ProcessesOf == "":
	case len(s.Group) > 0:
		s.Group.Kill()
	default:
		for range restRounds {
			if !s.killRest() {
				return
			}
		}
	}
}

// killRest kills the container's processes without a control group, and tells whether there were any. They are told by their mount
// namespace, which no process of a container can leave: none has CAP_SYS_ADMIN, or gets a user namespace. It need not have been known
// before, so that it does not matter who has ended when.
func (s *Spec) killRest() (found bool) {
	processes, err := s.others()
	if err != nil {
		return false // they have ended with it
	}
	defer processes.Close()
	var own *os.File // the container's mount namespace; open, so that no other has its number
	links, _ := filepath.Glob("/proc/[0-9]*/ns/mnt")
	for _, link := range links {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link))))
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		if in, err := os.Open(link); err == nil { // a zombie is in none
			if own == nil && sameFile(processes, filepath.Join(filepath.Dir(link), "pid")) && s.rootOf(in) {
				own = in
				defer own.Close()
			}
			if own != nil && sameFile(own, link) {
				found = true
				_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			}
			if in != own {
				in.Close()
			}
		}
		unix.Close(fd)
	}
	return found
}

// others is the process namespace that the container shares.
func (s *Spec) others() (*os.File, error) {
	root, err := os.OpenRoot(s.ProcessesOf)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	state, err := readState(root)
	if err != nil {
		return nil, err
	}
	namespace, err := os.Open(filepath.Join("/proc", strconv.Itoa(state.Pid), "ns/pid"))
	if err == nil && !state.alive() {
		namespace.Close()
		err = ErrNotRunning
	}
	return namespace, err
}

func sameFile(open *os.File, path string) bool {
	a, err := open.Stat()
	var b fs.FileInfo
	if err == nil {
		b, err = os.Stat(path)
	}
	return err == nil && os.SameFile(a, b)
}

// rootOf tells whether the root of a mount namespace is the container's, by its writable layer. It is asked from within: who has changed
// its own root sees nothing of that above.
func (s *Spec) rootOf(namespace *os.File) (is bool) {
	OnThread(func() (clean bool) {
		self, err := os.OpenRoot("/proc/thread-self")
		if err != nil {
			return true
		}
		defer self.Close()
		if unix.Unshare(unix.CLONE_FS) != nil || unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS) != nil {
			return false
		}
		text, _ := self.ReadFile("mountinfo")
		for m := range mounts.Parse(string(text)) {
			is = is || m.Point == "/" && strings.Contains(m.Options, ",upperdir="+s.Layer()+"/upper,")
		}
		return false
	})
	return is
}
