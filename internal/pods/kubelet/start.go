package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/signal"
	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/base/logs"
	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/podspec"
	"packetwalk.dev/internal/pods/source"
)

// snapshot copies what the machine knows of a container, for use without the lock.
func (w *worker) snapshot(c *containerState) *containerState {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := *c
	return &s
}

// pod is the newest version of the pod; it is never changed in place.
func (w *worker) pod() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.m.pod
}

// event tells Kubernetes of something about a container.
func (w *worker) event(c *containerState, kind, reason, format string, args ...any) {
	w.k.recorder.Eventf(eventObject(w.pod(), c), kind, reason, format, args...)
}

// start makes and starts a container, runs its postStart hook, and tells the machine.
func (w *worker) start(ctx context.Context, c *containerState) {
	s := w.snapshot(c)
	r, failure := w.bring(ctx, s)
	if r == nil && failure == nil {
		return
	}
	if failure != nil {
		w.do(func(m *machine, now time.Time) { m.startFailed(c, *failure, now) })
		return
	}
	if err := w.hook(ctx, s, r, postStart(s.spec)); err != nil {
		w.event(s, corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed: %v", err)
		go w.stop(c, w.grace())
	}
	w.do(func(m *machine, _ time.Time) { m.started(c, r.c.Spec(), r.c.StartedAt()) })
	w.watch(ctx, c, s, r, r.c.Spec().ID)
	w.probe(ctx, c, s, r)
}

// bring finds a container's image and launches it. An image that is removed before its layers are mounted is looked for again. Without
// a result the kubelet ends.
func (w *worker) bring(ctx context.Context, s *containerState) (r *run, failure *startFailure) {
	ask := source.Request{Ref: s.spec.Image, Never: s.spec.ImagePullPolicy == corev1.PullNever, Pulling: func() {
		w.event(s, corev1.EventTypeNormal, "Pulling", "Pulling image %q", s.spec.Image)
	}}
	const tries = 3
	for range tries {
		image, err := w.k.cfg.Resolve(ctx, ask) // which may pull and unpack for long
		if err != nil {
			return nil, &startFailure{failedImage, reasonImage, err.Error()}
		}
		release, err := takeBoth(ctx, w.k.starts, w.k.cfg.Shared.starts, startWork)
		if err != nil {
			return nil, nil
		}
		r, failure = w.launch(ctx, s, image)
		release()
		if failure == nil || !image.Gone() {
			break
		}
	}
	return r, failure
}

func (w *worker) grace() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.m.grace()
}

const (
	// startWork is how long a start is work, as a rule: then it waits for something.
	startWork = 2 * time.Second
	// startLimit is how long it may take (pkg/kubelet/apis/config, RuntimeRequestTimeout): a pod with its node's processes may have stopped
	// it.
	startLimit = 2 * time.Minute
)

var errNoStart = fmt.Errorf("it does not begin within %v", startLimit)

// launch brings a container into being.
func (w *worker) launch(ctx context.Context, s *containerState, image source.Image) (*run, *startFailure) {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, errNoStart)
	defer cancel()
	if image.LookAlike != "" {
		w.event(s, corev1.EventTypeWarning, "LookAlike", "%s", image.LookAlike)
	}
	w.event(s, corev1.EventTypeNormal, "Pulled", "%s", image.Said(s.spec.Image))
	spec, err := w.spec(s, image)
	if err != nil {
		return nil, &startFailure{failedConfig, reasonConfigError, err.Error()}
	}
	if err = w.placeProcesses(ctx, s, &spec); err != nil {
		return nil, &startFailure{failedConfig, "CreateContainerError", err.Error()}
	}
	_ = os.RemoveAll(spec.Dir) // of an attempt that a crash cut off before anything ran
	w.removeLog(s, s.Attempt-2)
	started, err := w.k.cfg.Runtime.Start(ctx, spec)
	switch {
	case errors.Is(err, container.ErrStart):
		return nil, &startFailure{failedRun, "RunContainerError", err.Error()}
	case err != nil:
		return nil, &startFailure{failedConfig, "CreateContainerError", err.Error()}
	}
	w.event(s, corev1.EventTypeNormal, "Created", "Container created")
	r := &run{c: started}
	w.mu.Lock()
	w.runs[s.Name] = r
	w.mu.Unlock()
	return r, nil
}

