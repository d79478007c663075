package realnode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/lab"
	"packetwalk.dev/test/world"
)

// intruder is a pod that has the node's CNI configuration.
const intruder = `
apiVersion: v1
kind: Pod
metadata: {name: intruder}
spec:
  nodeSelector: {agentpool: real}
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: ubuntu, command: [sleep, "3600"], volumeMounts: [{name: networks, mountPath: /n}]}
  volumes:
  - {name: networks, hostPath: {path: /etc/cni/net.d}}
`

// hostPath writes into a directory of a node from a pod: the file is on the lab's disk, which the machine has mounted with nosuid and nodev,
// and not in the machine's /run.
func hostPath(t *testing.T, w *world.World, node string) {
	if _, err := w.TryInput(time.Minute, intruder, "kubectl", "--name", w.Name, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Kubectl(t, "delete", "pod", "intruder", "--wait=true") })
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/intruder", "--timeout=60s")
	marker := fmt.Sprintf("attack-%d", os.Getpid())
	w.Kubectl(t, "exec", "intruder", "--", "sh", "-c", "echo written >/n/"+marker)
	t.Cleanup(func() { w.Kubectl(t, "exec", "intruder", "--", "rm", "/n/"+marker) })
	d := lab.DirOf(w.Name)
	file := filepath.Join(d.NodeState(node), "networks", marker)
	if text, err := os.ReadFile(file); err != nil || string(text) != "written\n" {
		t.Errorf("%s: %q, %v", file, text, err)
	}
	_ = filepath.WalkDir("/run", func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Name() == marker {
			t.Errorf("the pod wrote %s", path)
		}
		return nil
	})
	// runc gives a pod's own mount of the directory other flags. The machine's decide what its users could do with the pod's files.
	var fileSystem unix.Statfs_t
	if err := unix.Statfs(file, &fileSystem); err != nil {
		t.Fatal(err)
	}
	const want = unix.ST_NOSUID | unix.ST_NODEV
	if fileSystem.Flags&want != want {
		t.Errorf("%s is mounted with flags %#x, without nosuid or nodev", file, fileSystem.Flags)
	}
	var written, run unix.Stat_t
	if err := errors.Join(unix.Stat(file, &written), unix.Stat("/run", &run)); err != nil || written.Dev == run.Dev {
		t.Errorf("%s is on the file system of /run: %v", file, err)
	}
}
