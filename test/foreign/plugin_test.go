package foreign

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/test/agree"
	"packetwalk.dev/test/world"
)

// everyTenth is how many of the pairs are walked by the command that users have, too.
const everyTenth = 10

// user has the command that users have, for one cluster.
type user struct {
	*world.World
	kubeconfig, image string
}

func newUser(t *testing.T, w *world.World) user {
	t.Helper()
	u := user{w, filepath.Join(t.TempDir(), "kubeconfig"), "packetwalk.dev/packetwalk:" + ownImage(t, w)}
	if err := os.WriteFile(u.kubeconfig, []byte(w.Kubectl(t, "config", "view", "--raw")), 0o600); err != nil {
		t.Fatal(err)
	}
	return u
}

// command walks some of the pairs by kubectl packetwalk, which starts pods on the nodes and removes them.
func (u user) command(t *testing.T, all []agree.Pair) {
	t.Helper()
	var took time.Duration
	walked := 0
	for i, p := range all {
		if i%everyTenth != 0 || p.From == "internet" {
			continue
		}
		begin := time.Now()
		if err := u.agrees(t.Context(), p); err != nil {
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

// agrees returns an error unless a walk ends with status 0 and the kernel agrees with every step.
func (u user) agrees(ctx context.Context, p agree.Pair) error {
	out, status, err := u.walk(ctx, p)
	m := agrees.FindStringSubmatch(out)
	if err != nil || status != 0 || m == nil || m[1] != m[2] || parts.MatchString(out) || m[3] != "" && !leaves.MatchString(out) {
		return fmt.Errorf("does it agree? status %d, %w\n%s", status, err, out)
	}
	return nil
}

// undecided returns an error unless a walk ends with status 3 and says why.
func (u user) undecided(ctx context.Context, p agree.Pair, why ...string) error {
	out, status, err := u.walk(ctx, p)
	for _, words := range why {
		if !strings.Contains(out, words) {
			status = -1
		}
	}
	if err != nil || status != 3 {
		return fmt.Errorf("is it undecided, with %q? status %d, %w\n%s", why, status, err, out)
	}
	return nil
}

// walk walks a pair with --live and returns all that the command said.
func (u user) walk(ctx context.Context, p agree.Pair) (out string, status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(u.Root, "bin", "kubectl-packetwalk"), "walk", "--kubeconfig", u.kubeconfig, "--image", u.image, "--live",
		"--from", p.From, "--to", p.To, "--proto", p.Proto)
	text, err := cmd.CombinedOutput()
	if _, ended := errors.AsType[*exec.ExitError](err); ended && ctx.Err() == nil {
		err = nil
	}
	return string(text), cmd.ProcessState.ExitCode(), err
}
