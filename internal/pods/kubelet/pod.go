package kubelet

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/podspec"
)

// A worker does for one pod what its machine says.
type worker struct {
	k     *Kubelet
	uid   string
	dir   string
	disk  string
	after <-chan struct{} // the pod that had the name before is gone
	done  chan struct{}   // nothing of the pod is left
	wake  chan struct{}

	mu        sync.Mutex
	m         *machine
	sandboxID string
	vols      map[string]volume
	refresh   time.Time // when the volumes are to be renewed: a token gets old, or something has changed
	stale     bool      // something has changed since makeVolumes began to look
	renewing  bool      // renewVolumes is under way
	runs      map[string]*run
	published *corev1.PodStatus
	told      time.Time // when that was published
	shown     bool      // the API server has shown it since
	unsaid    time.Time // since when the status differs from what was published
	saved     []byte    // the state file's content
	savedPod  *corev1.Pod
	restored  bool // left by the kubelet before
	gone      bool // its directory is being removed
	processes sandbox
	measuring atomic.Bool
	// cleanup counts what may still work on files of the pod though the machine has finished.
	cleanup sync.WaitGroup
}

// A run is a container that runs, and what goes on around it.
type run struct {
	c        Container
	stopping func() // ends the grace period of a stop that is under way; nil: none
	probes   context.CancelFunc
}

// statusDelay is how long a status may wait for more changes while a start is under way: most pods are running before it ends, and the API
// server gets one update instead of two or three, each of which costs it and all who watch pods more than a container's start.
const statusDelay = time.Second

// readyDelay is for a pod that was ready: somebody may send it requests, or wait for its end.
const readyDelay = 200 * time.Millisecond

func newWorker(k *Kubelet, pod *corev1.Pod, after <-chan struct{}) *worker {
	dir := k.podDir(string(pod.UID))
	return &worker{
		k: k, uid: string(pod.UID), dir: dir, disk: k.podDisk(string(pod.UID)), after: after,
		processes: sandbox{k: k, dir: filepath.Join(dir, "sandbox")},
		done:      make(chan struct{}), wake: make(chan struct{}, 1),
		m: newMachine(pod.DeepCopy(), k.cfg.Clock.Now()), runs: make(map[string]*run),
	}
}

// do changes the machine and lets the loop look at it.
func (w *worker) do(change func(m *machine, now time.Time)) {
	w.mu.Lock()
	change(w.m, w.k.cfg.Clock.Now())
	w.save()
	w.mu.Unlock()
	w.kick()
}

func (w *worker) kick() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// loop runs until nothing of the pod is left or ctx ends; containers run on in the latter case.
func (w *worker) loop(ctx context.Context) {
	timer := w.k.cfg.Clock.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next, gone := w.turn(ctx)
		if gone {
			if w.k.finalize(ctx, w) {
				close(w.done)
			}
			return
		}
		timer.Stop()
		var expired <-chan time.Time
		if !next.IsZero() {
			timer.Reset(max(next.Sub(w.k.cfg.Clock.Now()), 0))
			expired = timer.C()
		}
		select {
		case <-ctx.Done():
			w.stopProbes()
			return
		case <-w.wake:
		case <-expired:
		}
	}
}

// turn asks the machine what to do, does it, and publishes the status. gone tells that the pod was deleted and nothing of it is left.
func (w *worker) turn(ctx context.Context) (next time.Time, gone bool) {
	w.mu.Lock()
	now := w.k.cfg.Clock.Now()
	acts, next := w.m.step(now)
	events := w.m.takeEvents()
	w.save()
	gone = w.m.deleting && w.m.finished()
	pod := w.m.pod
	say := w.publishable(now, &next)
	if !w.refresh.IsZero() && !w.m.terminal() {
		if !now.Before(w.refresh) && !w.renewing {
			w.refresh = now.Add(time.Minute) // unless the renewal sets another time
			w.renewing = true
			w.cleanup.Add(1)
			go w.renewVolumes(ctx)
		}
		next = earlier(next, w.refresh)
	}
	w.mu.Unlock()

	for _, e := range events {
		w.k.recorder.Event(eventObject(pod, e.c), e.kind, e.reason, e.message)
	}
	for _, a := range acts {
		if a.do == doStop { // which goes on when the kubelet ends
			go w.act(ctx, a)
			continue
		}
		w.k.group.Go(func() { w.act(ctx, a) })
	}
	if say != nil && !gone {
		w.k.publish(say)
	}
	return next, gone
}

