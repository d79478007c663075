package app

import (
	"os"
	"os/exec"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// family is the state of this process's children. An application starts some of them, and waits for them. If this is a container's first
// process, the container's orphans are its children, too, and no application waits for those.
var family struct {
	sync.Mutex
	own  int // that an application waits for
	reap bool
}

// ReapOrphans has this process, a container's first one, reap processes that lost their parents (wait(2)).
func ReapOrphans() {
	family.Lock()
	family.reap = true
	family.Unlock()
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	go func() {
		for range ended {
			reapAll()
		}
	}()
}

// reapAll waits for all children that have ended, unless one may be an application's own.
func reapAll() {
	family.Lock()
	defer family.Unlock()
	for family.reap && family.own == 0 {
		if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 && err != unix.EINTR {
			return
		}
	}
}

// run runs a command to its end.
func run(cmd *exec.Cmd) error {
	count := func(n int) {
		family.Lock()
		defer family.Unlock()
		family.own += n
	}
	count(1)
	defer reapAll()
	defer count(-1)
	return cmd.Run()
}
