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

// A lack is a field of a pod that has no effect on a light node. docs/light-nodes.md lists them, too.
type lack struct {
	field string // below spec, or below a container
	why   string
	// pod tells whether the pod has it, container whether a container does; one of both is there.
	pod       func(*corev1.PodSpec) bool
	container func(*corev1.Container) bool
}

var lacks = []lack{
	{field: "hostIPC", why: "each container has an IPC namespace of its own", pod: func(s *corev1.PodSpec) bool { return s.HostIPC }},
	{field: "hostUsers", why: "containers have the machine's user namespace",
		pod: func(s *corev1.PodSpec) bool { return s.HostUsers != nil && !*s.HostUsers }},
	{field: "runtimeClassName", why: "there is one runtime", pod: func(s *corev1.PodSpec) bool { return s.RuntimeClassName != nil }},
	{field: "resourceClaims", why: "there are no devices", pod: func(s *corev1.PodSpec) bool { return len(s.ResourceClaims) > 0 }},
	{field: "resources of the pod", why: "containers are limited one by one",
		pod: func(s *corev1.PodSpec) bool { return s.Resources != nil && len(s.Resources.Limits) > 0 }},
	{field: "emptyDir.medium HugePages", why: "the volume is a directory", pod: anyEmptyDir(func(e *corev1.EmptyDirVolumeSource) bool {
		return strings.HasPrefix(string(e.Medium), string(corev1.StorageMediumHugePages))
	})},
	{field: "securityContext.seccompProfile", why: whySeccomp,
		pod: inPod(func(c *corev1.PodSecurityContext) bool { return otherSeccomp(c.SeccompProfile) })},
	{field: "securityContext.appArmorProfile", why: "containers have no AppArmor profile",
		pod: inPod(func(c *corev1.PodSecurityContext) bool { return otherAppArmor(c.AppArmorProfile) })},
	{field: "securityContext.seLinuxOptions", why: whySELinux,
		pod: inPod(func(c *corev1.PodSecurityContext) bool { return c.SELinuxOptions != nil })},
	{field: "resources.limits of huge pages", why: "memory is limited, whatever its pages",
		container: func(c *corev1.Container) bool {
			for name := range c.Resources.Limits {
				if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
					return true
				}
			}
			return false
		}},
	{field: "restartPolicyRules", why: "containers are started again by restartPolicy alone",
		container: func(c *corev1.Container) bool { return len(c.RestartPolicyRules) > 0 }},
	{field: "volumeDevices", why: "there are no block devices", container: func(c *corev1.Container) bool { return len(c.VolumeDevices) > 0 }},
	{field: "volumeMounts.mountPropagation", why: "what is mounted in a container is its own", container: func(c *corev1.Container) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone
		})
	}},
	{field: "securityContext.seccompProfile", why: whySeccomp,
		container: inContainer(func(c *corev1.SecurityContext) bool { return otherSeccomp(c.SeccompProfile) })},
	{field: "securityContext.appArmorProfile", why: "containers have no AppArmor profile",
		container: inContainer(func(c *corev1.SecurityContext) bool { return otherAppArmor(c.AppArmorProfile) })},
	{field: "securityContext.seLinuxOptions", why: whySELinux,
		container: inContainer(func(c *corev1.SecurityContext) bool { return c.SELinuxOptions != nil })},
	{field: "securityContext.procMount", why: "what tells of the machine in /proc stays masked",
		container: inContainer(func(c *corev1.SecurityContext) bool {
			return c.ProcMount != nil && *c.ProcMount != corev1.DefaultProcMount
		})},
}

const (
	whySeccomp = "all containers have the same filter of system calls"
	whySELinux = "containers have no SELinux label"
)

func anyEmptyDir(is func(*corev1.EmptyDirVolumeSource) bool) func(*corev1.PodSpec) bool {
	return func(s *corev1.PodSpec) bool {
		return slices.ContainsFunc(s.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil && is(v.EmptyDir) })
	}
}

func inPod(is func(*corev1.PodSecurityContext) bool) func(*corev1.PodSpec) bool {
	return func(s *corev1.PodSpec) bool { return s.SecurityContext != nil && is(s.SecurityContext) }
}

func inContainer(is func(*corev1.SecurityContext) bool) func(*corev1.Container) bool {
	return func(c *corev1.Container) bool { return c.SecurityContext != nil && is(c.SecurityContext) }
}

func otherSeccomp(p *corev1.SeccompProfile) bool {
	return p != nil && p.Type != corev1.SeccompProfileTypeRuntimeDefault
}

func otherAppArmor(p *corev1.AppArmorProfile) bool {
	return p != nil && p.Type == corev1.AppArmorProfileTypeLocalhost
}

// notSupported tells, a message for each, which fields of a pod have no effect here whatever the node's network is. unbounded is
// Config.Unbounded.
func notSupported(pod *corev1.Pod, unbounded []string) (messages []string) {
	say := func(field, why string) {
		messages = append(messages, field+" has no effect in the lab: "+why)
	}
	for _, l := range lacks {
		if l.pod != nil && l.pod(&pod.Spec) {
			say(l.field, l.why)
		}
		if l.container == nil {
			continue
		}
		var names []string
		for _, c := range containersOf(pod) {
			if l.container(&c) {
				names = append(names, c.Name)
			}
		}
		if len(names) > 0 {
			say(fmt.Sprintf("%s (container %s)", l.field, strings.Join(names, ", ")), l.why)
		}
	}
	if limits := limited(pod); len(limits) > 0 && len(unbounded) > 0 {
		say("resources.limits ("+strings.Join(limits, "; ")+")", strings.Join(unbounded, "; "))
	}
	return messages
}

// containersOf are all of a pod's.
func containersOf(pod *corev1.Pod) []corev1.Container {
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for _, e := range pod.Spec.EphemeralContainers {
		all = append(all, corev1.Container(e.EphemeralContainerCommon))
	}
	return all
}

// limited lists what of the pod has limits of CPU or memory, with these.
func limited(pod *corev1.Pod) (list []string) {
	for _, c := range containersOf(pod) {
		var values []string
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if q, ok := c.Resources.Limits[name]; ok {
				values = append(values, fmt.Sprintf("%s %s", name, q.String()))
			}
		}
		if len(values) > 0 {
			list = append(list, "container "+c.Name+": "+strings.Join(values, ", "))
		}
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
