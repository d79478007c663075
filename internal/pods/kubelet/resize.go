package kubelet

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	requests "k8s.io/component-helpers/resource"
)

// Pods' resources change while they run (the subresource resize): containers get new limits, or are restarted where their resizePolicy says
// so. Until a container has them it has its old ones, also in the pod's status. Conditions, events and texts are upstream's
// (pkg/kubelet/allocation, pkg/kubelet/events).

// resized are the containers that have other resources than the pod says; one that is being stopped comes later.
func (m *machine) resized() (list []*containerState) {
	for _, c := range m.containers {
		if !c.stopping && c.Phase != phaseStarting && !equality.Semantic.DeepEqual(c.Resources, c.spec.Resources) {
			list = append(list, c)
		}
	}
	return list
}

// restartsToResize tells whether the container's policy for what has changed is to start it again.
func (c *containerState) restartsToResize() bool {
	differ := func(a, b resource.Quantity) bool { return !a.Equal(b) }
	old, now := c.Resources, c.spec.Resources
	return slices.ContainsFunc(c.spec.ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
		return p.RestartPolicy == corev1.RestartContainer && (differ(old.Requests[p.ResourceName], now.Requests[p.ResourceName]) ||
			differ(old.Limits[p.ResourceName], now.Limits[p.ResourceName]))
	})
}

// allocated is the pod with the resources that its containers have.
func (m *machine) allocated() *corev1.Pod {
	pod := m.pod.DeepCopy()
	for _, c := range m.containers {
		for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			if i := slices.IndexFunc(list, func(o corev1.Container) bool { return o.Name == c.Name }); i >= 0 {
				list[i].Resources = c.Resources
			}
		}
	}
	return pod
}

// resizeDone takes the outcome of doResize; trouble is the condition that says why containers do not have what the pod says, nil where all
// have it, or will have when they have been restarted.
func (m *machine) resizeDone(now time.Time, trouble *corev1.PodCondition) {
	m.resize.busy = false
	was := m.trouble
	m.trouble = trouble
	if trouble == nil {
		m.resize.retry.succeeded()
		if len(m.resized()) == 0 && !slices.ContainsFunc(m.containers, func(c *containerState) bool { return c.stopping }) {
			m.emit(corev1.EventTypeNormal, "ResizeCompleted", "Pod resize completed", nil)
		}
		return
	}
	m.resize.retry.failed(now, time.Second, time.Minute)
	if was == nil || was.Reason != trouble.Reason {
		m.emit(corev1.EventTypeWarning, "Resize"+trouble.Reason, fmt.Sprintf("Pod resize %s: %s", trouble.Reason, trouble.Message), nil)
	}
}

// resizeCondition shows why a resize is not done.
func (m *machine) resizeCondition(s *corev1.PodStatus, set func(kind corev1.PodConditionType, ok bool, reason, message string)) {
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c corev1.PodCondition) bool {
		return (c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress) && (m.trouble == nil || c.Type != m.trouble.Type)
	})
	if t := m.trouble; t != nil {
		set(t.Type, true, t.Reason, t.Message)
	}
}

// resizeContainers gives the containers what the pod says.
func (w *worker) resizeContainers() {
	trouble := w.k.accommodates(w)
	w.mu.Lock()
	list := w.m.resized()
	w.mu.Unlock()
	for _, c := range list {
		if trouble != nil {
			break
		}
		s := w.snapshot(c)
		w.mu.Lock()
		r := w.runs[c.Name]
		w.mu.Unlock()
		switch {
		case r != nil && s.restartsToResize():
			w.do(func(m *machine, _ time.Time) {
				c.stopping, c.Crash = true, backoff{}
				m.emit(corev1.EventTypeNormal, "Killing", fmt.Sprintf("Container %s resize requires restart", c.Name), c)
			})
			go w.stop(c, w.grace())
			continue
		case r != nil:
			if err := r.c.Limit(limits(&s.spec.Resources)); err != nil {
				trouble = &corev1.PodCondition{Type: corev1.PodResizeInProgress, Reason: corev1.PodReasonError, Message: err.Error()}
				continue
			}
		}
		w.do(func(*machine, time.Time) { c.Resources = s.spec.Resources })
	}
	w.do(func(m *machine, now time.Time) { m.resizeDone(now, trouble) })
}

// accommodates tells why the node has no room for what the pod requests now, beside what the others have; nil where it has.
func (k *Kubelet) accommodates(w *worker) *corev1.PodCondition {
	s, ok := k.shortage(w)
	switch {
	case !ok:
		return nil
	case s.wants > s.has:
		return &corev1.PodCondition{Type: corev1.PodResizePending, Reason: corev1.PodReasonInfeasible,
			Message: fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", s.of, s.wants, s.has)}
	}
	return &corev1.PodCondition{Type: corev1.PodResizePending, Reason: corev1.PodReasonDeferred, Message: s.String()}
}

// A shortage is what a node has too little of; processors in thousandths, memory in bytes.
type shortage struct {
	of               corev1.ResourceName
	wants, used, has int64
}

// String is upstream's (pkg/kubelet/lifecycle, InsufficientResourceError).
func (s shortage) String() string {
	return fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", s.of, s.wants, s.used, s.has)
}

// shortage tells what the node has too little of for a pod beside the others; not ok where that is nothing.
func (k *Kubelet) shortage(w *worker) (s shortage, ok bool) {
	var none requests.PodResourcesOptions
	wants, has, used := requests.PodRequests(w.pod(), none), k.node.Status.Allocatable, corev1.ResourceList{}
	if wants.Cpu().IsZero() && wants.Memory().IsZero() {
		return s, false
	}
	for _, other := range k.workers() {
		other.mu.Lock()
		if other != w && other.done != w.after && !other.m.terminal() {
			for name, q := range requests.PodRequests(other.m.allocated(), none) {
				q.Add(used[name])
				used[name] = q
			}
		}
		other.mu.Unlock()
	}
	for _, s := range []shortage{
		{corev1.ResourceCPU, wants.Cpu().MilliValue(), used.Cpu().MilliValue(), has.Cpu().MilliValue()},
		{corev1.ResourceMemory, wants.Memory().Value(), used.Memory().Value(), has.Memory().Value()},
	} {
		if s.wants > 0 && s.wants+s.used > s.has {
			return s, true
		}
	}
	return s, false
}
