// Command packetwalk-app is a container's first process and the built-in applications in one small, static program. It is started by
// packetwalk, hundreds of times in one lab, and is of no use by hand: "first DIR" boots the container of a directory, "run JSON" becomes a
// command on a host, and under a built-in program's name it is that program. The main holds nothing else.
//
// Build it with CGO_ENABLED=0: its parts change the namespaces and capabilities of all threads.
package main

import (
	"os"
	"runtime"

	"packetwalk.dev/internal/pods/container/boot"
)

// "run" becomes its command on the main thread, whose namespaces it has changed.
func init() { runtime.LockOSThread() }

func main() { os.Exit(boot.Main(os.Args, os.Stderr)) }
