package connector

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/pods/podspec"
)

// refusals returns the parts of a pod that container groups do not have, each with the reason. A pod with any does not become a group.
func refusals(pod *corev1.Pod) []string {
	var all []string
	refuse := func(is bool, format string, a ...any) {
		if is {
			all = append(all, fmt.Sprintf(format, a...))
		}
	}
	s := &pod.Spec
	for _, o := range pod.OwnerReferences {
		refuse(o.Kind == "DaemonSet", "DaemonSet %s: a DaemonSet has a pod on each machine, and a virtual node is none; keep its pods off with a node affinity (type NotIn virtual-kubelet)", o.Name)
	}
	refuse(s.HostNetwork, "hostNetwork: a container group has an address of its own and no machine whose network it could have")
	refuse(s.HostPID, "hostPID: there is no machine whose processes the container group could see")
	refuse(s.HostIPC, "hostIPC: there is no machine whose memory the container group could share")
	refuse(isTrue(s.ShareProcessNamespace), "shareProcessNamespace: the containers of a group do not see each other's processes")
	refuse(len(s.HostAliases) > 0, "hostAliases: /etc/hosts in a container group is Azure's")
	refuse(s.ActiveDeadlineSeconds != nil, "activeDeadlineSeconds: Azure ends no container group by itself")
	for _, c := range s.InitContainers {
		refuse(true, "init container %s: the connector makes container groups without init containers; do its work in the container's own command", c.Name)
	}
	for _, v := range s.Volumes {
		if kind := unsupportedVolume(&v); kind != "" {
			refuse(true, "volume %s: a container group has no volumes of type %s; it has emptyDir, configMap, secret and projected ones", v.Name,
				kind)
		}
		parts, _, _ := podspec.Parts(&v)
		for _, part := range parts {
			if err := checkDownward(pod, part.DownwardAPI); err != nil {
				refuse(true, "volume %s: %v", v.Name, err)
			}
		}
	}
	if c := s.SecurityContext; c != nil {
		refuse(len(c.Sysctls) > 0, "securityContext.sysctls: the kernel is Azure's")
	}
	for i := range s.Containers {
		for _, why := range containerRefusals(&s.Containers[i]) {
			refuse(true, "container %s: %s", s.Containers[i].Name, why)
		}
	}
	return all
}

func containerRefusals(c *corev1.Container) []string {
	var all []string
	refuse := func(is bool, what string) {
		if is {
			all = append(all, what)
		}
	}
	for _, p := range c.Ports {
		refuse(p.HostPort != 0, fmt.Sprintf("hostPort %d: there is no machine that has the port; use a Service", p.HostPort))
	}
	for _, m := range c.VolumeMounts {
		refuse(m.SubPath != "" || m.SubPathExpr != "", "subPath of volume "+m.Name+": a container group mounts whole volumes")
	}
	refuse(len(c.VolumeDevices) > 0, "volumeDevices: a container group has no block devices")
	refuse(c.Lifecycle != nil && (c.Lifecycle.PostStart != nil || c.Lifecycle.PreStop != nil), "lifecycle: Azure runs no hooks")
	refuse(c.StartupProbe != nil, "startupProbe: a container group has liveness and readiness probes; give them an initialDelaySeconds")
	for name, p := range map[string]*corev1.Probe{"livenessProbe": c.LivenessProbe, "readinessProbe": c.ReadinessProbe} {
		refuse(p != nil && p.Exec == nil && p.HTTPGet == nil, name+": a container group is probed by exec or httpGet")
	}
	if s := c.SecurityContext; s != nil {
		refuse(isTrue(s.Privileged), "securityContext.privileged: a container group has no privileged containers")
		refuse(s.Capabilities != nil && len(s.Capabilities.Add) > 0, "securityContext.capabilities.add: a container group adds no capabilities")
	}
	return all
}

// unsupportedVolume returns the type of a volume that a group cannot have, "" for the others.
func unsupportedVolume(v *corev1.Volume) string {
	s := &v.VolumeSource
	switch {
	case s.EmptyDir != nil && s.EmptyDir.Medium == corev1.StorageMediumMemory:
		return "emptyDir with medium Memory"
	case s.EmptyDir != nil, s.Secret != nil, s.ConfigMap != nil, s.DownwardAPI != nil, s.Projected != nil:
		return ""
	case s.HostPath != nil:
		return "hostPath"
	case s.PersistentVolumeClaim != nil:
		return "persistentVolumeClaim"
	case s.NFS != nil:
		return "nfs"
	case s.CSI != nil:
		return "csi"
	case s.Ephemeral != nil:
		return "ephemeral"
	case s.AzureFile != nil:
		return "azureFile (the lab has no storage accounts)"
	case s.AzureDisk != nil:
		return "azureDisk"
	}
	return "that kind"
}

// checkDownward returns an error for a field that will never be known when the group is made.
func checkDownward(pod *corev1.Pod, d *corev1.DownwardAPIProjection) error {
	if d == nil {
		return nil
	}
	for _, item := range d.Items {
		if _, err := downward(pod, item.FieldRef); err != nil {
			return err
		}
	}
	return nil
}

// ignored returns the parts of a pod that have no effect in a group, and do no harm.
func ignored(pod *corev1.Pod) []string {
	var all []string
	if s := pod.Spec.SecurityContext; s != nil && (s.RunAsUser != nil || s.RunAsGroup != nil || s.FSGroup != nil || isTrue(s.RunAsNonRoot)) {
		all = append(all, "securityContext (users and groups)")
	}
	for _, c := range pod.Spec.Containers {
		if s := c.SecurityContext; s != nil &&
			(s.RunAsUser != nil || s.RunAsGroup != nil || isTrue(s.RunAsNonRoot) || isTrue(s.ReadOnlyRootFilesystem)) {
			all = append(all, "securityContext of container "+c.Name)
		}
		if c.Stdin || c.TTY {
			all = append(all, "stdin and tty of container "+c.Name)
		}
	}
	return all
}

func ignoredMessage(what []string) string {
	return strings.Join(what, "; ") + ": no effect in a container group: its containers run as their images say"
}

func isTrue(b *bool) bool { return b != nil && *b }