// publishable gives the pod to publish, if its status has changed and is not about to change again. w.mu is held.
func (w *worker) publishable(now time.Time, next *time.Time) *corev1.Pod {
	pod := w.withStatus(now)
	if w.published != nil && equality.Semantic.DeepEqual(*w.published, pod.Status) {
		w.unsaid = time.Time{}
		return nil
	}
	if w.unsaid.IsZero() {
		w.unsaid = now
	}
	delay := statusDelay
	if w.published != nil && slices.ContainsFunc(w.published.Conditions, isReady) {
		delay = readyDelay
	}
	if wait := w.unsaid.Add(delay); !w.m.settled() && now.Before(wait) {
		*next = earlier(*next, wait)
		return nil
	}
	w.published, w.told, w.shown, w.unsaid = &pod.Status, now, false, time.Time{}
	return pod
}

// withStatus is the pod with its status as of now; all else in it is shared. w.mu is held.
func (w *worker) withStatus(now time.Time) *corev1.Pod {
	pod := *w.m.pod
	base := pod.Status
	if p := w.k.fromAPI(&pod); p != nil {
		base = p.Status
	}
	if w.published != nil {
		base.Conditions = slices.Clone(base.Conditions)
		for _, c := range w.published.Conditions { // what was published last knows the transition times better than a cache
			if i := conditionIndex(base.Conditions, c.Type); ours(c.Type) && i >= 0 {
				base.Conditions[i] = c
			} else if ours(c.Type) {
				base.Conditions = append(base.Conditions, c)
			}
		}
	}
	pod.Status = w.m.status(base, w.k.ip, now)
	return &pod
}

// ours tells whether a condition is a kubelet's to set.
func ours(t corev1.PodConditionType) bool {
	switch t {
	case corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady, corev1.PodResizePending,
		corev1.PodResizeInProgress:
		return true
	}
	return false
}

// conditionIndex is where a list has a condition, -1 where it has not.
func conditionIndex(list []corev1.PodCondition, t corev1.PodConditionType) int {
	return slices.IndexFunc(list, func(c corev1.PodCondition) bool { return c.Type == t })
}

func (w *worker) podWithStatus() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.withStatus(w.k.cfg.Clock.Now())
}

func eventObject(pod *corev1.Pod, c *containerState) *corev1.ObjectReference {
	ref := &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion}
	if c != nil {
		field := "containers"
		switch c.role {
		case roleInit, roleSidecar:
			field = "initContainers"
		case roleEphemeral:
			field = "ephemeralContainers"
		}
		ref.FieldPath = "spec." + field + "{" + c.Name + "}"
	}
	return ref
}

func (w *worker) update(pod *corev1.Pod) {
	var restart []*containerState
	told := notSupported(w.pod(), w.k.cfg.Unbounded)
	w.warn(slices.DeleteFunc(notSupported(pod, w.k.cfg.Unbounded), func(s string) bool { return slices.Contains(told, s) })...)
	w.do(func(m *machine, _ time.Time) {
		restart = m.update(pod.DeepCopy())
		for _, c := range restart {
			c.stopping = true
		}
		w.refresh = w.k.cfg.Clock.Now() // labels and annotations may be in a volume
	})
	for _, c := range restart {
		go w.stop(c, w.grace())
	}
}

func (w *worker) delete(deadline time.Time) {
	w.do(func(m *machine, now time.Time) {
		if !m.delete(deadline) {
			return
		}
		for _, r := range w.runs {
			if r.stopping != nil { // it was stopping with more time
				time.AfterFunc(deadline.Sub(now), r.stopping)
			}
		}
	})
}

