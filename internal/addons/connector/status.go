package connector

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/azure/aci"
)

// podStatus returns a pod's status by its group; base is the status that the API has, of which others' conditions stay, and the times of
// what has not changed.
func podStatus(base corev1.PodStatus, pod *corev1.Pod, g *aci.ContainerGroup, hostIP string, now metav1.Time) corev1.PodStatus {
	s := *base.DeepCopy()
	s.Phase, s.Reason, s.Message = phase(g), "", ""
	s.HostIP, s.HostIPs = hostIP, []corev1.HostIP{{IP: hostIP}}
	if s.StartTime == nil {
		s.StartTime = &now
	}
	s.PodIP, s.PodIPs = "", nil
	if ip := g.Properties.IPAddress; ip != nil && ip.IP.IsValid() {
		s.PodIP, s.PodIPs = ip.IP.String(), []corev1.PodIP{{IP: ip.IP.String()}}
	}
	s.ContainerStatuses = nil
	ready := len(g.Properties.Containers) > 0
	for i := range g.Properties.Containers {
		c := containerStatus(g, &g.Properties.Containers[i])
		ready = ready && c.Ready
		s.ContainerStatuses = append(s.ContainerStatuses, c)
	}
	done := ""
	if s.Phase == corev1.PodSucceeded {
		done = "PodCompleted"
	}
	setCondition(&s, corev1.PodInitialized, true, "", now)
	setCondition(&s, corev1.ContainersReady, ready, done, now)
	setCondition(&s, corev1.PodReady, ready && gatesOpen(pod, base), done, now)
	return s
}

// gatesOpen reports whether all of the pod's readiness gates are true.
func gatesOpen(pod *corev1.Pod, s corev1.PodStatus) bool {
	return !slices.ContainsFunc(pod.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool {
		return !slices.ContainsFunc(s.Conditions,
			func(c corev1.PodCondition) bool { return c.Type == g.ConditionType && c.Status == corev1.ConditionTrue })
	})
}

func phase(g *aci.ContainerGroup) corev1.PodPhase {
	state := ""
	if g.Properties.InstanceView != nil {
		state = g.Properties.InstanceView.State
	}
	switch {
	case g.Properties.ProvisioningState == aci.ProvisioningFailed:
		return corev1.PodFailed
	case state == aci.GroupRunning:
		return corev1.PodRunning
	case state == aci.GroupSucceeded:
		return corev1.PodSucceeded
	case state == aci.GroupFailed:
		return corev1.PodFailed
	}
	return corev1.PodPending
}

// setCondition changes a condition; its transition time only when its status changes.
func setCondition(s *corev1.PodStatus, t corev1.PodConditionType, is bool, reason string, now metav1.Time) {
	c := corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: now}
	if !is {
		c.Status, c.Reason = corev1.ConditionFalse, reason
		if reason == "" {
			c.Reason = "ContainersNotReady"
		}
	}
	for i := range s.Conditions {
		if old := &s.Conditions[i]; old.Type == t {
			if old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
			c.ObservedGeneration = old.ObservedGeneration
			*old = c
			return
		}
	}
	s.Conditions = append(s.Conditions, c)
}

func containerStatus(g *aci.ContainerGroup, c *aci.Container) corev1.ContainerStatus {
	id := sha256.Sum256([]byte(g.ID + "/" + g.Tags[tagUID] + "/" + c.Name))
	s := corev1.ContainerStatus{Name: c.Name, Image: c.Properties.Image}
	v := c.Properties.InstanceView
	if v == nil {
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "Creating"}
		return s
	}
	s.RestartCount, s.Ready = int32(v.RestartCount), v.Ready
	started := v.CurrentState.State == aci.StateRunning
	s.Started = &started
	s.State = containerState(v.CurrentState)
	if !v.CurrentState.StartTime.IsZero() {
		s.ContainerID = "aci://" + hex.EncodeToString(id[:])
	}
	if v.PreviousState != nil {
		s.LastTerminationState = containerState(*v.PreviousState)
	}
	return s
}

func containerState(v aci.ContainerState) corev1.ContainerState {
	at := metav1.NewTime(v.StartTime).Rfc3339Copy() // the precision that the API keeps
	switch v.State {
	case aci.StateRunning:
		return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}}
	case aci.StateTerminated:
		t := &corev1.ContainerStateTerminated{StartedAt: at, FinishedAt: metav1.NewTime(v.FinishTime).Rfc3339Copy(), Reason: v.DetailStatus,
			Message: v.Message}
		if v.ExitCode != nil {
			t.ExitCode = int32(*v.ExitCode)
		}
		return corev1.ContainerState{Terminated: t}
	}
	reason := v.DetailStatus
	if reason == "" {
		reason = "Creating"
	}
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: v.Message}}
}
