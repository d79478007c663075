package chart

import (
	"os"
	"regexp"
	"slices"
	"testing"

	securityv1 "github.com/openshift/api/security/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestOpenShift compares the SecurityContextConstraints of docs/node-components.md with what the chart's pods need: it admits them, and
// grants nothing more.
func TestOpenShift(t *testing.T) {
	page, err := os.ReadFile("../../docs/node-components.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)\n```yaml\n(apiVersion: security.openshift.io/v1\n.*?)```\n").FindSubmatch(page)
	if block == nil {
		t.Fatal("the page has no SecurityContextConstraints")
	}
	var got securityv1.SecurityContextConstraints
	if err := yaml.UnmarshalStrict(block[1], &got); err != nil {
		t.Fatal(err)
	}
	const values = complete + "ipMasqAgent: {enabled: true}\nseLinuxOptions: {type: spc_t}\n"
	for privileged, text := range map[bool]string{true: values, false: values + "serviceProxy: {privilegedInit: false}\n"} {
		want := constraints(daemonSets(t, text)["node"].Spec.Template.Spec)
		shown := *got.DeepCopy()
		if !privileged { // the page's comments say so
			shown.AllowPrivilegedContainer, shown.AllowPrivilegeEscalation = false, new(bool)
		}
		if g, w := marshal(t, shown), marshal(t, want); g != w {
			t.Errorf("privilegedInit %v: the page has\n%s\nthe pods need\n%s", privileged, g, w)
		}
	}
}

// constraints returns the strictest constraints that admit a pod.
func constraints(p corev1.PodSpec) (c securityv1.SecurityContextConstraints) {
	c.APIVersion, c.Kind, c.Name = "security.openshift.io/v1", "SecurityContextConstraints", release
	c.RunAsUser.Type, c.SELinuxContext.Type = securityv1.RunAsUserStrategyRunAsAny, securityv1.SELinuxStrategyRunAsAny
	c.FSGroup.Type, c.SupplementalGroups.Type = securityv1.FSGroupStrategyRunAsAny, securityv1.SupplementalGroupsStrategyRunAsAny
	c.ReadOnlyRootFilesystem, c.AllowPrivilegeEscalation = true, new(bool)
	c.Volumes = []securityv1.FSType{securityv1.FSProjected} // the service account's token
	c.Users = []string{"system:serviceaccount:" + namespace + ":" + p.ServiceAccountName}
	c.AllowHostNetwork, c.AllowHostPID, c.AllowHostIPC = p.HostNetwork, p.HostPID, p.HostIPC
	for _, v := range p.Volumes {
		switch {
		case v.ConfigMap != nil:
			c.Volumes = append(c.Volumes, securityv1.FSTypeConfigMap)
		case v.HostPath != nil:
			c.Volumes = append(c.Volumes, securityv1.FSTypeHostPath)
			c.AllowHostDirVolumePlugin = true
		default:
			c.Volumes = append(c.Volumes, "unknown")
		}
	}
	for _, container := range slices.Concat(p.InitContainers, p.Containers) {
		addContainer(&c, &container)
	}
	slices.Sort(c.Volumes)
	c.Volumes = slices.Compact(c.Volumes)
	slices.Sort(c.AllowedCapabilities)
	c.AllowedCapabilities = slices.Compact(c.AllowedCapabilities)
	slices.Sort(c.SeccompProfiles)
	c.SeccompProfiles = slices.Compact(c.SeccompProfiles)
	return c
}

// addContainer widens constraints to what a container needs.
func addContainer(c *securityv1.SecurityContextConstraints, container *corev1.Container) {
	s := container.SecurityContext
	if p := s.Privileged; p != nil && *p {
		c.AllowPrivilegedContainer, *c.AllowPrivilegeEscalation = true, true
	} else if e := s.AllowPrivilegeEscalation; e == nil || *e {
		*c.AllowPrivilegeEscalation = true
	}
	c.ReadOnlyRootFilesystem = c.ReadOnlyRootFilesystem && s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem
	c.AllowHostPorts = c.AllowHostPorts || len(container.Ports) > 0
	if s.Capabilities != nil {
		c.AllowedCapabilities = append(c.AllowedCapabilities, s.Capabilities.Add...)
	}
	if p := s.SeccompProfile; p != nil && p.Type == corev1.SeccompProfileTypeRuntimeDefault {
		c.SeccompProfiles = append(c.SeccompProfiles, "runtime/default")
	} else if p != nil {
		c.SeccompProfiles = append(c.SeccompProfiles, string(p.Type))
	}
}

func marshal(t *testing.T, c securityv1.SecurityContextConstraints) string {
	t.Helper()
	text, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