// act does one of the machine's actions and tells it the outcome.
func (w *worker) act(ctx context.Context, a action) {
	switch a.do {
	case doVolumes:
		err := w.makeVolumes(ctx)
		w.do(func(m *machine, now time.Time) { m.volumesDone(now, err) })
	case doSandbox:
		ips, err := w.makeSandbox(ctx)
		if err != nil && ctx.Err() != nil {
			return // the kubelet ends; the next one starts again
		}
		w.do(func(m *machine, now time.Time) { m.sandboxDone(now, ips, err) })
	case doStart:
		w.start(ctx, a.c)
	case doStop:
		w.stop(a.c, a.grace)
	case doResize:
		w.resizeContainers()
	case doTeardown:
		err := w.removeSandbox(ctx)
		if err != nil && ctx.Err() != nil {
			return
		}
		w.do(func(m *machine, now time.Time) { m.teardownDone(now, err) })
	}
}

func (w *worker) facts() podFacts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return podFacts{pod: w.m.pod, hostIP: w.k.ip.String(), podIPs: w.m.ips, allocatable: w.k.node.Status.Allocatable}
}

// volumesLimit is how long one look at a pod's volumes may take; then the next one begins.
const volumesLimit = 2 * time.Minute

func (w *worker) volumesDir() string { return filepath.Join(w.disk, "volumes") }

func (w *worker) makeVolumes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, volumesLimit)
	defer cancel()
	w.mu.Lock()
	w.stale = false
	w.mu.Unlock()
	v := volumes{dir: w.volumesDir(), memory: w.k.cfg.MountMemory, host: w.k.hostRoot(), base: w.k.cfg.Distribution, src: w.k.cfg.Shared,
		tok: w.k.cfg.Shared, claims: w.k.cfg.Shared, now: w.k.cfg.Clock.Now}
	vols, refresh, err := v.setup(ctx, w.facts())
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.vols, w.refresh = vols, refresh
	if w.stale {
		w.refresh = w.k.cfg.Clock.Now()
	}
	return nil
}

// renewVolumes brings the files up to date: a token that gets old, a ConfigMap that changed. What fails is tried again by the loop.
func (w *worker) renewVolumes(ctx context.Context) {
	defer w.cleanup.Done()
	if err := w.makeVolumes(ctx); err != nil {
		w.k.cfg.Log("pod %s: renew volumes: %v", podRef(w.pod()), err)
	}
	w.mu.Lock()
	w.renewing = false
	w.mu.Unlock()
	w.kick()
}

// changed is told when a ConfigMap or Secret of the pod's namespace changed.
func (w *worker) changed(kind, name string) {
	w.mu.Lock()
	use := podspec.Uses(w.m.pod, podspec.Object{Kind: kind, Name: name}) && !w.m.terminal()
	if use {
		w.m.poke()
		w.stale = true
		if w.m.volumes.ready && !w.renewing {
			w.refresh = w.k.cfg.Clock.Now()
		}
	}
	w.mu.Unlock()
	if use {
		w.kick()
	}
}

