package kubelet

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// admit refuses a new pod that wants more than the node has left, or a host port which another pod of the node has, as upstream's kubelet
// does of pods that no scheduler looked at (pkg/kubelet/lifecycle/predicate.go, the scheduler's plugins NodeResourcesFit and NodePorts).
func (k *Kubelet) admit(w *worker) {
	if s, short := k.shortage(w); short {
		w.m.refuse("OutOf"+string(s.of), s.String())
		return
	}
	wanted := hostPorts(w.m.pod)
	if len(wanted) == 0 {
		return
	}
	for _, other := range k.workers() {
		if other.done != w.after && other.holdsAny(wanted) { // its predecessor of the same name is gone before it starts
			w.m.refuse("NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports")
			return
		}
	}
}

// holdsAny tells whether the pod has one of the host ports, until nothing of it runs any more.
func (w *worker) holdsAny(wanted []corev1.ContainerPort) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.m.finished() {
		return false
	}
	return slices.ContainsFunc(hostPorts(w.m.pod), func(held corev1.ContainerPort) bool {
		return slices.ContainsFunc(wanted, func(p corev1.ContainerPort) bool { return samePort(&held, &p) })
	})
}

// rejected begins the message of a pod that was refused: its status has no containers (pkg/kubelet, rejectPod).
const rejected = "Pod was rejected: "

// refuse ends a pod before anything of it was made.
func (m *machine) refuse(reason, message string) {
	m.emit(corev1.EventTypeWarning, reason, message, nil)
	m.failure = &event{reason: reason, message: rejected + message}
	m.teardown.ready = true
}

// hostPorts are those of the containers that run as long as the pod does.
func hostPorts(pod *corev1.Pod) (ports []corev1.ContainerPort) {
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				ports = append(ports, p)
			}
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if p := pod.Spec.InitContainers[i].RestartPolicy; p != nil && *p == corev1.ContainerRestartPolicyAlways {
			add(&pod.Spec.InitContainers[i])
		}
	}
	return ports
}

// samePort tells whether two host ports cannot be had together.
func samePort(a, b *corev1.ContainerPort) bool {
	protocol := func(p *corev1.ContainerPort) corev1.Protocol {
		if p.Protocol == "" {
			return corev1.ProtocolTCP
		}
		return p.Protocol
	}
	every := func(p *corev1.ContainerPort) bool { return p.HostIP == "" || p.HostIP == "0.0.0.0" || p.HostIP == "::" }
	return a.HostPort == b.HostPort && protocol(a) == protocol(b) && (a.HostIP == b.HostIP || every(a) || every(b))
}
