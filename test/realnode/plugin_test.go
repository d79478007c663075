package realnode

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/bpflock"
	"packetwalk.dev/internal/testing/eventually"
)

// pluginCluster is one node with containerd.
const pluginCluster = `
apiVersion: packetwalk.dev/v1alpha1
kind: Cluster
spec:
  nodePools: [{name: real}]
  images: {pull: never}
`

// TestPlugin: kubectl packetwalk with a real container on a node of containerd's and upstream's kubelet's: a walk to the internet that the
// kernel agrees with, a capture, and nothing is left.
func TestPlugin(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	w := start(t, "plugin", pluginCluster)
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(w.Kubectl(t, "config", "view", "--raw")), 0o600); err != nil {
		t.Fatal(err)
	}
	image := w.PluginImage(t)
	w.Kubectl(t, "run", "web", "--image=nginx")
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/web", "--timeout=50s")
	plugin := func(args ...string) string {
		t.Helper()
		unlock, err := bpflock.Walk()
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
		cmd := exec.CommandContext(t.Context(), filepath.Join(w.Root, "bin", "kubectl-packetwalk"), args...)
		cmd.Env = []string{"KUBECONFIG=" + kubeconfig, "HOME=" + dir, "PATH=" + os.Getenv("PATH"), "PACKETWALK_IMAGE=" + image}
		began := time.Now()
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl packetwalk %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		t.Logf("%v: kubectl packetwalk %s", time.Since(began).Round(10*time.Millisecond), strings.Join(args, " "))
		return string(out)
	}
	for range 2 { // the second time the image is on the node
		out := plugin("walk", "--live", "--from", "pod/web", "--to", "198.51.100.80:80")
		var agree, steps int
		_, after, _ := strings.Cut(out, "\nkernel: ")
		if _, err := fmt.Sscanf(after, "%d of %d steps agree\n", &agree, &steps); err != nil || agree != steps || agree == 0 {
			t.Errorf("not proved:\n%s", out)
		}
	}
	file := filepath.Join(dir, "capture")
	plugin("capture", "--all-nodes", "-o", file)
	out := w.Run(t, "walk", "--snapshot", file, "--from", "pod/web", "--to", "198.51.100.80:80")
	if !strings.Contains(out, "MASQUERADE") {
		t.Errorf("a walk in the capture says\n%s", out)
	}
	eventually.Succeeds(t, time.Minute, func() error {
		left := w.Kubectl(t, "get", "namespace,job,pod", "-A", "-o", "name") + w.SSH(t, nodes(t, w, "real")[0], "ps", "-eo", "args")
		if strings.Contains(left, "namespace/packetwalk") || strings.Contains(left, "job.batch/packetwalk-") ||
			strings.Contains(left, "packetwalk on-node") {
			return fmt.Errorf("there is still something of\n%s", left)
		}
		return nil
	})
}
