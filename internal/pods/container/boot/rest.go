package boot

import (
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// restRounds bounds how often what a command has left is looked for: it may start others meanwhile.
const restRounds = 100

// endRest ends what the command has left: only where the process namespace is its own does it end with it. Without a control group it is
// told by its mount namespace, which no process of a container can leave: none has CAP_SYS_ADMIN, or gets a user namespace.
func (b *boot) endRest() {
	if b.mounts == nil {
		return
	}
	defer b.mounts.Close()
	if len(b.spec.Group) > 0 {
		b.spec.Group.Kill()
		return
	}
	for range restRounds {
		if !killIn(b.mounts) {
			return
		}
	}
}

// killIn kills the processes in a mount namespace, which is open and so no other's by its number, and tells whether there were any.
func killIn(mounts *os.File) (found bool) {
	own, err := mounts.Stat()
	if err != nil {
		return false
	}
	links, _ := filepath.Glob("/proc/[0-9]*/ns/mnt")
	for _, link := range links {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link))))
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		if in, err := os.Stat(link); err == nil && os.SameFile(in, own) { // a zombie is in none
			found = true
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		unix.Close(fd)
	}
	return found
}
