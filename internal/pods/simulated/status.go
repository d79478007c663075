package simulated

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// imageID is what the status has as a container's image: none was pulled.
const imageID = "simulated://no-image"

// running returns the status of a pod whose ports are open: all its containers run, and its init containers have ended well.
func running(o *corev1.Pod, host netip.Addr, p *pod) corev1.PodStatus {
	s := started(o, host, p.since)
	s.Phase = corev1.PodRunning
	s.PodIP, s.PodIPs = p.ips[0], nil
	for _, ip := range p.ips {
		s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip})
	}
	since := metav1.NewTime(p.since.Truncate(time.Second))
	s.InitContainerStatuses, s.ContainerStatuses = nil, nil
	for _, c := range o.Spec.InitContainers {
		state := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: since, FinishedAt: since}}
		if c.RestartPolicy != nil { // a sidecar
			state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: since}}
		}
		s.InitContainerStatuses = append(s.InitContainerStatuses, container(&c, p, state, true))
	}
	for _, c := range o.Spec.Containers {
		state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: since}}
		s.ContainerStatuses = append(s.ContainerStatuses, container(&c, p, state, true))
	}
	for _, t := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady} {
		set(&s, o, t, corev1.ConditionTrue, "")
	}
	set(&s, o, corev1.PodReady, ready(o), "")
	return s
}

// ready returns true where all of the pod's readiness gates are true, which others set.
func ready(o *corev1.Pod) corev1.ConditionStatus {
	for _, g := range o.Spec.ReadinessGates {
		if !slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == g.ConditionType && c.Status == corev1.ConditionTrue
		}) {
			return corev1.ConditionFalse
		}
	}
	return corev1.ConditionTrue
}

func container(c *corev1.Container, p *pod, state corev1.ContainerState, ready bool) corev1.ContainerStatus {
	running := state.Running != nil
	return corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: imageID, ContainerID: "simulated://" + string(p.uid) + "-" + c.Name,
		State: state, Ready: ready, Started: &running}
}

// waiting returns the status of a pod that cannot be attached.
func waiting(o *corev1.Pod, host netip.Addr) corev1.PodStatus {
	s := started(o, host, time.Now())
	s.Phase = corev1.PodPending
	s.ContainerStatuses = nil
	for _, c := range o.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}, Started: new(bool)})
	}
	for _, t := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.ContainersReady, corev1.PodReady} {
		set(&s, o, t, corev1.ConditionFalse, "ContainersNotReady")
	}
	return s
}

// over returns the status of a pod of which nothing is left. Its processes ended when they were asked to.
func over(o *corev1.Pod, now time.Time) corev1.PodStatus {
	s := *o.Status.DeepCopy()
	s.ObservedGeneration = o.Generation
	s.Phase = corev1.PodSucceeded
	for i := range s.ContainerStatuses {
		c := &s.ContainerStatuses[i]
		var since metav1.Time
		if c.State.Running != nil {
			since = c.State.Running.StartedAt
		}
		c.Ready, c.Started = false, new(bool)
		c.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: since,
			FinishedAt: metav1.NewTime(now), ContainerID: c.ContainerID}}
	}
	for _, t := range []corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady} {
		set(&s, o, t, corev1.ConditionFalse, "PodCompleted")
	}
	return s
}

// started returns what the status of any pod has that its node knows of. What others set in it is kept.
func started(o *corev1.Pod, host netip.Addr, since time.Time) corev1.PodStatus {
	s := *o.Status.DeepCopy()
	s.ObservedGeneration = o.Generation
	s.HostIP, s.HostIPs = host.String(), []corev1.HostIP{{IP: host.String()}}
	if s.StartTime == nil {
		s.StartTime = new(metav1.NewTime(since.Truncate(time.Second)))
	}
	return s
}

// set gives a status a condition. One that stays the same keeps its time.
func set(s *corev1.PodStatus, o *corev1.Pod, t corev1.PodConditionType, status corev1.ConditionStatus, reason string) {
	c := corev1.PodCondition{Type: t, Status: status, Reason: reason, ObservedGeneration: o.Generation,
		LastTransitionTime: metav1.NewTime(time.Now().Truncate(time.Second))}
	i := slices.IndexFunc(s.Conditions, func(c corev1.PodCondition) bool { return c.Type == t })
	if i < 0 {
		s.Conditions = append(s.Conditions, c)
		return
	}
	if s.Conditions[i].Status == status {
		c.LastTransitionTime = s.Conditions[i].LastTransitionTime
	}
	s.Conditions[i] = c
}
