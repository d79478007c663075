package kubelet

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// status is the pod's status as of now, on the node of an address. base is the status that the API server has: what is not ours in it is
// kept (qosClass, conditions that others set), and conditions that did not change keep their transition times.
func (m *machine) status(base corev1.PodStatus, host netip.Addr, now time.Time) corev1.PodStatus {
	s := *base.DeepCopy()
	start := metav1.NewTime(m.startTime)
	s.StartTime = &start
	s.ObservedGeneration = m.pod.Generation
	s.HostIP, s.HostIPs = host.String(), []corev1.HostIP{{IP: host.String()}}
	if len(m.ips) > 0 {
		s.PodIP, s.PodIPs = m.ips[0], nil
		for _, ip := range m.ips {
			s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip})
		}
	}
	s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses = nil, nil, nil
	for _, c := range m.containers {
		if m.failure != nil && strings.HasPrefix(m.failure.message, rejected) {
			break
		}
		cs := m.containerStatus(c)
		switch c.role {
		case roleRegular:
			s.ContainerStatuses = append(s.ContainerStatuses, cs)
		case roleEphemeral:
			s.EphemeralContainerStatuses = append(s.EphemeralContainerStatuses, cs)
		default:
			s.InitContainerStatuses = append(s.InitContainerStatuses, cs)
		}
	}
	s.Phase, s.Reason, s.Message = m.phase(), "", ""
	if m.failure != nil {
		s.Reason, s.Message = m.failure.reason, m.failure.message
	}
	m.conditions(&s, now)
	return s
}

// phase is the pod's, by the rules of upstream's getPhase (pkg/kubelet/kubelet_pods.go). It is final only when nothing of the pod runs: the
// API server's users take it for the end.
func (m *machine) phase() corev1.PodPhase {
	p := m.outcome()
	if (p == corev1.PodSucceeded || p == corev1.PodFailed) && m.anyLive(everyRole...) {
		return corev1.PodRunning
	}
	return p
}

// outcome is the phase by the containers that the pod is for, whatever else still runs.
func (m *machine) outcome() corev1.PodPhase {
	if m.failure != nil {
		return corev1.PodFailed
	}
	var waiting, running, failed int
	for _, c := range m.containers {
		switch {
		case c.role == roleInit && c.over(m.pod) && c.Exit.Code != 0:
			return corev1.PodFailed
		case c.role != roleRegular:
		case c.Phase == phaseRunning:
			running++
		case c.Exit == nil: // it never ran
			waiting++
		case c.Exit.Code != 0:
			failed++
		}
	}
	switch {
	case running > 0 && (waiting == 0 || m.deleting):
		return corev1.PodRunning
	case m.deleting && (waiting > 0 || failed > 0):
		return corev1.PodFailed
	case m.deleting:
		return corev1.PodSucceeded
	case waiting > 0 || !m.initialized():
		return corev1.PodPending
	case !m.terminal():
		return corev1.PodRunning // between two attempts
	case failed > 0:
		return corev1.PodFailed
	default:
		return corev1.PodSucceeded
	}
}

// idPrefix makes a container's ID one of ours.
const idPrefix = "packetwalk://"

func fullID(id string) string {
	if id == "" {
		return ""
	}
	return idPrefix + id
}

func (m *machine) containerStatus(c *containerState) corev1.ContainerStatus {
	started := c.Started
	s := corev1.ContainerStatus{
		Name: c.Name, Image: c.spec.Image, RestartCount: int32(max(c.Attempt-1, 0)),
		ContainerID: fullID(c.ID), ImageID: c.ImageID, Started: &started, Ready: c.Ready,
	}
	if c.ID != "" {
		s.AllocatedResources, s.Resources = c.Resources.Requests, &c.Resources
	}
	ended := func() *corev1.ContainerStateTerminated {
		if c.Exit == nil {
			return nil
		}
		return &corev1.ContainerStateTerminated{
			ExitCode: int32(c.Exit.Code), Signal: int32(c.Exit.Signal), Reason: c.Exit.Reason, Message: c.Exit.Message,
			StartedAt: metav1.NewTime(c.Exit.StartedAt), FinishedAt: metav1.NewTime(c.Exit.Finished), ContainerID: fullID(c.Exit.ID),
		}
	}
	// A start that is under way changes nothing yet: the count goes up when it has succeeded or failed.
	if c.Phase == phaseStarting {
		s.RestartCount = int32(max(c.Attempt-2, 0))
	}
	ran := c.Phase == phaseExited || c.Phase == phaseStarting && c.Exit != nil
	switch {
	case c.Phase == phaseRunning:
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.StartedAt)}
		s.LastTerminationState.Terminated = ended()
	case ran && (c.Reason == "" || c.over(m.pod)):
		s.State.Terminated = ended()
		s.Ready = c.role == roleInit && c.Exit.Code == 0
	default:
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: c.Reason, Message: c.Message}
		s.LastTerminationState.Terminated = ended()
		if c.Reason == "" {
			s.State.Waiting.Reason = m.usualWait(c)
		}
	}
	return s
}

