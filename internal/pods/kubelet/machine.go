package kubelet

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A step is one of the pod's set-up steps, its volumes, its sandbox, or a change of its resources.
type step struct {
	ready, busy bool
	retry       retry
}

func (s *step) due(now time.Time) bool { return !s.ready && !s.busy && !now.Before(s.retry.At) }

// A verb is what an action does.
type verb int

const (
	doVolumes verb = iota
	doSandbox
	doStart
	doStop
	doResize
	doTeardown
)

// An action is something that the worker is to do; it answers by one of the machine's methods.
type action struct {
	do verb
	c  *containerState
	// grace is how long doStop waits between SIGTERM and SIGKILL.
	grace time.Duration
}

// An event is one of Kubernetes', about the pod or one of its containers.
type event struct {
	kind, reason, message string
	c                     *containerState
}

// A machine is the life of one pod. It is pure: it does nothing itself and knows no clock. Its methods are not safe for concurrent use.
type machine struct {
	pod        *corev1.Pod
	containers []*containerState // init containers and sidecars in order, then the others, then ephemeral ones

	volumes, sandbox step
	resize, teardown step
	trouble          *corev1.PodCondition // why a resize is not done
	startTime        time.Time
	ips              []string

	deleting bool
	deadline time.Time // when what still runs is killed, while deleting
	// failure ends the pod with phase Failed: DeadlineExceeded and the like.
	failure *event

	events []event
}

func newMachine(pod *corev1.Pod, now time.Time) *machine {
	m := &machine{pod: pod, startTime: now}
	if s := pod.Status.StartTime; s != nil {
		m.startTime = s.Time
	}
	m.bind(pod)
	return m
}

// bind takes over the pod's specification: containers that are new are added, specs that changed are replaced.
func (m *machine) bind(pod *corev1.Pod) {
	old := make(map[string]*containerState, len(m.containers))
	for _, c := range m.containers {
		old[c.Name] = c
	}
	m.pod, m.containers = pod, nil
	add := func(r role, spec *corev1.Container) {
		c := old[spec.Name]
		if c == nil {
			c = &containerState{Name: spec.Name, Phase: phaseWaiting, Resources: *spec.Resources.DeepCopy()}
		}
		c.role, c.spec = r, spec
		m.containers = append(m.containers, c)
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		r := roleInit
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			r = roleSidecar
		}
		add(r, c)
	}
	for i := range pod.Spec.Containers {
		add(roleRegular, &pod.Spec.Containers[i])
	}
	for i := range pod.Spec.EphemeralContainers {
		c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		add(roleEphemeral, &c)
	}
}

// update takes a new version of the pod. A container whose image changed is stopped, and starts again with the new one.
func (m *machine) update(pod *corev1.Pod) (restart []*containerState) {
	images := make(map[string]string)
	for _, c := range m.containers {
		images[c.Name] = c.spec.Image
	}
	m.bind(pod)
	m.resize.retry.succeeded()
	for _, c := range m.containers {
		was, known := images[c.Name]
		if !known || was == c.spec.Image {
			continue
		}
		c.RetryAt, c.Image, c.Crash = time.Time{}, backoff{}, backoff{}
		if c.Phase == phaseRunning && !c.stopping {
			m.emit(corev1.EventTypeNormal, "Killing", fmt.Sprintf("Container %s definition changed, will be restarted", c.Name), c)
			restart = append(restart, c)
		}
	}
	return restart
}

func (m *machine) emit(kind, reason, message string, c *containerState) {
	m.events = append(m.events, event{kind, reason, message, c})
}

// takeEvents gives the events since the last call.
func (m *machine) takeEvents() []event {
	e := m.events
	m.events = nil
	return e
}

// grace is the pod's time to end in peace when nobody asked for another.
func (m *machine) grace() time.Duration {
	if m.failure != nil && m.failure.reason == reasonEvicted {
		return evictedGrace
	}
	if g := m.pod.Spec.TerminationGracePeriodSeconds; g != nil {
		return time.Duration(*g) * time.Second
	}
	return 30 * time.Second
}

// delete asks the pod to end by deadline. A later call can only bring the deadline forward; it reports whether it did.
func (m *machine) delete(deadline time.Time) bool {
	sooner := !m.deleting || deadline.Before(m.deadline)
	if sooner {
		m.deadline = deadline
	}
	m.deleting = true
	return sooner
}

// terminal tells that no container of the pod will run again.
func (m *machine) terminal() bool {
	if m.deleting || m.failure != nil {
		return true
	}
	regular := 0
	for _, c := range m.containers {
		switch {
		case c.role == roleInit && c.over(m.pod) && c.Exit.Code != 0:
			return true
		case c.role == roleRegular && !c.over(m.pod):
			return false
		case c.role == roleRegular:
			regular++
		}
	}
	return regular > 0
}

// finished tells that the pod is terminal and nothing of it is left but its directory.
func (m *machine) finished() bool {
	if !m.terminal() || m.volumes.busy || m.sandbox.busy || m.teardown.busy || !m.teardown.ready {
		return false
	}
	return !m.anyLive(everyRole...)
}

func (m *machine) anyLive(roles ...role) bool {
	for _, c := range m.containers {
		for _, r := range roles {
			if c.role == r && c.live() {
				return true
			}
		}
	}
	return false
}

// settled tells that nothing is under way whose end would change the status soon.
func (m *machine) settled() bool {
	if m.volumes.busy || m.sandbox.busy || m.resize.busy || m.teardown.busy {
		return false
	}
	for _, c := range m.containers {
		if c.Phase == phaseStarting {
			return false
		}
	}
	return true
}

