//go:build !cgo

package boot

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// allThreads calls capset(2) on each thread: capabilities are a thread's, and the runtime may run us on any.
func allThreads(header *unix.CapUserHeader, data *[2]unix.CapUserData) error {
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return fmt.Errorf("limit capabilities: %w", errno)
	}
	return nil
}