func (m *machine) usualWait(c *containerState) string {
	if len(m.pod.Spec.InitContainers) > 0 && c.role != roleEphemeral {
		return "PodInitializing"
	}
	return "ContainerCreating"
}

// conditions sets the conditions that are a kubelet's; the texts are upstream's (pkg/kubelet/status/generate.go).
func (m *machine) conditions(s *corev1.PodStatus, now time.Time) {
	set := func(kind corev1.PodConditionType, ok bool, reason, message string) {
		setCondition(s, corev1.PodCondition{Type: kind, Status: conditionStatus(ok), Reason: reason, Message: message,
			LastTransitionTime: metav1.NewTime(now), ObservedGeneration: m.pod.Generation})
	}
	set(corev1.PodReadyToStartContainers, m.sandbox.ready, "", "")

	initialized, reason, message := m.initializedCondition(s.Phase)
	set(corev1.PodInitialized, initialized, reason, message)

	ready, reason, message := m.readyCondition(s.Phase)
	set(corev1.ContainersReady, ready, reason, message)
	if ready {
		if gates := missingGates(m.pod, s.Conditions); len(gates) > 0 {
			ready, reason, message = false, "ReadinessGatesNotReady", strings.Join(gates, ", ")
		}
	}
	set(corev1.PodReady, ready, reason, message)
	m.resizeCondition(s, set)
	if conditionIndex(s.Conditions, corev1.PodScheduled) < 0 {
		set(corev1.PodScheduled, true, "", "")
	}
	slices.SortStableFunc(s.Conditions, func(a, b corev1.PodCondition) int { return conditionRank(a.Type) - conditionRank(b.Type) })
}

// initializedCondition is the condition Initialized; one that is true has a reason only in a pod that succeeded.
func (m *machine) initializedCondition(p corev1.PodPhase) (ok bool, reason, message string) {
	if p == corev1.PodSucceeded {
		return true, "PodCompleted", ""
	}
	names := m.names((*containerState).initializing)
	if len(names) == 0 {
		return true, "", ""
	}
	return false, "ContainersNotInitialized", "containers with incomplete status: [" + strings.Join(names, " ") + "]"
}

// readyCondition is the condition ContainersReady, and Ready but for readiness gates. A pod that ends stays ready as long as its
// containers are: EndpointSlices then show it as serving and terminating.
func (m *machine) readyCondition(p corev1.PodPhase) (ok bool, reason, message string) {
	switch p {
	case corev1.PodSucceeded:
		return false, "PodCompleted", ""
	case corev1.PodFailed:
		return false, "PodFailed", ""
	}
	unready := m.names(func(c *containerState) bool { return c.serves() && !c.Ready })
	if len(unready) == 0 && (m.deleting || !m.terminal()) {
		return true, "", ""
	}
	return false, "ContainersNotReady", "containers with unready status: [" + strings.Join(unready, " ") + "]"
}

// names are the names of the containers of which is says so.
func (m *machine) names(is func(*containerState) bool) (names []string) {
	for _, c := range m.containers {
		if is(c) {
			names = append(names, c.Name)
		}
	}
	return names
}

func conditionStatus(ok bool) corev1.ConditionStatus {
	if ok {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

// setCondition adds a condition or replaces the one of its type, whose transition time stays while its status does.
func setCondition(s *corev1.PodStatus, c corev1.PodCondition) {
	i := conditionIndex(s.Conditions, c.Type)
	if i < 0 {
		s.Conditions = append(s.Conditions, c)
		return
	}
	if s.Conditions[i].Status == c.Status {
		c.LastTransitionTime = s.Conditions[i].LastTransitionTime
	}
	s.Conditions[i] = c
}

var conditionOrder = []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady,
	corev1.ContainersReady, corev1.PodScheduled}

// conditionRank is a condition's place in the list; those that are not a kubelet's come last.
func conditionRank(t corev1.PodConditionType) int {
	if i := slices.Index(conditionOrder, t); i >= 0 {
		return i
	}
	return len(conditionOrder)
}

func missingGates(pod *corev1.Pod, have []corev1.PodCondition) (missing []string) {
	for _, g := range pod.Spec.ReadinessGates {
		i := conditionIndex(have, g.ConditionType)
		switch {
		case i < 0:
			missing = append(missing, "corresponding condition of pod readiness gate \""+string(g.ConditionType)+"\" does not exist.")
		case have[i].Status != corev1.ConditionTrue:
			missing = append(missing, "the status of pod readiness gate \""+string(g.ConditionType)+"\" is not \"True\", but "+
				string(have[i].Status))
		}
	}
	return missing
}
