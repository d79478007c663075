package kubelet

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/pods/container"
)

// volumesDone takes the outcome of doVolumes.
func (m *machine) volumesDone(now time.Time, err error) {
	m.volumes.busy = false
	if err != nil {
		m.volumes.retry.failed(now, 500*time.Millisecond, 2*time.Minute)
		m.emit(corev1.EventTypeWarning, "FailedMount", err.Error(), nil)
		return
	}
	m.volumes.ready = true
	m.volumes.retry.succeeded()
}

// sandboxDone takes the outcome of doSandbox.
func (m *machine) sandboxDone(now time.Time, ips []string, err error) {
	m.sandbox.busy = false
	if err != nil {
		m.sandbox.retry.failed(now, time.Second, time.Minute)
		m.emit(corev1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error(), nil)
		return
	}
	m.sandbox.ready, m.ips = true, ips
	m.sandbox.retry.succeeded()
}

// teardownDone takes the outcome of doTeardown.
func (m *machine) teardownDone(now time.Time, err error) {
	m.teardown.busy = false
	if err != nil {
		m.teardown.retry.failed(now, time.Second, time.Minute)
		m.emit(corev1.EventTypeWarning, "FailedKillPod", "error killing pod: "+err.Error(), nil)
		return
	}
	m.teardown.ready, m.sandbox.ready = true, false
}

// started takes a start that succeeded.
func (m *machine) started(c *containerState, s container.Spec, at time.Time) {
	c.Phase, c.ID, c.ImageID, c.StartedAt = phaseRunning, s.ID, s.Labels[imageLabel], at
	c.Started = c.spec.StartupProbe == nil
	c.Ready = c.Started && c.spec.ReadinessProbe == nil && c.serves()
	c.Reason, c.Message = "", ""
	c.RetryAt, c.Image = time.Time{}, backoff{}
	m.emit(corev1.EventTypeNormal, "Started", "Container started", c)
}

// A startFailure is why a container did not start.
type startFailure struct {
	kind    failureKind
	reason  string // shown while waiting
	message string
}

type failureKind int

const (
	failedConfig failureKind = iota // what the container needs is not there: tried again soon
	failedImage                     // no such image: tried again with back-off
	failedRun                       // the container itself cannot run: counts as an exit
)

// startFailed takes a start that failed.
func (m *machine) startFailed(c *containerState, f startFailure, now time.Time) {
	if f.kind == failedRun {
		m.emit(corev1.EventTypeWarning, "Failed", "Error: "+f.message, c)
		// A container that never ran began at Unix time 0, as containerd reports it.
		m.exited(c, termination{ID: c.ID, Code: 128, Reason: "StartError", Message: f.message, StartedAt: time.Unix(0, 0), Finished: now})
		c.Reason, c.Message = f.reason, f.message
		return
	}
	c.Attempt-- // no container was made
	c.Phase, c.Reason, c.Message = phaseWaiting, f.reason, f.message
	if f.kind == failedConfig {
		c.RetryAt = now.Add(backoffInitial)
		m.emit(corev1.EventTypeWarning, "Failed", "Error: "+f.message, c)
		return
	}
	m.emit(corev1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %s", c.spec.Image, f.message), c)
	m.emit(corev1.EventTypeWarning, "Failed", "Error: "+f.reason, c)
	c.Image.next(now)
	c.RetryAt = now.Add(c.Image.Delay)
}

// imageHeld turns ErrImagePull into ImagePullBackOff.
func (m *machine) imageHeld(c *containerState) {
	c.Reason = "ImagePullBackOff"
	c.Message = fmt.Sprintf("Back-off pulling image %q: ErrImagePull: %s", c.spec.Image, c.Message)
	m.emit(corev1.EventTypeNormal, "BackOff", fmt.Sprintf("Back-off pulling image %q", c.spec.Image), c)
	m.emit(corev1.EventTypeWarning, "Failed", "Error: ImagePullBackOff", c)
}

// exited takes a container's end.
func (m *machine) exited(c *containerState, t termination) {
	c.Phase, c.Exit = phaseExited, &t
	c.Started, c.Ready, c.stopping, c.held = false, false, false, false
	c.Reason, c.Message = "", ""
}

// A probeKind is one of Kubernetes' three.
type probeKind string

const (
	startupProbe   probeKind = "Startup"
	readinessProbe probeKind = "Readiness"
	livenessProbe  probeKind = "Liveness"
)

// probed takes what a probe found after its threshold. It returns the action that a failure asks for, if any.
func (m *machine) probed(c *containerState, kind probeKind, ok bool) (acts []action) {
	if c.Phase != phaseRunning || c.stopping && kind != readinessProbe {
		return nil
	}
	switch {
	case kind == readinessProbe:
		c.Ready = ok && c.Started && c.serves()
	case kind == startupProbe && ok:
		c.Started = true
		c.Ready = c.spec.ReadinessProbe == nil && c.serves()
	case !ok:
		m.emit(corev1.EventTypeNormal, "Killing",
			fmt.Sprintf("Container %s failed %s probe, will be restarted", c.Name, strings.ToLower(string(kind))), c)
		c.stopping = true
		acts = []action{{do: doStop, c: c, grace: m.probeGrace(c, kind)}}
	}
	return acts
}

// probeGrace is the time to end in peace after a probe failed: its own, or the pod's.
func (m *machine) probeGrace(c *containerState, kind probeKind) time.Duration {
	probe := c.spec.LivenessProbe
	if kind == startupProbe {
		probe = c.spec.StartupProbe
	}
	if probe != nil && probe.TerminationGracePeriodSeconds != nil {
		return time.Duration(*probe.TerminationGracePeriodSeconds) * time.Second
	}
	return m.grace()
}

// poke lets waits for configuration and volumes end now: something that they may be waiting for has changed.
func (m *machine) poke() {
	for _, c := range m.containers {
		if c.Phase == phaseWaiting && c.Reason == reasonConfigError {
			c.RetryAt = time.Time{}
		}
	}
	m.volumes.retry.At = time.Time{}
}

// Reasons of a wait that the machine itself looks at; kubelet's words.
const (
	reasonConfigError = "CreateContainerConfigError"
	reasonImage       = "ErrImagePull"
)

// imageSeen is how long ErrImagePull is shown before it becomes ImagePullBackOff.
const imageSeen = 2 * time.Second