// watch waits for the container's end and tells the machine.
func (w *worker) watch(ctx context.Context, c, s *containerState, r *run, id string) {
	w.cleanup.Add(1)
	go func() {
		defer w.cleanup.Done()
		select {
		case <-r.c.Done():
		case <-ctx.Done():
			return
		}
		e := r.c.Exit()
		t := termination{ID: id, Code: e.Code, Signal: e.Signal, Reason: e.Reason, StartedAt: e.StartedAt, Finished: e.FinishedAt}
		t.Message = cmp.Or(w.terminationMessage(s, e.Code), e.Message)
		w.do(func(m *machine, _ time.Time) {
			delete(w.runs, c.Name)
			m.exited(c, t)
			if r.probes != nil {
				r.probes()
			}
		})
		if err := r.c.Remove(); err != nil {
			w.k.cfg.Log("pod %s: remove container %s: %v", podRef(w.pod()), c.Name, err)
		}
	}()
}

// leastGrace is what a container has to end in peace after a hook that has used up its time (pkg/kubelet/kuberuntime,
// minimumGracePeriodInSeconds).
const leastGrace = 2 * time.Second

// stop runs the preStop hook and ends the container; its end comes by watch.
func (w *worker) stop(c *containerState, grace time.Duration) {
	// It does not hang on the kubelet's life: a container that was asked to end must not be killed because the lab process ends.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w.mu.Lock()
	r := w.runs[c.Name]
	if r != nil {
		r.stopping = cancel
	}
	w.mu.Unlock()
	if r == nil {
		return
	}
	s := w.snapshot(c)
	begin, least := w.k.cfg.Clock.Now(), time.Duration(0)
	if h := preStop(s.spec); h != nil && grace > 0 {
		least = leastGrace
		limit, done := context.WithTimeout(ctx, grace)
		if err := w.hook(limit, s, r, h); err != nil {
			w.event(s, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed: %v", err)
		}
		done()
	}
	left := max(grace-w.k.cfg.Clock.Since(begin), least)
	if err := r.c.Stop(ctx, left); err != nil && ctx.Err() == nil {
		w.k.cfg.Log("pod %s: stop container %s: %v", podRef(w.pod()), c.Name, err)
	}
}

func postStart(c *corev1.Container) *corev1.LifecycleHandler {
	if c.Lifecycle == nil {
		return nil
	}
	return c.Lifecycle.PostStart
}

func preStop(c *corev1.Container) *corev1.LifecycleHandler {
	if c.Lifecycle == nil {
		return nil
	}
	return c.Lifecycle.PreStop
}

func (w *worker) hook(ctx context.Context, c *containerState, r *run, h *corev1.LifecycleHandler) error {
	t := w.target(c, r)
	switch {
	case h == nil:
		return nil
	case h.Exec != nil:
		return t.command(ctx, h.Exec.Command)
	case h.HTTPGet != nil:
		return t.get(ctx, h.HTTPGet)
	case h.Sleep != nil:
		select {
		case <-w.k.cfg.Clock.After(time.Duration(h.Sleep.Seconds) * time.Second):
		case <-ctx.Done():
		case <-r.c.Done():
		}
	}
	return nil
}

func (w *worker) target(c *containerState, r *run) target {
	f := w.facts()
	ip := f.hostIP
	if len(f.podIPs) > 0 {
		ip = f.podIPs[0]
	}
	return target{spec: c.spec, ip: ip, dial: w.k.cfg.NodeNS.Dial, exec: r.c.Exec}
}

// probe starts the container's probes.
func (w *worker) probe(ctx context.Context, c, s *containerState, r *run) {
	if s.spec.StartupProbe == nil && s.spec.ReadinessProbe == nil && s.spec.LivenessProbe == nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	w.mu.Lock()
	r.probes = cancel
	if w.runs[c.Name] != r {
		cancel()
	}
	w.mu.Unlock()
	p := prober{clock: w.k.cfg.Clock, run: w.target(s, r).probe, report: func(kind probeKind, err error, decided bool) {
		if err != nil {
			w.event(s, corev1.EventTypeWarning, "Unhealthy", "%s probe failed: %v", kind, err)
		}
		if decided {
			w.probed(c, r, kind, err == nil)
		}
	}}
	go p.all(ctx, s.spec, r.c.StartedAt())
}

func (w *worker) probed(c *containerState, r *run, kind probeKind, ok bool) {
	var acts []action
	w.do(func(m *machine, _ time.Time) {
		if w.runs[c.Name] == r {
			acts = m.probed(c, kind, ok)
		}
	})
	for _, a := range acts {
		go w.stop(a.c, a.grace)
	}
}

func (w *worker) stopProbes() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.runs {
		if r.probes != nil {
			r.probes()
		}
	}
}

