package kubelet

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/pods/container"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestMachine plays the script of each file in testdata/machine and compares what the machine decided and the status that came out.
//
// A line of the script is "+DURATION" or something that happened:
//
//	volumes [error…] | sandbox ADDRESS | sandbox error… | teardown | started C | failed C config|image|run MESSAGE… |
//	exited C CODE | probe C startup|readiness|liveness ok|bad | delete GRACE | poke | update (takes pod2.yaml) | status
func TestMachine(t *testing.T) {
	files, err := filepath.Glob("testdata/machine/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(err, "no files")
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { playFile(t, path) })
	}
}

func playFile(t *testing.T, path string) {
	ar, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]byte)
	for _, f := range ar.Files {
		files[f.Name] = f.Data
	}
	got := play(t, files)
	if *update {
		for i := range ar.Files {
			if ar.Files[i].Name == "want" {
				ar.Files = append(ar.Files[:i], ar.Files[i+1:]...)
				break
			}
		}
		ar.Files = append(ar.Files, txtar.File{Name: "want", Data: []byte(got)})
		if err := os.WriteFile(path, txtar.Format(ar), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(string(files["want"]), got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

type player struct {
	t     *testing.T
	m     *machine
	base  time.Time
	now   time.Time
	last  corev1.PodStatus
	files map[string][]byte
	out   strings.Builder
}

func play(t *testing.T, files map[string][]byte) string {
	base := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := &player{t: t, base: base, now: base, files: files}
	p.m = newMachine(p.parse("pod.yaml"), base)
	p.settle()
	for line := range strings.Lines(string(files["script"])) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		fmt.Fprintf(&p.out, "%s> %s\n", p.clock(), line)
		p.happen(strings.Fields(line))
		p.settle()
	}
	return p.out.String()
}

func (p *player) clock() string { return p.now.Sub(p.base).String() }

func (p *player) parse(name string) *corev1.Pod {
	p.t.Helper()
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(p.files[name], pod); err != nil {
		p.t.Fatal(err)
	}
	if pod.Namespace == "" {
		pod.Namespace = "default"
	}
	if pod.Spec.RestartPolicy == "" {
		pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	}
	pod.UID = "uid"
	return pod
}

// settle lets the machine decide and prints it.
func (p *player) settle() {
	acts, wake := p.m.step(p.now)
	for _, e := range p.m.takeEvents() {
		fmt.Fprintf(&p.out, "  event %s %s: %s\n", e.kind, e.reason, e.message)
	}
	p.actions(acts)
	if !wake.IsZero() {
		fmt.Fprintf(&p.out, "  wake at %s\n", wake.Sub(p.base))
	}
	if again, _ := p.m.step(p.now); len(again) > 0 {
		p.t.Errorf("actions given out twice: %v", again)
	}
	if p.m.finished() {
		fmt.Fprintln(&p.out, "  finished")
	}
}

func (p *player) actions(acts []action) {
	for _, a := range acts {
		fmt.Fprintf(&p.out, "  do %s", []string{"volumes", "sandbox", "start", "stop", "resize", "teardown"}[a.do])
		if a.c != nil {
			fmt.Fprintf(&p.out, " %s", a.c.Name)
		}
		if a.do == doStop {
			fmt.Fprintf(&p.out, " within %s", a.grace)
		}
		fmt.Fprintln(&p.out)
	}
}

func (p *player) container(name string) *containerState {
	for _, c := range p.m.containers {
		if c.Name == name {
			return c
		}
	}
	p.t.Fatalf("no container %s", name)
	return nil
}

func (p *player) happen(f []string) {
	rest := func(n int) string { return strings.Join(f[min(n, len(f)):], " ") }
	switch f[0] {
	case "volumes", "teardown":
		var err error
		if len(f) > 1 {
			err = errors.New(rest(1))
		}
		if f[0] == "volumes" {
			p.m.volumesDone(p.now, err)
		} else {
			p.m.teardownDone(p.now, err)
		}
	case "sandbox":
		if _, err := netip.ParseAddr(f[1]); err == nil {
			p.m.sandboxDone(p.now, f[1:], nil)
		} else {
			p.m.sandboxDone(p.now, nil, errors.New(rest(1)))
		}
	case "started":
		c := p.container(f[1])
		p.m.started(c, container.Spec{ID: fmt.Sprintf("%s-%d", c.Name, c.Attempt), Labels: map[string]string{imageLabel: "id-image"}}, p.now)
	case "failed":
		p.failed(f)
	case "exited":
		code, _ := strconv.Atoi(f[2])
		c := p.container(f[1])
		reason := "Completed"
		if code != 0 {
			reason = "Error"
		}
		p.m.exited(c, termination{ID: c.ID, Code: code, Reason: reason, StartedAt: c.StartedAt, Finished: p.now})
	case "probe":
		p.actions(p.m.probed(p.container(f[1]),
			map[string]probeKind{"startup": startupProbe, "readiness": readinessProbe, "liveness": livenessProbe}[f[2]], f[3] == "ok"))
	case "delete":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			p.t.Fatal(err)
		}
		fmt.Fprintf(&p.out, "  sooner %v\n", p.m.delete(p.now.Add(d)))
	case "poke":
		p.m.poke()
	case "update":
		for _, c := range p.m.update(p.parse("pod2.yaml")) {
			fmt.Fprintf(&p.out, "  restart %s\n", c.Name)
		}
	case "status":
		p.status()
	default:
		d, err := time.ParseDuration(strings.TrimPrefix(f[0], "+"))
		if err != nil {
			p.t.Fatalf("%q: %v", f[0], err)
		}
		p.now = p.now.Add(d)
	}
}

func (p *player) failed(f []string) {
	kinds := map[string]startFailure{"config": {failedConfig, reasonConfigError, ""}, "image": {failedImage, reasonImage, ""},
		"run": {failedRun, "RunContainerError", ""}}
	failure, ok := kinds[f[2]]
	if !ok {
		p.t.Fatalf("no such failure: %s", f[2])
	}
	failure.message = strings.Join(f[3:], " ")
	p.m.startFailed(p.container(f[1]), failure, p.now)
}

// status prints the status as kubectl shows it, and keeps it as what the API server has.
func (p *player) status() {
	s := p.m.status(p.last, netip.MustParseAddr("10.0.0.1"), p.now)
	p.last = s
	fmt.Fprintf(&p.out, "  phase %s %s%s\n", s.Phase, s.PodIP, strings.TrimRight(" "+s.Reason+" "+s.Message, " "))
	for _, c := range s.Conditions {
		fmt.Fprintf(&p.out, "  %-26s %-5s since %s", c.Type, c.Status, c.LastTransitionTime.Sub(p.base))
		if c.Reason != "" || c.Message != "" {
			fmt.Fprintf(&p.out, " %s: %s", c.Reason, c.Message)
		}
		fmt.Fprintln(&p.out)
	}
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for _, c := range list {
			fmt.Fprintf(&p.out, "  %s: %s", c.Name, stateText(c.State))
			if c.LastTerminationState.Terminated != nil {
				fmt.Fprintf(&p.out, ", last %s", stateText(c.LastTerminationState))
			}
			fmt.Fprintf(&p.out, ", ready %v, started %v, %d restarts\n", c.Ready, *c.Started, c.RestartCount)
		}
	}
}

func stateText(s corev1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Waiting != nil:
		return strings.TrimRight("waiting "+s.Waiting.Reason+" "+s.Waiting.Message, " ")
	case s.Terminated != nil:
		return fmt.Sprintf("terminated %s %d", s.Terminated.Reason, s.Terminated.ExitCode)
	}
	return "none"
}
