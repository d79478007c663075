package faults

import (
	"bufio"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/internal/lab"
	"packetwalk.dev/test/world"
)

const secondNode = "aks-nodepool1-31351229-1"

// TestScaledAndKilled kills the lab process while a node joins, and while it is drained: the next up brings both to their end. What is open
// on the first node stays open all the time, and in the end nothing is left of the second.
func TestScaledAndKilled(t *testing.T) {
	t.Parallel()
	w := fresh(t, "scale")
	w.Kubectl(t, "run", "ubuntu", "--image=ubuntu", "--", "sleep", "3600")
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/ubuntu", "--timeout=60s")
	before, files := fabricState(t, w), nodeFiles(t, w)
	c := open(t, w, "pod/default/ubuntu", "198.51.100.80")

	_, err := w.Try(time.Minute, "az", "--name", w.Name, "aks", "scale", "-n", "nodepool1", "-c", "9")
	if err == nil || !strings.Contains(err.Error(), "subnet aksVnet/aks, 10.13.76.0/24, has 256 addresses and 284 are needed") {
		t.Errorf("a subnet that is too small: %v", err)
	}
	if fabricState(t, w) != before {
		t.Error("what is not possible changed the fabric")
	}

	scaleAndKill(t, w, "1", "2", "network changed")
	w.Run(t, "up", "--name", w.Name)
	c.ask(t, "after the node joined")
	if nodes := readyNodes(t, w); !slices.Equal(nodes, []string{node, secondNode}) {
		t.Fatalf("nodes %v are Ready, want two", nodes)
	}
	// A pod that takes its time to end: sleep as first process does not hear SIGTERM.
	w.Kubectl(t, "run", "slow", "--image=busybox", `--overrides={"spec":{"nodeName":"`+secondNode+`","terminationGracePeriodSeconds":3}}`,
		"--", "sleep", "3600")
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/slow", "--timeout=60s")
	eventually.Succeeds(t, time.Minute, func() error { _, err := w.Try(time.Minute, "status", "--name", w.Name); return err })

	scaleAndKill(t, w, "2", "1", "node "+secondNode+" is cordoned and drained")
	w.Run(t, "up", "--name", w.Name)
	c.ask(t, "after the node left")
	if nodes := readyNodes(t, w); !slices.Equal(nodes, []string{node}) {
		t.Errorf("nodes %v are Ready, want the first", nodes)
	}
	if after := fabricState(t, w); after != before {
		t.Errorf("scaled and scaled back, the fabric was\n%s\nand is\n%s", before, after)
	}
	if after := nodeFiles(t, w); after != files {
		t.Errorf("files were\n%s\nand are\n%s", files, after)
	}
	if left := w.Kubectl(t, "get", "pods,leases", "-A", "-o", "wide"); strings.Contains(left, secondNode) {
		t.Errorf("objects of the second node are left:\n%s", left)
	}
}

// scaleAndKill begins to scale and kills the lab process when the step is told. Where the rest was done before the process was dead, it is
// scaled back and begun again.
func scaleAndKill(t *testing.T, w *world.World, from, to, step string) {
	t.Helper()
	scale := func(count string) []string {
		return []string{"az", "--name", w.Name, "aks", "scale", "-n", "nodepool1", "-c", count, "-o", "none"}
	}
	for range 5 {
		told, err := killedAt(t, w, step, scale(to)...)
		if err != nil && strings.Contains(told, "the lab process ended before it was done") {
			return
		}
		if err != nil && !strings.Contains(told, "the lab process is not running") {
			t.Fatalf("scale, killed: %v\n%s", err, told)
		}
		t.Logf("killed too late:\n%s", told)
		w.Run(t, "up", "--name", w.Name)
		w.Run(t, scale(from)...)
	}
	t.Fatal("killed too late each time")
}

// killedAt runs a command and kills the lab process when the step is told; what was told, and how the command ended.
func killedAt(t *testing.T, w *world.World, step string, args ...string) (string, error) {
	t.Helper()
	cmd := w.Command(args...)
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	pid := status(t, w).Pid
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var told strings.Builder
	for lines := bufio.NewScanner(errs); lines.Scan(); {
		fmt.Fprintln(&told, lines.Text())
		if strings.Contains(lines.Text(), step) {
			kill(t, pid)
		}
	}
	err = cmd.Wait()
	return told.String(), err
}

func readyNodes(t *testing.T, w *world.World) []string {
	t.Helper()
	var ready []string
	for line := range strings.Lines(w.Kubectl(t, "get", "nodes", "--no-headers")) {
		if f := strings.Fields(line); f[1] == "Ready" { // and not "Ready,SchedulingDisabled"
			ready = append(ready, f[0])
		}
	}
	return ready
}

// nodeFiles returns the paths of namespaces and nodes, but for those of pods.
func nodeFiles(t *testing.T, w *world.World) string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*.next*", "netns/*", "netns/pods/*", "nodes/*", "hosts/*"} {
		paths, err := filepath.Glob(filepath.Join(string(lab.DirOf(w.Name)), pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, paths...)
	}
	return strings.Join(all, "\n")
}
