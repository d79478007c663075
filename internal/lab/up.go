package lab

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"packetwalk.dev/internal/base/pause"

	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/status"
)

// UpOptions say what Up makes.
type UpOptions struct {
	Dir     layout.Dir
	Cluster []byte // cluster.yaml, valid; its defaults may be left out; nil for the default, or for a lab that is there as it is
	Argv    []string
	// Plan hears the changes that a lab which is there needs, before anything is done. It may be nil.
	Plan func([]cluster.Change)
	// Progress hears each step; it must not block.
	Progress func(lifecycle.Step)
	// Timeout bounds all of it, also the wait for another command that works on the lab. 0 is DefaultTimeout.
	Timeout time.Duration
	end     lifecycle.Deadline
}

// scaleTimeout is how long nodes may take to join and leave: AKS, too, waits half an hour for evictions.
const scaleTimeout = 30 * time.Minute

// ErrNewCluster says that a lab which is there cannot be changed to what a cluster.yaml says.
var ErrNewCluster = errors.New("a running cluster cannot be changed so")

// refused returns an error that names the changes which need a new cluster, nil when there is none.
func refused(changes []cluster.Change) error {
	var lines []string
	for _, c := range changes {
		if c.NewCluster {
			lines = append(lines, "  "+c.String())
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("%w:\n%s", ErrNewCluster, strings.Join(lines, "\n"))
}

// Up starts the lab process and returns when the cluster is ready. A lab that is there already is changed to what the cluster.yaml says;
// its process is started again if it has died. What a running cluster does not take is ErrNewCluster, and nothing is done. When Up fails or
// ctx ends before a new cluster is ready, what it made is removed. Of several at once for one lab, one works and the others wait for it.
func Up(ctx context.Context, o UpOptions) error {
	o.end = lifecycle.NewDeadline(cmp.Or(o.Timeout, lifecycle.DefaultTimeout))
	ctx, cancel := o.end.BoundAnswer(ctx)
	defer cancel()
	release, err := o.Dir.Acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	switch made, there, err := o.Dir.ClusterSource(); {
	case err != nil:
		return err
	case there:
		return o.again(ctx, made)
	}
	err = prepare(ctx, o)
	begun := err == nil
	if begun {
		err = start(ctx, o)
	}
	if err == nil {
		return nil
	}
	// Interrupted or failed: a fresh context, because ctx may be what ended.
	if undo := Destroy(context.Background(), o.Dir); undo != nil {
		return errors.Join(err, undo)
	}
	if begun {
		return errors.Join(err, errors.New("nothing of this lab is left"))
	}
	return err
}

// again brings a lab that is there to what is wanted: its process runs, and nothing differs from the cluster.yaml.
func (o UpOptions) again(ctx context.Context, made []byte) error {
	var changes []cluster.Change
	was, err := o.Dir.Parse(made)
	if err != nil {
		return o.Dir.DamagedError(err)
	}
	if o.Cluster != nil && !bytes.Equal(made, o.Cluster) {
		wanted, err := o.Dir.Parse(o.Cluster)
		if err != nil {
			return err
		}
		changes = cluster.Compare(was, wanted)
	}
	if len(changes) > 0 && o.Plan != nil {
		o.Plan(changes)
	}
	if err := refused(changes); err != nil {
		return fmt.Errorf("%w\nnothing was done; 'packetwalk down --name %s' and up again makes a new cluster", err, o.Dir.Name())
	}
	bring := waitReady
	if o.Dir.Process() == 0 {
		bring = start
	}
	if err := bring(ctx, o); err != nil {
		return err
	}
	repaired, err := request[[]string](ctx, o.Dir, http.MethodPost, "/repair")
	if err != nil {
		return err
	}
	for _, text := range repaired {
		o.Progress(lifecycle.Step{Text: "repaired: " + text})
	}
	if len(changes) == 0 {
		return nil
	}
	if err := putCluster(ctx, o.Dir, o.Cluster, o.end, true, o.Progress); err != nil {
		return err
	}
	o.Progress(lifecycle.Step{Text: "changed"})
	return nil
}

// Edit changes a running lab by an edit of its cluster.yaml. Without wait it returns when the change has begun.
func Edit(ctx context.Context, d layout.Dir, edit func(source []byte) ([]byte, error), wait bool, progress func(lifecycle.Step)) error {
	release, err := d.Acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	source, there, err := d.ClusterSource()
	if err != nil {
		return err
	}
	if !there {
		return ErrNotRunning
	}
	if source, err = edit(source); err != nil {
		return err
	}
	return putCluster(ctx, d, source, lifecycle.NewDeadline(scaleTimeout), wait, progress)
}

func prepare(ctx context.Context, o UpOptions) error {
	for _, dir := range []string{Root, string(o.Dir), o.Dir.Path("netns"), o.Dir.Path("nodes"),
		o.Dir.Path("hosts"), o.Dir.Groups()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if err := o.Dir.RemoveState(); err != nil { // of a lab of that name that a restart of the machine has ended
		return err
	}
	if err := o.Dir.MakeLogs(ctx); err != nil {
		return err
	}
	source := o.Cluster
	if source == nil {
		source = defaultCluster
	}
	return layout.WriteClusterFile(o.Dir.ClusterFile(), source)
}

// defaultCluster leaves every choice to the defaults.
var defaultCluster = []byte("apiVersion: " + cluster.APIVersion + "\nkind: " + cluster.Kind + "\n")

// start runs the lab process in a session of its own and follows its progress.
func start(ctx context.Context, o UpOptions) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	log, err := os.OpenFile(o.Dir.Log("lab"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(o.Argv[0], append(o.Argv[1:], "--timeout="+o.end.Left().String())...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles, cmd.Dir = log, log, []*os.File{w}, "/"
	cmd.Env = layout.ServerEnvironment(os.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return fmt.Errorf("start the lab process: %w", err)
	}
	go func() { _ = cmd.Wait() }()

	ended := make(chan error, 1)
	go func() { ended <- readSteps(r, true, o.Progress) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		return context.Cause(ctx)
	}
}

// readSteps reads steps until the last one, or only the first one if wait is false.
func readSteps(r io.Reader, wait bool, progress func(lifecycle.Step)) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var s lifecycle.Step
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			return fmt.Errorf("progress of the lab process: %w", err)
		}
		if s.Error != "" {
			return errors.New(s.Error)
		}
		progress(s)
		if s.Ready || !wait {
			return nil
		}
	}
	return errors.New("the lab process ended before it was done: the lab was taken down, or the process killed; 'packetwalk up' starts it again, and it does the rest")
}

// waitReady waits for a lab that another process is bringing up.
func waitReady(ctx context.Context, o UpOptions) error {
	var s status.Status
	for {
		if now, err := ask[status.Status](ctx, o.Dir, "/status"); err == nil {
			s = now
		}
		if s.Ready {
			o.Progress(lifecycle.Step{Text: "the lab is running already", Ready: true})
			return nil
		}
		if o.Dir.Process() == 0 {
			return ErrNotRunning
		}
		if !pause.For(ctx, 100*time.Millisecond) {
			return fmt.Errorf("%w: %s", context.Cause(ctx), strings.Join(s.Problems, "; "))
		}
	}
}
