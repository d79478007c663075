package dump

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestAskSocket finds the process that has a socket open where the one that was seen with it has closed it, as a child does that runs
// another program.
func TestAskSocket(t *testing.T) {
	kerneltest.NeedRoot(t)
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var inode uint32
	if err := raw.Control(func(fd uintptr) {
		var st syscall.Stat_t
		if err = syscall.Fstat(int(fd), &st); err == nil {
			inode = uint32(st.Ino)
		}
	}); err != nil || inode == 0 {
		t.Fatal(err)
	}
	isOpen := true
	listed := func(uint32) (bool, error) { return isOpen, nil }
	ended := process{name: "child", pid: 1 << 22, fd: 3} // no process has a number above pid_max
	if p, _, _, err := askSocket(ended, inode, false, listed); err != nil || p.pid != os.Getpid() {
		t.Errorf("process %d, %v; want %d", p.pid, err, os.Getpid())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	isOpen = false
	if _, _, _, err := askSocket(ended, inode, false, listed); !errors.Is(err, errClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := unix.PidfdOpen(ended.pid, 0); err == nil {
		t.Error("there is such a process")
	}
}