// spec is what the runtime is to start.
func (w *worker) spec(c *containerState, image source.Image) (container.Spec, error) {
	f := w.facts()
	services, err := w.k.cfg.Shared.services(f.pod.Namespace)
	if err != nil {
		return container.Spec{}, err
	}
	env, err := environment(c.spec, f, services, w.k.cfg.Shared)
	if err != nil {
		return container.Spec{}, err
	}
	w.mu.Lock()
	vols := w.vols
	w.mu.Unlock()
	vars := variables(env)
	mnts, err := mounts(c.spec, vols, vars)
	if err != nil {
		return container.Spec{}, err
	}
	message, err := w.messageFile(c, c.Attempt)
	if err != nil {
		return container.Spec{}, err
	}
	mnts = append(mnts, container.Mount{Source: message,
		Destination: cmp.Or(c.spec.TerminationMessagePath, corev1.TerminationMessagePathDefault)})
	node := w.k.name
	s := container.Spec{
		ID: newID(), Name: c.Name, Dir: w.containerDir(c, c.Attempt), Upper: w.layerDir(c, c.Attempt),
		LogPath: w.logPath(c.Name, c.Attempt-1), NetNS: w.netns(),
		Hostname: hostname(f.pod, node, w.k.cfg.ClusterDomain), Command: expandAll(c.spec.Command, vars), Args: expandAll(c.spec.Args, vars),
		Env:        env,
		WorkingDir: c.spec.WorkingDir,
		ResolvConf: resolvConf(f.pod, podspec.Resolver{Cluster: w.k.cfg.ClusterDNS, Domain: w.k.cfg.ClusterDomain, Node: w.k.cfg.NodeDNS}),
		Hosts:      hostsFile(f.pod, f.podIPs, node, w.k.cfg.ClusterDomain), Mounts: mnts,
		TTY: c.spec.TTY, Stdin: c.spec.Stdin, StdinOnce: c.spec.StdinOnce, Limits: limits(&c.Resources),
		Labels: map[string]string{"io.kubernetes.pod.namespace": f.pod.Namespace, "io.kubernetes.pod.name": f.pod.Name,
			"io.kubernetes.pod.uid": w.uid, imageLabel: image.ID},
	}
	if _, s.Sysctls, err = sysctls(f.pod); err != nil {
		return s, err
	}
	if err := image.Apply(&s); err != nil {
		return s, err
	}
	if l := c.spec.Lifecycle; l != nil && l.StopSignal != nil {
		if s.StopSignal, err = signal.ParseSignal(string(*l.StopSignal)); err != nil {
			return s, fmt.Errorf("lifecycle.stopSignal: %w", err)
		}
	}
	return s, secure(&s, f.pod.Spec.SecurityContext, c.spec.SecurityContext)
}

