package chart

import (
	"slices"
	"strings"
	"testing"
)

// TestPrivilegedInit: an init container sets limits and timeouts of connection tracking as kube-proxy has them. Without it the kernel's
// stay.
func TestPrivilegedInit(t *testing.T) {
	init := daemonSets(t, complete)["node"].Spec.Template.Spec.InitContainers
	if len(init) != 1 || !*init[0].SecurityContext.Privileged || !slices.Contains(init[0].Command, "--init-only") {
		t.Errorf("init containers %+v", init)
	}
	if c := proxyConfig(t, complete); strings.Contains(c, "conntrack") {
		t.Errorf("the chart has other limits than kube-proxy:\n%s", c)
	}
	const without = complete + "serviceProxy: {privilegedInit: false}"
	d := daemonSets(t, without)["node"]
	if len(d.Spec.Template.Spec.InitContainers) > 0 || strings.Contains(must(t, without), "privileged: true") {
		t.Errorf("%+v", d.Spec.Template.Spec.InitContainers)
	}
	if c := proxyConfig(t, without); !strings.Contains(c, "maxPerCore: 0") || !strings.Contains(c, "tcpEstablishedTimeout: 0s") {
		t.Errorf("without the rights it sets\n%s", c)
	}
}

// TestPodValues: labels, annotations and flags of the user reach the DaemonSet's pods; fields without effect end the program.
func TestPodValues(t *testing.T) {
	const own = "{podLabels: {team: a}, podAnnotations: {note: b}, extraArgs: ['--pod-uid=1']"
	template := daemonSets(t, complete+"node: "+own+"}\n")["node"].Spec.Template
	if template.Labels["team"] != "a" || template.Annotations["note"] != "b" ||
		!slices.Contains(template.Spec.Containers[0].Command, "--pod-uid=1") {
		t.Errorf("%+v", template)
	}
	for values, strict := range map[string]bool{complete: true, complete + "serviceProxy: {strictConfig: false}": false} {
		if c := daemonSets(t, values)["node"].Spec.Template.Spec.Containers[0].Command; slices.Contains(c, "--strict-config") != strict {
			t.Errorf("%s: %q", values, c)
		}
	}
	if c := proxyConfig(t, complete+"serviceProxy: {clusterCIDR: [10.0.0.0/8, 'fd00::/64']}"); !strings.Contains(c, "clusterCIDR: 10.0.0.0/8,fd00::/64") {
		t.Errorf("%s", c)
	}
}

// TestImage: with a digest the tag is said, too.
func TestImage(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0", 64)
	for values, want := range map[string]string{
		"image: {tag: v1}":                           "packetwalk.dev/packetwalk:v1",
		"image: {tag: v1, digest: '" + digest + "'}": "packetwalk.dev/packetwalk:v1@" + digest,
		"image: {tag: '', digest: '" + digest + "'}": "packetwalk.dev/packetwalk@" + digest,
	} {
		for _, c := range daemonSets(t, "apiServer: https://api.example\n"+values)["node"].Spec.Template.Spec.Containers {
			if c.Image != want {
				t.Errorf("%s: %s, want %s", values, c.Image, want)
			}
		}
	}
}

// TestNotes: what Helm prints warns of an empty clusterCIDR, and of nothing where it is not needed.
func TestNotes(t *testing.T) {
	for values, want := range map[string]bool{
		complete: true,
		complete + "serviceProxy: {clusterCIDR: 10.0.0.0/8}":                        false,
		complete + "serviceProxy: {config: {detectLocalMode: NodeCIDR}}":            false,
		complete + "serviceProxy: {enabled: false}\nipMasqAgent: {enabled: true}\n": false,
	} {
		_, files, err := renderFiles(t, release, parse(t, values))
		if err != nil {
			t.Fatal(err)
		}
		notes := files["packetwalk/templates/NOTES.txt"]
		if notes == "" || strings.Contains(notes, "WARNING: serviceProxy.clusterCIDR is empty") != want {
			t.Errorf("%s: %s", values, notes)
		}
	}
}