// makeSandbox gives the pod its network: a namespace of its own on the node's network, or the node's.
func (w *worker) makeSandbox(ctx context.Context) ([]string, error) {
	if w.after != nil {
		select {
		case <-w.after:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if w.pod().Spec.HostNetwork {
		return []string{w.k.ip.String()}, nil
	}
	if err := w.k.waitNetworked(ctx); err != nil {
		return nil, err
	}
	release, err := w.k.cfg.Shared.sandboxes.take(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	path := w.netns()
	id := newID()
	w.do(func(*machine, time.Time) { w.sandboxID = id }) // before the plugin is called: whoever comes after a crash knows what to delete
	ns, err := w.k.cfg.NewNetNS(path)
	if errors.Is(err, os.ErrExist) { // of a kubelet that was killed in the middle
		if err = w.k.cfg.RemoveNetNS(path); err == nil {
			ns, err = w.k.cfg.NewNetNS(path)
		}
	}
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	if err := setSysctls(ns, w.pod()); err != nil {
		return nil, errors.Join(err, w.k.cfg.RemoveNetNS(path))
	}
	ips, err := w.k.net.add(ctx, w.pod(), id, path)
	if err != nil {
		err = fmt.Errorf("failed to setup network for sandbox %q: %w", id, err)
		if derr := w.k.net.del(context.WithoutCancel(ctx), w.pod(), id, path); derr != nil {
			w.k.cfg.Log("pod %s: clean up after a failed CNI ADD: %v", podRef(w.pod()), derr)
		}
		return nil, errors.Join(err, w.k.cfg.RemoveNetNS(path))
	}
	if message := hostPortsNotSupported(w.pod()); message != "" && !w.k.net.mapsPorts() {
		w.warn(message)
	}
	return ips, nil
}

// setSysctls writes the pod's net.* sysctls.
func setSysctls(ns Namespace, pod *corev1.Pod) error {
	network, _, err := sysctls(pod)
	if err != nil || len(network) == 0 {
		return err
	}
	return ns.Do(func() error { return container.SetSysctls(network) })
}

// sysctls are the pod's, those of the network and those of IPC namespaces, which each container has for itself. Others would change the
// machine's and are refused.
func sysctls(pod *corev1.Pod) (network, ipc map[string]string, err error) {
	network, ipc = map[string]string{}, map[string]string{}
	if pod.Spec.SecurityContext == nil {
		return network, ipc, nil
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		key := strings.ReplaceAll(s.Name, ".", "/")
		begins := func(prefix string) bool { return strings.HasPrefix(key, prefix) }
		switch {
		case !filepath.IsLocal(key), filepath.Clean(key) != key:
			err = errors.New("is no name")
		case begins("net/"):
			network[key] = s.Value
		case key == "kernel/sem", begins("kernel/shm"), begins("kernel/msg"), begins("fs/mqueue/"):
			ipc[key] = s.Value
		default:
			err = errors.New("only those of the network and of IPC namespaces can be set in a lab")
		}
		if err != nil {
			return nil, nil, fmt.Errorf("sysctl %s: %w", s.Name, err)
		}
	}
	return network, ipc, nil
}

func (w *worker) removeSandbox(ctx context.Context) error {
	w.mu.Lock()
	pod, id := w.m.pod, w.sandboxID
	w.mu.Unlock()
	if isTrue(pod.Spec.ShareProcessNamespace) {
		if err := w.processes.end(); err != nil {
			return err
		}
	}
	if pod.Spec.HostNetwork || id == "" {
		return nil
	}
	if err := w.k.net.del(ctx, pod, id, w.netns()); err != nil {
		return err
	}
	return w.k.cfg.RemoveNetNS(w.netns())
}

// netns is the path of the network namespace that the pod's containers are in.
func (w *worker) netns() string {
	if w.pod().Spec.HostNetwork {
		return w.k.cfg.NodeNS.Path()
	}
	return w.k.PodNetNS(w.pod().Namespace, w.pod().Name)
}

// dial connects to an address of the pod itself, from inside.
func (w *worker) dial(ctx context.Context, port int32) (net.Conn, error) {
	ns := w.k.cfg.NodeNS
	if !w.pod().Spec.HostNetwork {
		var err error
		if ns, err = w.k.cfg.OpenNetNS(w.netns()); err != nil {
			return nil, err
		}
		defer ns.Close()
	}
	var conn net.Conn
	var err error
	for _, host := range []string{"127.0.0.1", "::1"} {
		if conn, err = ns.Dial(ctx, "tcp", net.JoinHostPort(host, fmt.Sprint(port))); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// newID makes the name of a sandbox or a container: 64 hexadecimal digits, as container runtimes do.
func newID() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // it cannot fail
	return hex.EncodeToString(b[:])
}
