package boot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/pods/realnode"
)

const (
	// importTime is how long the import of one archive may take, and importPause how long to wait before it is tried again.
	importTime  = 2 * time.Minute
	importPause = 200 * time.Millisecond
)

// options: containerd and kubelet come back soon, and are given time for an orderly end.
var options = supervise.Options{MinPause: 200 * time.Millisecond, MaxPause: 10 * time.Second, Grace: 5 * time.Second,
	OnChange: func(s supervise.State) {
		if s.Pid == 0 {
			fmt.Fprintf(os.Stderr, "%s has ended: %s\n", s.Name, s.LastExit)
		}
	}}

// keep keeps the container runtime running, and the kubelet as soon as the runtime has the images that it needs, until SIGTERM.
func keep(path string) error {
	spec, err := realnode.ReadSpec(path)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	runtime, err := keepOne(spec.Runtime)
	if err != nil {
		return err
	}
	go health{pause: healthPause, limit: healthLimit, most: mostSilent}.watch(ctx, runtime, spec.Runtime.Socket)
	for _, archive := range spec.Images {
		if err := load(ctx, spec.Import, archive); err != nil {
			return errors.Join(err, runtime.Stop())
		}
	}
	agent, err := keepOne(spec.Agent)
	if err != nil {
		return errors.Join(err, runtime.Stop())
	}
	for _, archive := range spec.Later {
		if load(ctx, spec.Import, archive) != nil {
			break // the node ends
		}
	}
	<-ctx.Done()
	return errors.Join(agent.Stop(), runtime.Stop())
}

func keepOne(p realnode.Program) (*supervise.Supervisor, error) {
	return supervise.Run(supervise.Process{Name: p.Name, Path: p.Path, Args: p.Args, Env: environment, Dir: "/", LogFile: p.Log},
		func(cmd *exec.Cmd) error { return cmd.Start() }, options)
}

// load imports an archive; it tries until it can, because the runtime has only been started.
func load(ctx context.Context, command []string, archive string) error {
	for said := ""; ; {
		info, err := os.Stat(archive)
		if errors.Is(err, fs.ErrNotExist) {
			if !pause.For(ctx, importPause) {
				return ctx.Err()
			}
			continue
		}
		if err == nil && info.Size() == 0 {
			return nil // it has been imported
		}
		_, err = program.Command{
			Path: command[0], Args: append(command[1:len(command):len(command)], archive), Env: environment, Limit: importTime,
		}.Output(ctx)
		if err == nil {
			return os.Truncate(archive, 0)
		}
		if now := fmt.Sprintf("import %s: %v", archive, err); now != said {
			fmt.Fprintln(os.Stderr, now)
			said = now
		}
		if !pause.For(ctx, importPause) {
			return ctx.Err()
		}
	}
}
