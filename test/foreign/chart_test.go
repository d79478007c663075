package foreign

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/test/world"
)

// ownImage has packetwalk's own image in the machine's store, and gives its tag.
func ownImage(t *testing.T, w *world.World) string {
	t.Helper()
	out := w.Run(t, "image", "load", filepath.Join(w.Root, "bin", "packetwalk-image.tar"))
	image := regexp.MustCompile(`packetwalk\.dev/packetwalk:(\S+)`).FindStringSubmatch(out)
	if image == nil {
		t.Fatalf("what was loaded? %s", out)
	}
	return image[1]
}

// installChart puts packetwalk's own chart on a cluster, as helm renders it, and its CNI plugin.
func installChart(t *testing.T, w *world.World, v *values) {
	t.Helper()
	tag := ownImage(t, w)
	for _, n := range v.Ranges {
		w.PodNetwork(t, strings.Fields(n)[0])
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	args := []string{"template", "pw", filepath.Join(w.Root, "deploy", "chart"), "--namespace", "kube-system"}
	for _, set := range []string{
		"image.tag=" + tag, "apiServer=https://" + v.APIServer + ":443", "serviceProxy.clusterCIDR=10.244.0.0/16",
		"ipMasqAgent.enabled=true", "ipMasqAgent.config.nonMasqueradeCIDRs={10.0.0.0/8}",
	} {
		args = append(args, "--set", set)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(w.Root, "bin", "helm"), args...)
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	if _, err := w.TryInput(time.Minute, string(text), "kubectl", "--name", w.Name, "-n", "kube-system", "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}
