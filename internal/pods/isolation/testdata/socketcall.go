// This program makes a socket of AF_UNIX by socketcall(2), and ends with the number of its error.
package main

import (
	"syscall"
	"unsafe"
)

func main() {
	const call, socket = 102, 1 // SYS_SOCKETCALL of i386, SYS_SOCKET (include/uapi/linux/net.h)
	args := [3]uintptr{syscall.AF_UNIX, syscall.SOCK_STREAM, 0}
	_, _, e := syscall.Syscall(call, socket, uintptr(unsafe.Pointer(&args)), 0)
	syscall.Exit(int(e))
}
