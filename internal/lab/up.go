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

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/status"
)

// Binaries are the programs that a lab is made of.
type Binaries struct {
	Packetwalk   string // the lab process: this program
	ControlPlane string // the multi-call binary
	Node         string // packetwalk-node
	CNI          string // packetwalk-cni
	PortMap      string // upstream's CNI plugin for host ports, in CNI's folder
	App          string // packetwalk-app
	Addon        string // packetwalk-addon
	DNS          string // packetwalk-dns
	Simulated    string // packetwalk-simulated
	RealNode     string // the directory of containerd, kubelet and what they start
	Calico       string // the directory of felix and the definitions of Calico's resources, by release
	Base         string // the directory of what nodes and images have of Debian
}

// UpOptions say what Up makes.
type UpOptions struct {
	Dir     Dir
	Cluster []byte // cluster.yaml, valid; its defaults may be left out; nil for the default, or for a lab that is there as it is
	Argv    []string
	// Plan hears the changes that a lab which is there needs, before anything is done. It may be nil.
	Plan func([]cluster.Change)
	// Progress hears each step; it must not block.
	Progress func(Step)
	// Timeout bounds all of it, also the wait for another command that works on the lab. 0 is DefaultTimeout.
	Timeout time.Duration
	end     deadline
}

const (
	// scaleTimeout is how long nodes may take to join and leave: AKS, too, waits half an hour for evictions.
	scaleTimeout = 30 * time.Minute
	// longestTurn is how long to wait for another command that works on the same lab.
	longestTurn = 15 * time.Minute
)

// ErrNewCluster says that a lab which is there cannot be changed to what a cluster.yaml says.
var ErrNewCluster = errors.New("a running cluster cannot be changed so")

// refused is an error that names the changes which need a new cluster, nil when there is none.
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
	o.end = newDeadline(cmp.Or(o.Timeout, DefaultTimeout))
	ctx, cancel := o.end.answer(ctx)
	defer cancel()
	release, err := o.Dir.turn(ctx)
	if err != nil {
		return err
	}
	defer release()
	switch made, there, err := o.Dir.made(); {
	case err != nil:
		return err
	case there:
		return o.again(ctx, made)
	}
	err = prepare(ctx, o)
	if err == nil {
		err = start(ctx, o)
	}
	if err == nil {
		return nil
	}
	// Interrupted or failed: a fresh context, because ctx may be what ended.
	if undo := Destroy(context.Background(), o.Dir); undo != nil {
		return errors.Join(err, undo)
	}
	return err
}

// again brings a lab that is there to what is wanted: its process runs, and nothing differs from the cluster.yaml.
func (o UpOptions) again(ctx context.Context, made []byte) error {
	var changes []cluster.Change
	was, err := o.Dir.Parse(made)
	if err != nil {
		return o.Dir.damaged(err)
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
	mounted, err := request[[]string](ctx, o.Dir, http.MethodPost, "/namespaces")
	if err != nil {
		return err
	}
	for _, name := range mounted {
		o.Progress(Step{Text: "network namespace of " + name + " mounted again"})
	}
	if len(changes) == 0 {
		return nil
	}
	if err := putCluster(ctx, o.Dir, o.Cluster, o.end, true, o.Progress); err != nil {
		return err
	}
	o.Progress(Step{Text: "changed"})
	return nil
}

// made is the cluster.yaml that a lab was made from, or will be changed to when its process, which is dead, is started again. A lab is
// there when it has that file; namespaces or a process without one are a lab that lost it, and an error.
func (d Dir) made() (source []byte, there bool, err error) {
	if d.Process() == 0 {
		if next, err := readSource(d.nextFile()); err == nil {
			if _, err := d.Parse(next); err == nil {
				return next, true, nil
			}
		}
	}
	source, err = readSource(d.ClusterFile())
	if err == nil {
		return source, true, nil
	}
	spaces, lost := netns.Mounted(d.path("netns"))
	if !errors.Is(err, os.ErrNotExist) || lost != nil || len(spaces) > 0 || d.Process() != 0 {
		return nil, true, d.damaged(err)
	}
	return nil, false, nil
}

// damaged is the error of a lab whose cluster.yaml cannot be used. Nothing of the lab is touched: what is established goes on.
func (d Dir) damaged(err error) error {
	return fmt.Errorf("%s: %w\nnothing was done, and what is established goes on; put back what the file said, or remove the lab with 'packetwalk down --name %s'",
		d.ClusterFile(), err, d.Name())
}

// Edit changes a running lab by an edit of its cluster.yaml. Without wait it returns when the change has begun.
func Edit(ctx context.Context, d Dir, edit func(source []byte) ([]byte, error), wait bool, progress func(Step)) error {
	release, err := d.turn(ctx)
	if err != nil {
		return err
	}
	defer release()
	source, there, err := d.made()
	if err != nil {
		return err
	}
	if !there {
		return ErrNotRunning
	}
	if source, err = edit(source); err != nil {
		return err
	}
	return putCluster(ctx, d, source, newDeadline(scaleTimeout), wait, progress)
}

// turn makes the lab's directory and holds a lock on it. A directory that was removed while this waited is made anew.
func (d Dir) turn(ctx context.Context) (release func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, longestTurn, fmt.Errorf("another command works on lab %s, for %v", d.Name(), longestTurn))
	defer cancel()
	for {
		if err := os.MkdirAll(string(d), 0o700); err != nil {
			return nil, err
		}
		dir, err := os.Open(string(d))
		if err == nil {
			if err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil && isStill(dir, string(d)) {
				return func() { dir.Close() }, nil
			}
			dir.Close()
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", d, err)
		}
		if !pause.For(ctx, 50*time.Millisecond) {
			return nil, context.Cause(ctx)
		}
	}
}

// isStill reports whether the path leads to the open directory.
func isStill(dir *os.File, path string) bool {
	opened, err := dir.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(opened, there)
}

func prepare(ctx context.Context, o UpOptions) error {
	for _, dir := range []string{Root, string(o.Dir), o.Dir.path("netns"), o.Dir.path("nodes"),
		o.Dir.path("hosts"), o.Dir.Groups()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if err := o.Dir.removeState(); err != nil { // of a lab of that name that a restart of the machine has ended
		return err
	}
	if err := o.Dir.makeLogs(ctx); err != nil {
		return err
	}
	source := o.Cluster
	if source == nil {
		source = defaultCluster
	}
	return writeCluster(o.Dir.ClusterFile(), source)
}

// defaultCluster is the world of the first article.
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
	cmd := exec.Command(o.Argv[0], append(o.Argv[1:], "--timeout="+o.end.left().String())...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles, cmd.Dir = log, log, []*os.File{w}, "/"
	cmd.Env = serverEnvironment(os.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return fmt.Errorf("start the lab process: %w", err)
	}
	go func() { _ = cmd.Wait() }()

	ended := make(chan error, 1)
	go func() { ended <- follow(r, true, o.Progress) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		return context.Cause(ctx)
	}
}

// follow reads steps until the last one, or without wait until the first one.
func follow(r io.Reader, wait bool, progress func(Step)) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var s Step
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
			o.Progress(Step{Text: "the lab is running already", Ready: true})
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
