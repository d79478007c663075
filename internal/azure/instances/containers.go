package instances

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/base/tree"
	"packetwalk.dev/internal/pods/beneath"
	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/source"
)

// run is one container of a group: the process that runs, and those before.
type run struct {
	name string
	runState
	c        *container.Container // the one that runs; nil: none
	starting bool                 // the attempt has no container yet
}

// runState is what is kept of a run.
type runState struct {
	Attempt  int                 `json:"attempt"` // of starts, from 1; 0 before the first
	Now      aci.ContainerState  `json:"now"`
	Previous *aci.ContainerState `json:"previous,omitempty"`
	Ready    bool                `json:"ready"`
	Events   []aci.Event         `json:"events"`
}

func (r *run) view() *aci.ContainerView {
	return &aci.ContainerView{
		RestartCount: max(0, r.Attempt-1), CurrentState: r.Now, PreviousState: r.Previous, Ready: r.Ready,
		Events: append([]aci.Event{}, r.Events...),
	}
}

// again tells whether a container that ended so is started again.
func again(p aci.RestartPolicy, code int) bool {
	return p == aci.RestartAlways || p == aci.RestartOnFailure && code != 0
}

// A container that ended is started again after a pause, which doubles, and begins anew when it has run for a while.
const (
	firstPause  = time.Second
	longestWait = 5 * time.Minute
	steady      = time.Minute
)

// keep lets a container run, and starts it again as the group's policy says, until ctx ends.
func (g *group) keep(ctx context.Context, spec *aci.Container, r *run) {
	pause := firstPause
	g.mu.Lock()
	c := r.c // one of an earlier process
	g.mu.Unlock()
	for {
		if c == nil {
			g.mu.Lock()
			over := r.Now.State == aci.StateTerminated && !again(g.spec.Properties.RestartPolicy, *r.Now.ExitCode)
			g.mu.Unlock()
			if over {
				return
			}
			c = g.start(ctx, spec, r)
		}
		if c != nil {
			stop := g.probe(ctx, spec, r, c)
			select {
			case <-ctx.Done():
				stop()
				return
			case <-c.Done():
			}
			stop()
			g.ended(r, c)
			if c.Exit().FinishedAt.Sub(c.StartedAt()) >= steady {
				pause = firstPause
			}
			if !again(g.spec.Properties.RestartPolicy, c.Exit().Code) {
				return
			}
			c = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, longestWait)
	}
}

// adopt takes over the container that an earlier process started, if it runs. One that has ended meanwhile is noted.
func (g *group) adopt(spec *aci.Container, r *run) {
	if r.Attempt == 0 {
		return
	}
	dir := g.containerDir(r.name, r.Attempt)
	c, err := g.cfg.Runtime.Adopt(dir)
	if errors.Is(err, container.ErrNoContainer) {
		g.change(func() {
			if r.Now.State != aci.StateTerminated { // the process before died between its start and its end
				r.Attempt--
				r.Now = aci.ContainerState{State: aci.StateWaiting}
			}
		})
		_ = tree.Remove(dir)
		return
	}
	if err != nil {
		g.cfg.Log.Error("take container over", "group", g.name, "container", r.name, "err", err)
		return
	}
	select {
	case <-c.Done():
		g.ended(r, c)
		return
	default:
	}
	g.mu.Lock()
	r.c = c
	r.Now = aci.ContainerState{State: aci.StateRunning, StartTime: c.StartedAt()}
	r.Ready = r.Ready || spec.Properties.ReadinessProbe == nil
	g.mu.Unlock()
}

// start starts a container; nil when that failed, which is noted.
func (g *group) start(ctx context.Context, spec *aci.Container, r *run) *container.Container {
	ref := spec.Properties.Image
	image, err := g.cfg.Images(ctx, source.Request{Ref: ref, Pulling: func() {
		g.change(func() { r.Events = addEvent(r.Events, "Normal", "Pulling", fmt.Sprintf("Pulling image %q", ref)) })
	}})
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		g.failed(r, "InaccessibleImage", err)
		return nil
	}
	g.change(func() {
		r.Attempt, r.starting = r.Attempt+1, true
		r.Events = addEvent(r.Events, "Normal", "Pulled", image.Said(ref))
	})
	g.removeLog(r.name, r.Attempt-2)
	var c *container.Container
	s := g.containerSpec(spec, r)
	if err = image.Apply(&s); err == nil {
		c, err = g.cfg.Runtime.Start(ctx, s)
	}
	if ctx.Err() != nil && err != nil {
		g.change(func() { r.Attempt, r.starting = r.Attempt-1, false })
		return nil
	}
	if err != nil {
		g.failed(r, "StartError", err)
		return nil
	}
	g.change(func() {
		if r.Now.State == aci.StateTerminated {
			was := r.Now
			r.Previous = &was
		}
		r.c, r.starting = c, false
		r.Now = aci.ContainerState{State: aci.StateRunning, StartTime: c.StartedAt()}
		r.Ready = spec.Properties.ReadinessProbe == nil
		r.Events = addEvent(r.Events, "Normal", "Started", "Started container")
	})
	return c
}

// failed notes that a container did not start, as an end with status 128, which Azure's runtime gives it.
func (g *group) failed(r *run, reason string, err error) {
	const code = 128
	status := code
	now := time.Now()
	g.change(func() {
		if r.Now.State == aci.StateTerminated {
			was := r.Now
			r.Previous = &was
		}
		r.Ready, r.starting = false, false
		r.Now = aci.ContainerState{
			State: aci.StateTerminated, StartTime: now, FinishTime: now, ExitCode: &status, DetailStatus: reason, Message: err.Error(),
		}
		r.Events = addEvent(r.Events, "Warning", "Failed", err.Error())
	})
}

