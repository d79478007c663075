package kubelet

import (
	"os"
	"path/filepath"
	"testing"
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
