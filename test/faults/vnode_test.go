package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/lab"
	"packetwalk.dev/test/world"
)

// groupPods are pods for the virtual node alone: two that go on, and what container groups do not have.
const groupPods = `
apiVersion: v1
kind: Pod
metadata: {name: stays}
spec:
  nodeSelector: {type: virtual-kubelet}
  tolerations: [{key: virtual-kubelet.io/provider, operator: Exists}]
  containers: [{name: c, image: gcr.io/kuar-demo/kuard-amd64}]
---
apiVersion: v1
kind: Pod
metadata: {name: goes}
spec:
  nodeSelector: {type: virtual-kubelet}
  tolerations: [{key: virtual-kubelet.io/provider, operator: Exists}]
  containers: [{name: c, image: nginx}]
---
apiVersion: v1
kind: Pod
metadata: {name: odd}
spec:
  nodeSelector: {type: virtual-kubelet}
  tolerations: [{key: virtual-kubelet.io/provider, operator: Exists}]
  hostNetwork: true
  initContainers: [{name: first, image: busybox}]
  containers: [{name: c, image: busybox, volumeMounts: [{name: host, mountPath: /host}]}]
  volumes: [{name: host, hostPath: {path: /tmp}}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: everywhere}
spec:
  selector: {matchLabels: {app: everywhere}}
  template:
    metadata: {labels: {app: everywhere}}
    spec:
      nodeSelector: {type: virtual-kubelet}
      tolerations: [{operator: Exists}]
      containers: [{name: c, image: nginx}]
`

// TestVirtualNode kills the connector and the lab process, while pods are deleted and made: no container group is lost or left behind. In
// the end nothing of them is left on the machine.
func TestVirtualNode(t *testing.T) {
	w := freshOf(t, "vnode", "virtual-node")
	if _, err := w.TryInput(time.Minute, groupPods, "kubectl", "--name", w.Name, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/stays", "pod/goes", "--timeout=60s")
	refused(t, w)
	running := started(t, w, "stays")

	// The connector dies; a pod is deleted and made anew by the same name before it is back.
	killConnector(t, w)
	w.Kubectl(t, "delete", "pod", "goes", "--force", "--grace-period=0")
	if _, err := w.TryInput(time.Minute, strings.Split(groupPods, "---\n")[1], "kubectl", "--name", w.Name, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	world.Eventually(t, 60*time.Second, func() error {
		if uid := w.Kubectl(t, "get", "pod", "goes", "-o", "jsonpath={.metadata.uid}"); !strings.Contains(w.Az(t, "container", "list", "--query", "[].tags.UID", "-o", "tsv"), uid) {
			return fmt.Errorf("there is no container group for the pod made anew")
		}
		return nil
	})
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/stays", "pod/goes", "--timeout=60s")
	if now := started(t, w, "stays"); now != running {
		t.Errorf("the container that was to stay began at %s, and runs since %s", running, now)
	}

	// The lab process, which runs the groups, dies; what they do goes on.
	ip := w.Kubectl(t, "get", "pod", "stays", "-o", "jsonpath={.status.podIP}")
	if err := unix.Kill(lab.DirOf(w.Name).Process(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if out, err := w.Try(10*time.Second, "ssh", "--name", w.Name, "vm/testvm", "--", "curl", "-sS", "--max-time", "5", "-o", "/dev/null",
		"http://"+ip+":8080"); err != nil {
		t.Errorf("without the lab process: %s %v", out, err)
	}
	w.Run(t, "up", "--name", w.Name)
	w.Kubectl(t, "delete", "pod", "goes", "--grace-period=1")
	world.Eventually(t, 30*time.Second, func() error { return onlyGroups(w, "default-stays") })
	if now := started(t, w, "stays"); now != running {
		t.Errorf("the container that was to stay began at %s, and runs since %s", running, now)
	}
	w.Kubectl(t, "delete", "pod", "stays", "--grace-period=1")
	world.Eventually(t, 30*time.Second, func() error { return onlyGroups(w) })
	w.Kubectl(t, "delete", "pod", "odd")
}

// started is when a pod's container began.
func started(t *testing.T, w *world.World, pod string) string {
	t.Helper()
	return w.Kubectl(t, "get", "pod", pod, "-o",
		"jsonpath={.status.containerStatuses[0].state.running.startedAt} {.status.containerStatuses[0].restartCount}")
}

// refused: what container groups do not have is said on the pods, with the reason.
func refused(t *testing.T, w *world.World) {
	t.Helper()
	daemon := strings.TrimSpace(w.Kubectl(t, "get", "pods", "-l", "app=everywhere", "-o", "jsonpath={.items[0].metadata.name}"))
	for pod, words := range map[string][]string{
		"odd": {"hostNetwork: a container group has an address of its own", "init container first:",
			"volume host: a container group has no volumes of type hostPath"},
		daemon: {"DaemonSet everywhere: a DaemonSet has a pod on each machine"},
	} {
		world.Eventually(t, 20*time.Second, func() error {
			events := w.Kubectl(t, "get", "events", "--field-selector", "reason=ProviderCreateFailed,involvedObject.name="+pod, "-o",
				"jsonpath={.items[*].message}")
			for _, word := range words {
				if !strings.Contains(events, word) {
					return fmt.Errorf("events of %s: %q, want %q", pod, events, word)
				}
			}
			if phase := w.Kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.phase} {.status.reason}"); phase != "Pending ProviderFailed" {
				return fmt.Errorf("pod %s is %s", pod, phase)
			}
			return nil
		})
	}
	w.Kubectl(t, "delete", "daemonset", "everywhere")
}

// killConnector kills the connector's process, in its pod's namespace, and does not wait until it is back.
func killConnector(t *testing.T, w *world.World) {
	t.Helper()
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well formed
	for _, dir := range dirs {
		name, _ := os.ReadFile(filepath.Join(dir, "comm")) // one that has ended has none
		group, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		if strings.TrimSpace(string(name)) != "virtual-kubelet" || !strings.Contains(string(group), "/packetwalk/"+w.Name+"/") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err := errors.Join(err, unix.Kill(pid, unix.SIGKILL)); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("the connector does not run")
}

// onlyGroups is an error unless these container groups, and no others, are in Azure's view and on the machine.
func onlyGroups(w *world.World, want ...string) error {
	listed, err := w.Try(time.Minute, "az", "--name", w.Name, "container", "list", "--query", "[].name", "-o", "tsv")
	if err != nil {
		return err
	}
	got := map[string][]string{"az container list": strings.Fields(listed)}
	dir := string(lab.DirOf(w.Name))
	for _, place := range []string{"groups", "netns/groups", "netns/group-hosts"} {
		files, err := filepath.Glob(filepath.Join(dir, place, "*"))
		if err != nil {
			return err
		}
		names := []string{}
		for _, f := range files {
			names = append(names, filepath.Base(f))
		}
		got[place] = names
	}
	for place, names := range got {
		if !slices.Equal(names, append([]string{}, want...)) {
			return fmt.Errorf("%s has %v, want %v", place, names, want)
		}
	}
	return nil
}
