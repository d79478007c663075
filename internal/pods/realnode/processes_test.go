package realnode

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestProcesses: those of a group and of groups below it, and of no group whose name only begins so.
func TestProcesses(t *testing.T) {
	kerneltest.NeedRoot(t)
	all, err := cgroup.Hierarchies()
	if err != nil || len(all) == 0 {
		t.Fatalf("hierarchies: %v, %v", all, err)
	}
	group := fmt.Sprintf("packetwalk-test-%d-processes", os.Getpid())
	below := filepath.Join(all[len(all)-1].Point, group, "node/pod")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = cmd.Process.Kill(), cmd.Wait()
		if err := cgroup.Remove(group); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(below, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{group + "/node": 1, group + "/node/pod": 1, group + "/nod": 0, group + "/node/pod/x": 0} {
		if pids, err := Processes(name); err != nil || len(pids) != want || want == 1 && pids[0] != cmd.Process.Pid {
			t.Errorf("in %s are %v, %v", name, pids, err)
		}
	}
}
