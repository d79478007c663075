package realnode

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/test/world"
)

// statefulSet is one of a pool, with a claim that names no class, and a shell of the node.
const statefulSet = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: data-POOL}
spec:
  serviceName: data
  selector: {matchLabels: {app: data-POOL}}
  template:
    metadata: {labels: {app: data-POOL}}
    spec:
      nodeSelector: {agentpool: POOL}
      terminationGracePeriodSeconds: 0
      securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 2000}
      containers:
      - name: c
        image: ` + image + `
        args: [pause]
        volumeMounts:
        - {name: data, mountPath: /data}
        - {name: usr, mountPath: /usr}
        - {name: bin, mountPath: /bin}
        - {name: lib, mountPath: /lib}
        - {name: lib64, mountPath: /lib64}
      volumes:
      - {name: usr, hostPath: {path: /usr}}
      - {name: bin, hostPath: {path: /bin}}
      - {name: lib, hostPath: {path: /lib}}
      - {name: lib64, hostPath: {path: /lib64}}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`

// volumes: a StatefulSet's claim gets a directory of its pod's node, in which a pod that may not do much can write;
// what it holds is there for the next pod, and goes with the claim.
func volumes(t *testing.T, w *world.World) {
	for _, pool := range []string{"real"} {
		manifest := strings.ReplaceAll(statefulSet, "POOL", pool)
		if _, err := w.TryInput(time.Minute, manifest, "kubectl", "--name", w.Name, "apply", "-f", "-"); err != nil {
			t.Fatal(err)
		}
		pod := "data-" + pool + "-0"
		w.Kubectl(t, "rollout", "status", "statefulset/data-"+pool, "--timeout=60s")
		w.Kubectl(t, "exec", pod, "--", "sh", "-c", "echo kept > /data/file")
		if owner := w.Kubectl(t, "exec", pod, "--", "stat", "-c", "%u %g", "/data/file"); strings.TrimSpace(owner) != "1000 2000" {
			t.Errorf("%s: the file is of %s", pool, owner)
		}
		uid := w.Kubectl(t, "get", "pod", pod, "-o", "jsonpath={.metadata.uid}")
		w.Kubectl(t, "delete", "pod", pod)
		eventually.Succeeds(t, time.Minute, func() error {
			now, err := w.Try(10*time.Second, "kubectl", "--name", w.Name, "get", "pod", pod, "-o", "jsonpath={.metadata.uid}")
			if err == nil && now == uid {
				err = fmt.Errorf("%s is the old one", pod)
			}
			return err
		})
		w.Kubectl(t, "wait", "--for=condition=Ready", "pod/"+pod, "--timeout=60s")
		if text := w.Kubectl(t, "exec", pod, "--", "cat", "/data/file"); strings.TrimSpace(text) != "kept" {
			t.Errorf("%s: the next pod finds %q", pool, text)
		}
		if found := directories(w); len(found) != 1 {
			t.Errorf("%s: the directories are %q", pool, found)
		}
		w.Kubectl(t, "delete", "statefulset/data-"+pool)
		w.Kubectl(t, "delete", "pvc/data-data-"+pool+"-0", "--timeout=60s")
		eventually.Succeeds(t, time.Minute, func() error {
			if found := directories(w); len(found) > 0 {
				return fmt.Errorf("%s: there are still %q", pool, found)
			}
			out, err := w.Try(10*time.Second, "kubectl", "--name", w.Name, "get", "pv", "-o", "name")
			if err == nil && strings.Contains(out, "/") {
				err = fmt.Errorf("%s: there are still %q", pool, out)
			}
			return err
		})
	}
}

// directories returns the volumes' directories on the machine.
func directories(w *world.World) (all []string) {
	for _, pattern := range []string{"/var/lib/packetwalk/" + w.Name + "/nodes/*/volumes/*",
		"/var/lib/packetwalk/" + w.Name + "/disk/*/rootfs/var/lib/packetwalk-volumes/*"} {
		found, _ := filepath.Glob(pattern) // the patterns are well formed
		all = append(all, found...)
	}
	return all
}