// step decides what is to be done now. wake is when to ask again though nothing happened; zero for never. Each action is given out once.
func (m *machine) step(now time.Time) (acts []action, wake time.Time) {
	later := func(t time.Time) {
		if t.After(now) && (wake.IsZero() || t.Before(wake)) {
			wake = t
		}
	}
	if limit, ok := m.activeDeadline(); ok && m.failure == nil && !m.terminal() {
		if !now.Before(limit) {
			m.failure = &event{reason: "DeadlineExceeded", message: "Pod was active on the node longer than the specified deadline"}
			m.emit(corev1.EventTypeNormal, "DeadlineExceeded", m.failure.message, nil)
		}
		later(limit)
	}
	if m.terminal() {
		return m.stepDown(now, later), wake
	}
	if m.resize.ready = len(m.resized()) == 0; m.resize.ready {
		m.trouble = nil
	}
	for _, s := range []struct {
		*step
		do verb
	}{{&m.volumes, doVolumes}, {&m.sandbox, doSandbox}, {&m.resize, doResize}} {
		if s.due(now) {
			s.busy = true
			acts = append(acts, action{do: s.do})
		}
		if !s.ready && !s.busy {
			later(s.retry.At)
		}
	}
	if !m.volumes.ready || !m.sandbox.ready || m.resize.busy {
		return acts, wake
	}
	for _, c := range m.runnable() {
		if m.startable(c, now, later) {
			c.Phase, c.Attempt = phaseStarting, c.Attempt+1
			// What is shown while it waits is shown until it runs.
			c.Started, c.Ready, c.stopping, c.held = false, false, false, false
			acts = append(acts, action{do: doStart, c: c})
		}
	}
	return acts, wake
}

func (m *machine) activeDeadline() (time.Time, bool) {
	s := m.pod.Spec.ActiveDeadlineSeconds
	if s == nil {
		return time.Time{}, false
	}
	return m.startTime.Add(time.Duration(*s) * time.Second), true
}

// runnable lists the containers whose turn has come: sidecars that were reached, the first init container that is not done, or all the
// others.
func (m *machine) runnable() []*containerState {
	var list []*containerState
	for _, c := range m.containers {
		if c.role == roleEphemeral { // kubectl debug helps where nothing else starts
			list = append(list, c)
		}
	}
	for _, c := range m.containers {
		switch c.role {
		case roleEphemeral:
		case roleSidecar:
			list = append(list, c)
			if !c.Started && !m.initialized() {
				return list
			}
		case roleInit:
			if !c.succeeded() {
				return append(list, c)
			}
		default:
			list = append(list, c)
		}
	}
	return list
}

// initialized tells that every init container has done its work and every sidecar has started once.
func (m *machine) initialized() bool {
	return !slices.ContainsFunc(m.containers, (*containerState).initializing)
}

// startable tells whether a container that is not running is to be started now, and moves one that has to wait into its back-off.
func (m *machine) startable(c *containerState, now time.Time, later func(time.Time)) bool {
	switch c.Phase {
	case phaseWaiting:
		if c.Reason == reasonImage {
			if seen := c.RetryAt.Add(imageSeen - c.Image.Delay); now.Before(seen) {
				later(seen)
			} else {
				m.imageHeld(c)
			}
		}
		later(c.RetryAt)
		return !now.Before(c.RetryAt)
	case phaseExited:
	default:
		return false
	}
	if c.over(m.pod) {
		return false
	}
	until := c.Crash.until(c.Exit.Finished, now)
	if until.After(now) {
		if !c.held {
			c.held = true
			c.Reason = "CrashLoopBackOff"
			c.Message = fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", c.Crash.Delay, c.Name, podRef(m.pod))
			m.emit(corev1.EventTypeWarning, "BackOff", fmt.Sprintf("Back-off restarting failed container %s in pod %s", c.Name, podRef(m.pod)), c)
		}
		later(until)
		return false
	}
	c.Crash.next(now)
	return true
}

// podRef names a pod as upstream's messages do.
func podRef(p *corev1.Pod) string { return fmt.Sprintf("%s_%s(%s)", p.Name, p.Namespace, p.UID) }

// stepDown ends what runs, sidecars last and in reverse order, and then takes the sandbox down.
func (m *machine) stepDown(now time.Time, later func(time.Time)) (acts []action) {
	grace := m.grace()
	if m.deleting {
		grace = max(m.deadline.Sub(now), 0)
	}
	stop := func(c *containerState) {
		if c.Phase == phaseRunning && !c.stopping {
			c.stopping = true // it stays ready: a pod that ends goes on serving what it can
			m.emit(corev1.EventTypeNormal, "Killing", "Stopping container "+c.Name, c)
			acts = append(acts, action{do: doStop, c: c, grace: grace})
		}
	}
	for _, c := range m.containers {
		if c.role != roleSidecar {
			stop(c)
		}
	}
	if m.anyLive(roleInit, roleRegular, roleEphemeral) {
		return acts
	}
	for i := len(m.containers) - 1; i >= 0; i-- {
		if c := m.containers[i]; c.role == roleSidecar && c.live() {
			stop(c)
			return acts
		}
	}
	if m.volumes.busy || m.sandbox.busy {
		return acts
	}
	if m.teardown.due(now) {
		m.teardown.busy = true
		acts = append(acts, action{do: doTeardown})
	}
	later(m.teardown.retry.At)
	return acts
}
