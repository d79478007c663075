package kubelet

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// reasonNotSupported is the reason of the events that tell of a field without effect. Upstream's kubelet has none such: there the fields
// work.
const reasonNotSupported = "NotSupported"

// notSupported tells, a message for each, which fields of a pod have no effect here whatever the node's network is.
func notSupported(pod *corev1.Pod) (messages []string) {
	say := func(field, why string) {
		messages = append(messages, field+" has no effect in the lab: "+why)
	}
	if isTrue(pod.Spec.ShareProcessNamespace) {
		say("shareProcessNamespace", "each container has a process namespace of its own")
	}
	if pod.Spec.HostPID {
		say("hostPID", "each container has a process namespace of its own")
	}
	if pod.Spec.HostIPC {
		say("hostIPC", "each container has an IPC namespace of its own")
	}
	var names []string
	for _, v := range pod.Spec.Volumes {
		if v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumMemory {
			names = append(names, v.Name)
		}
	}
	if len(names) > 0 {
		say("emptyDir.medium Memory (volume "+strings.Join(names, ", ")+")", "the volume is a directory of the machine's file system")
	}
	if limits := limited(pod); len(limits) > 0 {
		say("resources.limits ("+strings.Join(limits, "; ")+")", "limits are reported, not enforced")
	}
	return messages
}

// limited lists what of the pod has limits of CPU or memory, with these.
func limited(pod *corev1.Pod) (list []string) {
	add := func(what string, r corev1.ResourceList) {
		var values []string
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if q, ok := r[name]; ok {
				values = append(values, fmt.Sprintf("%s %s", name, q.String()))
			}
		}
		if len(values) > 0 {
			list = append(list, what+": "+strings.Join(values, ", "))
		}
	}
	if pod.Spec.Resources != nil {
		add("pod", pod.Spec.Resources.Limits)
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		add("container "+c.Name, c.Resources.Limits)
	}
	return list
}

// hostPortsNotSupported is the message for a pod with host ports on a network that does not map them; "" if the pod has none.
func hostPortsNotSupported(pod *corev1.Pod) string {
	var ports []string
	for _, m := range portMappings(pod) {
		ports = append(ports, fmt.Sprintf("%d/%s", m.HostPort, m.Protocol))
	}
	if len(ports) == 0 {
		return ""
	}
	return "hostPort (" + strings.Join(ports, ", ") +
		") has no effect in the lab: no plugin of the node's CNI configuration takes portMappings; " +
		"use a Service of type NodePort, or hostNetwork"
}

// warn has an event sent for each message.
func (w *worker) warn(messages ...string) {
	w.do(func(m *machine, _ time.Time) {
		for _, s := range messages {
			m.emit(corev1.EventTypeWarning, reasonNotSupported, s, nil)
		}
	})
}
