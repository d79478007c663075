package simulated

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Unsupported says what of a pod has no effect on a simulated node, as one sentence; "" where nothing is lost but the images.
func Unsupported(o *corev1.Pod) string {
	var lost []string
	note := func(does bool, what string) {
		if does {
			lost = append(lost, what)
		}
	}
	var commands, environment, probes, hooks, limits, security, sctp bool
	for _, c := range o.Spec.Containers {
		commands = commands || len(c.Command)+len(c.Args) > 0
		environment = environment || len(c.Env)+len(c.EnvFrom) > 0
		probes = probes || c.LivenessProbe != nil || c.ReadinessProbe != nil || c.StartupProbe != nil
		hooks = hooks || c.Lifecycle != nil
		limits = limits || len(c.Resources.Limits) > 0
		security = security || c.SecurityContext != nil // capabilities, users and seccomp profiles among it
		for _, p := range c.Ports {
			sctp = sctp || p.Protocol == corev1.ProtocolSCTP
		}
	}
	note(len(o.Spec.InitContainers) > 0, "init containers")
	note(commands, "commands")
	note(environment, "environment variables")
	note(volumes(o), "volumes")
	note(probes, "probes")
	note(hooks, "lifecycle hooks")
	note(limits, "limits")
	note(security, "security contexts of containers")
	note(sctp, "SCTP ports")
	note(o.Spec.HostPID || o.Spec.HostIPC, "hostPID and hostIPC")
	note(o.Spec.RestartPolicy == corev1.RestartPolicyNever || o.Spec.RestartPolicy == corev1.RestartPolicyOnFailure,
		"restartPolicy (the pod runs until it is deleted)")
	note(o.Spec.SecurityContext != nil && len(o.Spec.SecurityContext.Sysctls) > 0, "sysctls")
	if len(lost) == 0 {
		return ""
	}
	return "This node is simulated: the pod has a network and answers at its container ports, and nothing else of it runs. Without effect: " +
		strings.Join(lost, ", ") + ". Node pools with runtime: containerd run it whole"
}

// volumes reports whether there are volumes beside the service account's token, which every pod gets.
func volumes(o *corev1.Pod) bool {
	for _, v := range o.Spec.Volumes {
		if v.Projected == nil || !strings.HasPrefix(v.Name, "kube-api-access-") {
			return true
		}
	}
	return false
}
