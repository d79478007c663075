//go:build cgo

package boot

import (
	"errors"

	"golang.org/x/sys/unix"
)

// allThreads cannot do with C's threads what it has to (syscall.AllThreadsSyscall).
func allThreads(*unix.CapUserHeader, *[2]unix.CapUserData) error {
	return errors.New("limit capabilities: packetwalk-app was built with cgo; build it with CGO_ENABLED=0")
}
