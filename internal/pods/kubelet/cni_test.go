package kubelet

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The first file by name is the configuration, be it a list or one plugin.
func TestCNIConfiguration(t *testing.T) {
	const (
		list   = `{"name": "list", "cniVersion": "1.0.0", "plugins": [{"type": "azure-vnet"}, {"type": "portmap", "capabilities": {"portMappings": true}}]}`
		plugin = `{"name": "plugin", "cniVersion": "0.3.1", "type": "azure-vnet", "mode": "bridge"}`
	)
	for name, test := range map[string]struct {
		files         map[string]string
		name, version string
		plugins       int
		maps          bool // host ports
	}{
		"list": {files: map[string]string{"10-azure.conflist": list, "20.conf": plugin}, name: "list", version: "1.0.0", plugins: 2,
			maps: true},
		"one plugin": {files: map[string]string{"10-azure.conf": plugin, "20.conflist": list}, name: "plugin", version: "0.3.1", plugins: 1},
		"as .json": {files: map[string]string{"10-azure.json": plugin, "01-readme.txt": "none"}, name: "plugin", version: "0.3.1",
			plugins: 1},
		"without a type": {files: map[string]string{"10-azure.conf": `{"name": "plugin"}`}},
		"not JSON":       {files: map[string]string{"10-azure.conf": `{`}},
		"none":           {files: map[string]string{"readme.txt": "none"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range test.files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			n := newCNI(dir, nil, t.TempDir(), nil)
			if n.mapsPorts() != test.maps {
				t.Errorf("maps host ports: %v", !test.maps)
			}
			got, err := n.config()
			if test.plugins == 0 {
				if err == nil {
					t.Fatalf("no error, but network %s", got.Name)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Name != test.name || got.CNIVersion != test.version || len(got.Plugins) != test.plugins ||
				got.Plugins[0].Network.Type != "azure-vnet" {
				t.Errorf("network %s %s with %d plugins", got.Name, got.CNIVersion, len(got.Plugins))
			}
		})
	}
}

// TestPluginsOfAPod: a pod's network is made and taken away by all plugins of the configuration; but by portmap where it has host ports.
func TestPluginsOfAPod(t *testing.T) {
	const plugin = `#!/bin/sh
echo "$CNI_COMMAND ${0##*/}" >>"${0%/*}/log"
test "$CNI_COMMAND" != ADD || echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.5/24"}]}'
`
	dir := t.TempDir()
	conf := `{"name": "net", "cniVersion": "1.0.0", "plugins": [{"type": "main"},
		{"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "other", "capabilities": {"portMappings": true}}]}`
	err := os.WriteFile(filepath.Join(dir, "net.conflist"), []byte(conf), 0o600)
	for _, name := range []string{"main", "portmap", "other"} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(plugin), 0o700))
	}
	if err != nil {
		t.Fatal(err)
	}
	n := newCNI(dir, []string{dir}, t.TempDir(), fakeNS{})
	for _, tt := range []struct {
		port int32
		want string
	}{
		{0, "ADD main\nADD other\nDEL other\nDEL main\n"},
		{8080, "ADD main\nADD portmap\nADD other\nDEL other\nDEL portmap\nDEL main\n"},
	} {
		pod := testPod("web", func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: tt.port}}
		})
		ips, err := n.add(t.Context(), pod, "id", "/netns")
		if err != nil || !slices.Equal(ips, []string{"10.0.0.5"}) {
			t.Errorf("%v, %v", ips, err)
		}
		if err := n.del(t.Context(), pod, "id", "/netns"); err != nil {
			t.Error(err)
		}
		log := filepath.Join(dir, "log")
		if got, err := os.ReadFile(log); err != nil || string(got) != tt.want {
			t.Errorf("host port %d: %v, called were\n%s", tt.port, err, got)
		}
		_ = os.Remove(log)
	}
}
