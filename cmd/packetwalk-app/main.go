// Command packetwalk-app is the built-in applications, the stages of a node's first processes and of commands on hosts: one small, static
// program. It is started by packetwalk and is of no use by hand: "run JSON" becomes a command on a host, "node FILE" makes a node's machine
// of a spec, "node-exec COMMAND" runs a command there, "confined FILE" becomes a host's application, and under a built-in program's name it
// is that program. The main holds nothing else.
//
// Build it with CGO_ENABLED=0: its parts change the namespaces and capabilities of all threads.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path"
	"runtime"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/app"
	"packetwalk.dev/internal/pods/isolation"
	"packetwalk.dev/internal/pods/preload"
	"packetwalk.dev/internal/pods/realnode/boot"
)

// Stages change the namespaces of the main thread, and become another program on it.
func init() { runtime.LockOSThread() }

func main() {
	if program, ok := app.FindProgram(path.Base(os.Args[0])); ok {
		os.Exit(run(program))
	}
	for _, stage := range []func([]string) (int, bool){boot.Main, isolation.Main, preload.Main} {
		if status, ok := stage(os.Args); ok {
			os.Exit(status)
		}
	}
	fmt.Fprintln(os.Stderr, "packetwalk-app is what nodes and hosts of a lab run; packetwalk starts it")
	os.Exit(2)
}

// run runs a program of an image. Its name is a symbolic link to this binary.
func run(program app.Program) int {
	if os.Getpid() == 1 {
		app.ReapOrphans()
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT, unix.SIGQUIT)
	defer stop()
	return program.Run(ctx, &app.Process{Args: os.Args, Env: os.Environ(), Stdout: os.Stdout, Stderr: os.Stderr, Ready: func() {}})
}
