// Command packetwalk-app is a container's shim and first process, the built-in applications and a real node's first processes in one
// small, static program. It is started by packetwalk, hundreds of times in one lab, and is of no use by hand: "shim DIR" keeps the
// container of a directory, "first DIR" is one of a built-in application, "run JSON" becomes a command on a host, "start N" starts a
// process in a container, "node FILE" makes a node's machine of a spec, "confined FILE" becomes a host's application, and under a built-in
// program's name it is that program. The main holds nothing else.
//
// Build it with CGO_ENABLED=0: its parts change the namespaces and capabilities of all threads.
package main

import (
	"os"
	"runtime"

	"packetwalk.dev/internal/pods/confine"
	"packetwalk.dev/internal/pods/container/boot"
	realnode "packetwalk.dev/internal/pods/realnode/boot"
)

// "run" becomes its command on the main thread, whose namespaces it has changed.
func init() { runtime.LockOSThread() }

func main() {
	if status, ok := realnode.Main(os.Args); ok {
		os.Exit(status)
	}
	if status, ok := confine.Main(os.Args); ok {
		os.Exit(status)
	}
	os.Exit(boot.Main(os.Args, os.Stderr))
}
