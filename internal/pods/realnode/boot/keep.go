package boot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/pods/isolation"
	"packetwalk.dev/internal/pods/realnode"
)

// options: containerd and kubelet come back soon, and are given time for an orderly end.
var options = supervise.Options{MinPause: 200 * time.Millisecond, MaxPause: 10 * time.Second, Grace: 5 * time.Second,
	OnChange: func(s supervise.State) {
		if s.Pid == 0 {
			fmt.Fprintf(os.Stderr, "%s has ended: %s\n", s.Name, s.LastExit)
		}
	}}

// keep keeps the container runtime running, and the kubelet from when that answers, until SIGTERM.
func keep(path string) error {
	spec, err := realnode.ReadSpec(path)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	go supervise.BoundLog(ctx, initLog)
	runtime, err := keepOne(spec.Runtime)
	if err != nil {
		return err
	}
	go health{pause: healthPause, limit: healthLimit, start: startSilent, most: mostSilent}.watch(ctx, runtime, spec.Runtime.Socket)
	if !awaitSocket(ctx, spec.Runtime.Socket) {
		return runtime.Stop()
	}
	agent, err := keepOne(spec.Agent)
	if err != nil {
		return errors.Join(err, runtime.Stop())
	}
	<-ctx.Done()
	return errors.Join(agent.Stop(), runtime.Stop())
}

// awaitSocket waits until a process answers on a socket, because a kubelet that starts too early exits.
func awaitSocket(ctx context.Context, path string) bool {
	for {
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			return c.Close() == nil
		}
		if !pause.For(ctx, socketPause) {
			return false
		}
	}
}

const socketPause = 20 * time.Millisecond

func keepOne(p realnode.Program) (*supervise.Supervisor, error) {
	return supervise.Run(supervise.Process{Name: p.Name, Path: p.Path, Args: p.Args, Env: isolation.NodeEnv, Dir: "/", LogFile: p.Log},
		func(cmd *exec.Cmd) error { return cmd.Start() }, options)
}
