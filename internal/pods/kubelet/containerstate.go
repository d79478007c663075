package kubelet

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A role is how a container takes part in its pod's life.
type role int

const (
	roleInit role = iota
	roleSidecar
	roleRegular
	roleEphemeral
)

var everyRole = []role{roleInit, roleSidecar, roleRegular, roleEphemeral}

// A phase is where a container stands.
type phase string

const (
	phaseWaiting  phase = "waiting"
	phaseStarting phase = "starting" // a start is under way
	phaseRunning  phase = "running"
	phaseExited   phase = "exited"
)

// A termination is how a container ended.
type termination struct {
	ID                  string    `json:"id,omitempty"`
	Code                int       `json:"code"`
	Signal              int       `json:"signal,omitempty"`
	Reason              string    `json:"reason,omitempty"`
	Message             string    `json:"message,omitempty"`
	StartedAt, Finished time.Time `json:",omitzero"`
}

// A containerState is what the machine knows of one container of the pod. It is written to the pod's state file.
type containerState struct {
	Name  string `json:"name"`
	Phase phase  `json:"phase"`
	// Attempt is the number of containers made, the running one included; a restart count is one less.
	Attempt int    `json:"attempt"`
	ID      string `json:"id,omitempty"`
	ImageID string `json:"imageID,omitempty"` // of the container made last
	// Resources are those that it has, or gets when it starts; other than the pod's while a change of them is under way (resize.go).
	Resources corev1.ResourceRequirements `json:"resources,omitzero"`
	// Reason and Message are what is shown while waiting; "" for the usual ones.
	Reason    string       `json:"reason,omitempty"`
	Message   string       `json:"message,omitempty"`
	StartedAt time.Time    `json:"startedAt,omitzero"`
	Exit      *termination `json:"exit,omitempty"` // of the container that ended last
	Crash     backoff      `json:"crash,omitzero"`
	Image     backoff      `json:"image,omitzero"`
	// RetryAt holds a container back that waits.
	RetryAt time.Time `json:"retryAt,omitzero"`
	Started bool      `json:"started,omitempty"` // started, and its startup probe has succeeded
	Ready   bool      `json:"ready,omitempty"`

	role     role
	spec     *corev1.Container
	stopping bool
	held     bool // a BackOff event has been sent for this wait
}

// restartPolicy is the container's own, or the pod's.
func (c *containerState) restartPolicy(pod *corev1.Pod) corev1.RestartPolicy {
	switch {
	case c.role == roleEphemeral:
		return corev1.RestartPolicyNever
	case c.spec.RestartPolicy != nil:
		return corev1.RestartPolicy(*c.spec.RestartPolicy)
	case c.role == roleInit && pod.Spec.RestartPolicy == corev1.RestartPolicyAlways:
		return corev1.RestartPolicyOnFailure // an init container is done when it succeeds
	default:
		return pod.Spec.RestartPolicy
	}
}

// over tells that the container ended and is not to be started again.
func (c *containerState) over(pod *corev1.Pod) bool {
	if c.Phase != phaseExited {
		return false
	}
	switch c.restartPolicy(pod) {
	case corev1.RestartPolicyAlways:
		return false
	case corev1.RestartPolicyOnFailure:
		return c.Exit.Code == 0
	default:
		return true
	}
}

// succeeded tells that the container's last run ended with 0 and no other has begun.
func (c *containerState) succeeded() bool { return c.Phase == phaseExited && c.Exit.Code == 0 }

// initializing tells that the container is one that the others wait for: an init container that has not done its work, or a sidecar
// that has not started once.
func (c *containerState) initializing() bool {
	switch c.role {
	case roleInit:
		return !c.succeeded()
	case roleSidecar:
		return !c.Started && c.Exit == nil
	default:
		return false
	}
}

// serves tells whether the container is one that is ready while it runs; an init container is ready when it is done.
func (c *containerState) serves() bool { return c.role == roleRegular || c.role == roleSidecar }

func (c *containerState) live() bool { return c.Phase == phaseStarting || c.Phase == phaseRunning }
