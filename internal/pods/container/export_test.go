package container

import (
	"context"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// StartBelow has a starter, packetwalk-app at the path binary, start another program below the process namespace of a process.
func StartBelow(ctx context.Context, binary, path string, pidfd *os.File) (*os.Process, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	o := order{Enter: unix.CLONE_NEWPID, Path: path, Args: octets([]string{path}), Cloneflags: unix.CLONE_NEWPID}
	return o.start(ctx, binary, pidfd, nil)
}
