package faults

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"packetwalk.dev/test/world"
)

// TestEnvironmentNamesAnotherCluster: every command that acts on a lab reaches that lab, and never the cluster that the caller's
// environment or home directory names.
func TestEnvironmentNamesAnotherCluster(t *testing.T) {
	world.NeedRoot(t)
	var asked atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusTeapot)
	}))
	defer other.Close()
	home := t.TempDir()
	kube := filepath.Join(home, ".kube")
	if err := os.Mkdir(kube, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"config": `{apiVersion: v1, kind: Config, current-context: other, contexts: [{name: other, context: {cluster: other, namespace: other}}],
clusters: [{name: other, cluster: {server: "` + other.URL + `"}}]}
`,
		"kuberc": `apiVersion: kubectl.config.k8s.io/v1beta1
kind: Preference
defaults:
- command: create namespace
  options: [{name: server, default: "` + other.URL + `"}]
`,
	} {
		if err := os.WriteFile(filepath.Join(kube, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range map[string]string{
		"HOME": home, "KUBECONFIG": filepath.Join(kube, "config"), "KUBERC": filepath.Join(kube, "kuberc"), "KUBERNETES_MASTER": other.URL,
		"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": other.URL[strings.LastIndex(other.URL, ":")+1:],
		"ETCD_DATA_DIR": home, "HTTPS_PROXY": other.URL, "http_proxy": other.URL, "ALL_PROXY": other.URL,
	} {
		t.Setenv(name, value)
	}
	kubectl := filepath.Join(world.New(t, "").Root, "bin", "packetwalk-controlplane")
	if out, _ := exec.Command(kubectl, "kubectl", "get", "--raw", "/").CombinedOutput(); asked.Swap(0) == 0 {
		t.Fatalf("upstream's kubectl does not ask the other cluster, so this test shows nothing: %s", out)
	}

	w := fresh(t, "environment")
	namespaces := func() string { return w.Kubectl(t, "get", "namespaces", "-o", "name") }
	w.Run(t, "kubectl", "--name", w.Name, "create", "namespace", "proof")
	if !strings.Contains(namespaces(), "namespace/proof") {
		t.Error("kubectl --name did not create the namespace in the lab")
	}
	w.Run(t, "shell", "--name", w.Name, "-c", "kubectl create namespace shell-proof && kubectl packetwalk rbac >/dev/null")
	if !strings.Contains(namespaces(), "namespace/shell-proof") {
		t.Error("shell did not create the namespace in the lab")
	}
	if kubeconfig := strings.TrimSpace(w.SSH(t, node, "printenv", "KUBECONFIG")); kubeconfig != "/run/packetwalk/"+w.Name+"/kubeconfig" {
		t.Errorf("ssh has the kubeconfig %s", kubeconfig)
	}
	if page := w.SSH(t, "client", "curl", "-sS", "--max-time", "10", "http://198.51.100.80/ip"); page == "" {
		t.Error("curl on an internet host gets nothing")
	}
	w.Run(t, "status", "--name", w.Name)
	w.Run(t, "walk", "--name", w.Name, "--from", "vm/testvm", "--to", "node/"+node+":10250")
	w.Run(t, "capture", "--name", w.Name, "-o", filepath.Join(home, "lab.pwcap.tar.gz"))
	if entries, err := os.ReadDir(kube); err != nil || len(entries) != 2 {
		t.Errorf("%s has %v, %v: root wrote into the caller's home", kube, entries, err)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the other cluster was asked %d times", n)
	}
}
