package realnode

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/test/world"
)

// bomb: a pod that starts processes without end comes to its own bound, and while it stands there the node, its other pods, new ones too,
// and the lab go on. The node has bounds that it cannot change.
func bomb(t *testing.T, w *world.World, node string) {
	bounds, err := cgroup.Machine()
	if err != nil {
		t.Fatal(err)
	}
	run(t, w, "bomb", image, "IfNotPresent")
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/bomb", "--timeout=60s")
	out, err := w.Try(2*time.Minute, "kubectl", "--name", w.Name, "exec", "bomb", "--", "sh", "-c",
		fmt.Sprintf("n=0; while test $n -lt %d; do sleep 600 </dev/null >/dev/null 2>&1 & n=$((n+1)); done; echo all", bounds.PodProcesses+100))
	if err == nil || strings.Contains(out, "all") {
		t.Fatalf("a pod can start %d processes: %q", bounds.PodProcesses+100, out)
	}
	w.Kubectl(t, "exec", "web", "--", "/agnhost", "connect", "127.0.0.1:80", "--timeout=5s")
	w.SSH(t, node, "true")
	run(t, w, "beside", image, "IfNotPresent")
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/beside", "--timeout=60s")
	answers(t, w)
	w.Kubectl(t, "delete", "pod", "bomb", "beside", "--timeout=60s")

	for file, want := range map[string]int64{"pids.max": bounds.Node.Processes, "memory.max": bounds.Node.Memory,
		"memory.limit_in_bytes": bounds.Node.Memory} {
		found, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup/*/packetwalk", w.Name, node, file)) // the pattern is well formed
		alone, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup/packetwalk", w.Name, node, file))
		for _, path := range append(found, alone...) {
			text, err := os.ReadFile(path)
			if got, e := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err != nil || e != nil || got/4096 != want/4096 {
				t.Errorf("%s is %s, %v; want %d", path, text, err, want)
			}
		}
	}
	w.SSH(t, node, "sh", "-c", "for f in $(find /sys/fs/cgroup -maxdepth 2 -name pids.max); do echo max > $f; done")
	for _, path := range []string{"/sys/fs/cgroup/pids/packetwalk", "/sys/fs/cgroup/packetwalk"} {
		text, err := os.ReadFile(filepath.Join(path, w.Name, node, "pids.max"))
		if err == nil && strings.TrimSpace(string(text)) == "max" {
			t.Errorf("the node has taken its bound away")
		}
	}
}