// ended notes a container's end and takes what is left of it away.
func (g *group) ended(r *run, c *container.Container) {
	e := c.Exit()
	g.change(func() {
		r.c, r.Ready = nil, false
		r.Now = aci.ContainerState{
			State: aci.StateTerminated, StartTime: e.StartedAt, FinishTime: e.FinishedAt,
			ExitCode: &e.Code, DetailStatus: e.Reason, Message: e.Message,
		}
		r.Events = addEvent(r.Events, "Normal", "Terminated", fmt.Sprintf("The container ended with status %d", e.Code))
	})
	if err := c.Remove(); err != nil {
		g.cfg.Log.Error("remove container", "group", g.name, "container", r.name, "err", err)
	}
}

func (g *group) containerDir(name string, attempt int) string {
	return filepath.Join(g.dir, "containers", name, strconv.Itoa(attempt))
}

func (g *group) logPath(name string, attempt int) string {
	return filepath.Join(g.disk, "logs", name, strconv.Itoa(attempt)+".log")
}

// removeLog deletes the log of an attempt that is older than --previous reaches.
func (g *group) removeLog(name string, attempt int) {
	if attempt > 0 {
		_ = os.Remove(g.logPath(name, attempt))
	}
}

func (g *group) containerSpec(c *aci.Container, r *run) container.Spec {
	s := container.Spec{
		ID: g.name + "/" + c.Name, Name: c.Name, Dir: g.containerDir(c.Name, r.Attempt), LogPath: g.logPath(c.Name, r.Attempt),
		NetNS: filepath.Join(g.cfg.NetNSDir, g.name), Hostname: g.hostname(), Command: c.Properties.Command,
		ResolvConf: g.resolvConf(), Hosts: g.hostsFile(),
	}
	if g.cfg.DiskLayers {
		s.Upper = filepath.Join(g.disk, "layers", c.Name, strconv.Itoa(r.Attempt))
	}
	for _, v := range c.Properties.Environment {
		s.Env = append(s.Env, v.Name+"="+v.Value+v.SecureValue)
	}
	for _, m := range c.Properties.VolumeMounts {
		files := slices.ContainsFunc(g.spec.Properties.Volumes, func(v aci.Volume) bool { return v.Name == m.Name && v.EmptyDir == nil })
		s.Mounts = append(s.Mounts, container.Mount{Source: g.volumeDir(m.Name), Destination: m.MountPath, ReadOnly: m.ReadOnly || files})
	}
	return s
}

func (g *group) volumeDir(name string) string { return filepath.Join(g.disk, "volumes", name) }

// makeVolumes makes the volumes' directories, and the files of those with content, which are read-only in the containers.
func (g *group) makeVolumes() error {
	for i := range g.spec.Properties.Volumes {
		v := &g.spec.Properties.Volumes[i]
		if err := g.makeVolume(v); err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	return nil
}

func (g *group) makeVolume(v *aci.Volume) error {
	dir := g.volumeDir(v.Name)
	if v.EmptyDir != nil {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		defer root.Close()
		return root.Chmod(".", 0o777) // whoever the container runs as
	}
	var files []beneath.File
	for name, content := range v.Secret {
		data, err := base64.StdEncoding.DecodeString(content)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		files = append(files, beneath.File{Name: name, Data: data, Mode: 0o644})
	}
	if err := beneath.WriteFiles(dir, files, nil); err != nil {
		return err
	}
	for _, c := range g.spec.Properties.Containers {
		for _, m := range c.Properties.VolumeMounts {
			if m.Name != v.Name {
				continue
			}
			for _, other := range c.Properties.VolumeMounts {
				if err := beneath.MakeMountPoint(dir, m.MountPath, other.MountPath); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// running finds a container that runs; "" means the first.
func (g *group) running(name string) (*container.Container, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.runs {
		if r.name != name && name != "" {
			continue
		}
		if r.c == nil {
			return nil, aci.Conflict("ContainerNotRunning", "The container '%s' in container group '%s' is not running.", r.name, g.name)
		}
		return r.c, nil
	}
	return nil, g.noContainer(name)
}

func (g *group) noContainer(name string) error {
	message := fmt.Sprintf("Container '%s' not found in container group '%s'.", name, g.name)
	return &aci.Error{Status: http.StatusNotFound, Code: "ContainerNotFound", Message: message}
}

var closed = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// log finds a container's log, and what tells that nothing more will be written to it.
func (g *group) log(name string, previous bool) (path string, ended <-chan struct{}, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.runs {
		if r.name != name {
			continue
		}
		attempt := r.Attempt
		if _, err := os.Stat(g.logPath(name, attempt)); err != nil || r.starting || previous {
			attempt-- // until it has started, the one before is the last
		}
		if attempt < 1 {
			return "", nil, aci.Conflict("ContainerGroupDeploymentNotReady",
				"The container '%s' in container group '%s' has no such log yet.", name, g.name)
		}
		ended = closed
		if r.c != nil && !previous {
			ended = r.c.Done()
		}
		return g.logPath(name, attempt), ended, nil
	}
	return "", nil, g.noContainer(name)
}

// stopContainers ends the containers, all at once, each within grace. The worker has ended.
func (g *group) stopContainers(ctx context.Context, grace time.Duration) error {
	errs := make(chan error, len(g.runs))
	for _, r := range g.runs {
		go func() {
			c := r.c
			if c == nil && r.Attempt > 0 { // of an earlier process
				c, _ = g.cfg.Runtime.Adopt(g.containerDir(r.name, r.Attempt))
			}
			if c == nil {
				errs <- nil
				return
			}
			errs <- errors.Join(c.Stop(ctx, grace), c.Remove())
		}()
	}
	var all []error
	for range g.runs {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}