func expandAll(list []string, vars map[string]string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = podspec.Expand(s, vars)
	}
	return out
}

func variables(env []string) map[string]string {
	vars := make(map[string]string, len(env))
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		vars[name] = value
	}
	return vars
}

// secure puts the security contexts into the spec; the container's wins over the pod's.
func secure(s *container.Spec, pod *corev1.PodSecurityContext, c *corev1.SecurityContext) error {
	if pod == nil {
		pod = &corev1.PodSecurityContext{}
	}
	if c == nil {
		c = &corev1.SecurityContext{}
	}
	s.UID, s.GID = cmp.Or(c.RunAsUser, pod.RunAsUser), cmp.Or(c.RunAsGroup, pod.RunAsGroup)
	if pod.FSGroup != nil {
		s.Groups = append(s.Groups, *pod.FSGroup)
	}
	s.Groups = append(s.Groups, pod.SupplementalGroups...)
	s.StrictGroups = pod.SupplementalGroupsPolicy != nil && *pod.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict
	s.Privileged = isTrue(c.Privileged)
	s.ReadOnlyRoot = isTrue(c.ReadOnlyRootFilesystem)
	s.NoNewPrivs = c.AllowPrivilegeEscalation != nil && !*c.AllowPrivilegeEscalation
	if c.Capabilities != nil {
		for _, a := range c.Capabilities.Add {
			s.AddCaps = append(s.AddCaps, string(a))
		}
		for _, d := range c.Capabilities.Drop {
			s.DropCaps = append(s.DropCaps, string(d))
		}
	}
	if isTrue(cmp.Or(c.RunAsNonRoot, pod.RunAsNonRoot)) {
		return mayBeRoot(s)
	}
	return nil
}

func (w *worker) containerDir(c *containerState, attempt int) string {
	return filepath.Join(w.dir, "containers", c.Name, strconv.Itoa(attempt))
}

// layerDir is where a container's writable layer is, "" where that is in memory.
func (w *worker) layerDir(c *containerState, attempt int) string {
	if !w.k.cfg.DiskLayers {
		return ""
	}
	return filepath.Join(w.disk, "layers", c.Name, strconv.Itoa(attempt))
}

// logPath is where a container logs; restarts counts from 0, as in upstream's /var/log/pods.
func (w *worker) logPath(name string, restarts int) string {
	return filepath.Join(w.disk, "logs", name, strconv.Itoa(restarts)+".log")
}

// removeLog deletes the log of an attempt that is older than kubectl logs --previous reaches.
func (w *worker) removeLog(c *containerState, attempt int) {
	if attempt > 0 {
		_ = os.Remove(w.logPath(c.Name, attempt-1))
		_ = os.Remove(w.messagePath(c, attempt))
	}
}

func (w *worker) messagePath(c *containerState, attempt int) string {
	return filepath.Join(w.disk, "messages", c.Name, strconv.Itoa(attempt))
}

func (w *worker) messageFile(c *containerState, attempt int) (string, error) {
	path := w.messagePath(c, attempt)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		return "", err
	}
	return path, os.Chmod(path, 0o666)
}

// The sizes of a termination message, from a file and from the log (pkg/kubelet/container/runtime.go).
const (
	messageMax    = 4096
	messageLogMax = 2048
	messageLines  = 80
)

// terminationMessage is what the container left in its message file, or the end of its log where the policy says so.
func (w *worker) terminationMessage(c *containerState, code int) string {
	f, err := os.Open(w.messagePath(c, c.Attempt))
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, messageMax))
	if len(b) > 0 || code == 0 || c.spec.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
		return string(b)
	}
	var out strings.Builder
	_ = container.ReadLogs(context.Background(), w.logPath(c.Name, c.Attempt-1), logs.Options{Tail: new(messageLines)}, nil, &out)
	s := out.String()
	return s[max(len(s)-messageLogMax, 0):]
}
