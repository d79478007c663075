package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/base/imageref"
)

// TestManifests: what the manifests in deploy/manifests run is this program, of an image whose version the user writes, and it takes each
// flag and each field of the configuration, without one that has no effect.
func TestManifests(t *testing.T) {
	files, err := filepath.Glob("../../deploy/manifests/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("%v, %v", files, err)
	}
	image := imageref.Image("VERSION")
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			var sets []appsv1.DaemonSet
			for part := range strings.SplitSeq(string(text), "\n---\n") {
				var d appsv1.DaemonSet
				var c corev1.ConfigMap
				switch {
				case strings.Contains(part, "\nkind: DaemonSet\n"):
					if err := yaml.UnmarshalStrict([]byte(part), &d); err != nil {
						t.Fatal(err)
					}
					sets = append(sets, d)
				case strings.Contains(part, "\nkind: ConfigMap\n"):
					if err := yaml.UnmarshalStrict([]byte(part), &c); err != nil {
						t.Fatal(err)
					}
					for name, text := range c.Data {
						if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			if len(sets) == 0 {
				t.Fatal("no DaemonSet")
			}
			for _, d := range sets {
				pod := d.Spec.Template.Spec
				for _, c := range pod.InitContainers {
					takes(t, c.Command, strings.NewReplacer("/etc/packetwalk/", dir+"/"))
				}
				c := pod.Containers[0]
				if c.Image != image {
					t.Errorf("image %s, want %s", c.Image, image)
				}
				for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
					if p != nil && p.Exec != nil {
						asks(t, p.Exec.Command)
					}
				}
				takes(t, c.Command, strings.NewReplacer("/etc/packetwalk/", dir+"/", "$(NODE_NAME)", "node0"))
			}
		})
	}
}

// asks checks that a probe's command is one of this program's. Here the command must find that no agent of that pod runs.
func asks(t *testing.T, command []string) {
	t.Helper()
	t.Setenv("POD_UID", "unknown")
	if command[0] != "/usr/bin/packetwalk-node" || run(command[1:]) != 1 {
		t.Errorf("probe %q", command)
	}
}

// takes parses a container's command as this program does.
func takes(t *testing.T, command []string, here *strings.Replacer) {
	t.Helper()
	if command[0] != "/usr/bin/packetwalk-node" {
		t.Fatalf("it runs %s", command[0])
	}
	args := append([]string{}, command[1:]...)
	for i := range args {
		args[i] = here.Replace(args[i])
	}
	c, err := parse(append(args, "--strict-config"))
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		t.Errorf("%q: %v", args, err)
	}
}
