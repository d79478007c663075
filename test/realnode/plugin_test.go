package realnode

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/base/release"
	"packetwalk.dev/internal/pods/nodeimage"
	"packetwalk.dev/test/world"
)

// pluginCluster is one node with containerd.
const pluginCluster = `
apiVersion: packetwalk.dev/v1alpha1
kind: Cluster
spec:
  nodePools: [{name: real, runtime: containerd}]
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
	pluginImage(t, w, dir)
	w.Kubectl(t, "run", "web", "--image=nginx")
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/web", "--timeout=50s")
	plugin := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(w.Root, "bin", "kubectl-packetwalk"), args...)
		cmd.Env = []string{"KUBECONFIG=" + kubeconfig, "HOME=" + dir, "PATH=" + os.Getenv("PATH")}
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
	world.Eventually(t, 30*time.Second, func() error {
		left := w.Kubectl(t, "get", "namespace,job,pod", "-A", "-o", "name") + w.SSH(t, nodes(t, w, "real")[0], "ps", "-eo", "args")
		if strings.Contains(left, "namespace/packetwalk") || strings.Contains(left, "job.batch/packetwalk-") ||
			strings.Contains(left, "packetwalk on-node") {
			return fmt.Errorf("there is still something of\n%s", left)
		}
		return nil
	})
}

// pluginImage puts packetwalk's image of this version into the machine's store, if it is not there.
func pluginImage(t *testing.T, w *world.World, dir string) {
	t.Helper()
	said := strings.Fields(w.Run(t, "--version"))
	version := said[len(said)-1]
	name := release.Image(version)
	if strings.Contains(w.Run(t, "image", "list"), name+" ") {
		return
	}
	program := filepath.Join(w.Root, "bin", "packetwalk")
	img, err := nodeimage.Local(t.Context(), map[string]string{"usr/bin/packetwalk": program}, version)
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "image.tar")
	if err := nodeimage.WriteArchive(t.Context(), archive, name, img); err != nil {
		t.Fatal(err)
	}
	w.Run(t, "image", "load", archive)
	t.Cleanup(func() { w.Run(t, "image", "rm", name) })
}
