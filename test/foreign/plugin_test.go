package foreign

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"packetwalk.dev/test/agree"
	"packetwalk.dev/test/world"
)

// everyTenth is how many of the pairs are walked by the command that users have, too.
const everyTenth = 10

// command walks pairs by kubectl packetwalk, which starts pods on the nodes and takes them away.
func command(t *testing.T, w *world.World, all []agree.Pair) {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(w.Kubectl(t, "config", "view", "--raw")), 0o600); err != nil {
		t.Fatal(err)
	}
	image := "packetwalk.dev/packetwalk:" + ownImage(t, w)
	var took time.Duration
	walked := 0
	for i, p := range all {
		if i%everyTenth != 0 || p.From == "internet" {
			continue
		}
		begin := time.Now()
		if err := kubectlWalk(t.Context(), w, kubeconfig, image, p); err != nil {
			t.Errorf("kubectl packetwalk: %s: %v", p, err)
		}
		took += time.Since(begin)
		walked++
	}
	t.Logf("kubectl packetwalk walk --live: %d pairs, %.1f s each", walked, took.Seconds()/float64(max(walked, 1)))
}

// agrees is what is said where every step was compared and agrees, and of packets that leave the cluster also that nothing answered.
// What it says of the connection's next packet is no step.
var (
	agrees = regexp.MustCompile(`(?m)^kernel: ([1-9]\d*) of (\d+) steps agree` +
		`(; the receiving program sent nothing back: the way back was not compared)?(; the connection does not last: .*)?$`)
	parts  = regexp.MustCompile(`(?m)^they part on `)
	leaves = regexp.MustCompile(`(?m)^ +end +leaves the captured network`)
)

func kubectlWalk(ctx context.Context, w *world.World, kubeconfig, image string, p agree.Pair) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(w.Root, "bin", "kubectl-packetwalk"), "walk", "--kubeconfig", kubeconfig, "--image", image, "--live",
		"--from", p.From, "--to", p.To, "--proto", p.Proto)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	m := agrees.FindSubmatch(out)
	if m == nil || string(m[1]) != string(m[2]) || parts.Match(out) || len(m[3]) > 0 && !leaves.Match(out) {
		return fmt.Errorf("does it agree?\n%s", out)
	}
	return nil
}
