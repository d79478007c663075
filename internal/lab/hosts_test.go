package lab

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"packetwalk.dev/internal/pods/container"
)

// TestPodsNames: a command in a pod's network asks the name server that the pod's containers ask, not the machine's.
func TestPodsNames(t *testing.T) {
	d := Dir(t.TempDir())
	write := func(path string, data []byte) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for pod, server := range map[string]string{"default_web-1": "10.0.0.10", "default_web-2": "10.0.0.11",
		"kube-system_dns": "168.63.129.16"} {
		netns := filepath.Join(d.PodNetNSDir(), "aks-0", pod)
		write(netns, nil)
		spec, err := json.Marshal(container.Spec{Name: "c", NetNS: netns, ResolvConf: []byte("nameserver " + server + "\n")})
		if err != nil {
			t.Fatal(err)
		}
		write(filepath.Join(d.Node("aks-0"), "pods", "uid-of-"+pod, "containers", "c", "1", container.SpecFile), spec)
	}
	write(filepath.Join(d.PodNetNSDir(), "aks-0", "default_waiting"), nil) // no container of it has been started
	for host, want := range map[string]string{
		"pod/web-1": "nameserver 10.0.0.10\n", "pod/default/web-2": "nameserver 10.0.0.11\n", "pod/kube-system/dns": "nameserver 168.63.129.16\n",
		"pod/waiting": "",
	} {
		at, err := d.FindHost(host)
		if err != nil || string(at.ResolvConf) != want {
			t.Errorf("%s asks %q, want %q (%v)", host, at.ResolvConf, want, err)
		}
	}
	if _, err := d.FindHost("pod/nobody"); err == nil || !strings.Contains(err.Error(), "packetwalk kubectl get pods") {
		t.Errorf("a pod that is not there: %v", err)
	}
}
