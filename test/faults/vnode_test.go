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

	"packetwalk.dev/internal/testing/eventually"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/supervise"
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

// groupRuns are pods for the virtual node that end, fail, are restarted and have volumes.
const groupRuns = `
apiVersion: v1
kind: Pod
metadata: {name: done}
spec:
  restartPolicy: OnFailure
  containers: [{name: c, image: busybox, command: ["true"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: failed}
spec:
  restartPolicy: Never
  containers: [{name: c, image: busybox, command: [sh, -c, echo once; exit 4]}]
---
apiVersion: v1
kind: Pod
metadata: {name: nosuch}
spec:
  restartPolicy: Never
  containers: [{name: c, image: busybox, command: [/no/such/program]}]
---
apiVersion: v1
kind: Pod
metadata: {name: again}
spec:
  restartPolicy: OnFailure
  containers: [{name: c, image: busybox, command: [sh, -c, exit 3]}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {a: "$(HOME) one"}
---
apiVersion: v1
kind: Pod
metadata: {name: probed}
spec:
  containers:
  - name: c
    image: gcr.io/kuar-demo/kuard-amd64
    readinessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 1, timeoutSeconds: 20, failureThreshold: 1}
    livenessProbe: {exec: {command: [sh, -c, "! test -e /tmp/sick"]}, periodSeconds: 1, timeoutSeconds: 20, failureThreshold: 1}
    volumeMounts:
    - {name: data, mountPath: /conf/more/data}
    - {name: conf, mountPath: /conf}
  volumes:
  - {name: conf, configMap: {name: conf}}
  - {name: data, emptyDir: {}}
`

// TestContainerGroups: container groups run, end, are restarted and probed as they say, on machines of their own. One whose machine dies is
// there again, and nothing is left of those that go.
func TestContainerGroups(t *testing.T) {
	t.Parallel()
	w := freshOf(t, "groups", "virtual-node")
	if _, err := w.TryInput(time.Minute, strings.ReplaceAll(groupRuns, "\nspec:\n", `
spec:
  nodeSelector: {type: virtual-kubelet}
  tolerations: [{key: virtual-kubelet.io/provider, operator: Exists}]
`), "kubectl", "--name", w.Name, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	const state = "jsonpath={.status.phase} {.status.containerStatuses[0].state.terminated.exitCode} {.status.containerStatuses[0].restartCount}"
	for pod, want := range map[string]string{"done": "Succeeded 0 0", "failed": "Failed 4 0", "nosuch": "Failed 128 0"} {
		is(t, w, pod, state, want)
	}
	if log := w.Kubectl(t, "logs", "failed"); log != "once\n" {
		t.Errorf("the log is %q", log)
	}
	const restarts = "jsonpath={.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}"
	is(t, w, "again", "jsonpath={.status.containerStatuses[0].lastState.terminated.exitCode}", "3")
	if n := w.Kubectl(t, "get", "pod", "again", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"); n == "0" {
		t.Error("a container ended and was started again, and the pod has no restarts")
	}

	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/probed", "--timeout=60s")
	in := func(script string) string { return w.Kubectl(t, "exec", "probed", "--", "sh", "-c", script) }
	if out := in("cat /conf/a; echo kept > /conf/more/data/x; cat /conf/more/data/x; (echo no > /conf/a) 2>/dev/null || echo refused"); out !=
		"$(HOME) onekept\nrefused\n" {
		t.Errorf("the volumes are %q", out)
	}
	// A command in the group's network asks the name server that its containers ask.
	if there, here := in("cat /etc/resolv.conf"), w.SSH(t, "container-group/default-probed", "cat", "/etc/resolv.conf"); here != there {
		t.Errorf("ssh has the name servers %q, containers have %q", here, there)
	}
	in(`curl -sS -X PUT -d '{"failNext": -1}' http://127.0.0.1:8080/ready/api`)
	is(t, w, "probed", restarts, "0 false")
	in("touch /tmp/sick")
	is(t, w, "probed", restarts, "1 true")

	// Its machine dies: the pod's network namespace is another one afterwards, with the same address.
	before := w.Kubectl(t, "get", "pod", "probed", "-o", "jsonpath={.status.podIP}")
	file := filepath.Join(lab.DirOf(w.Name).Groups(), "default-probed", "machine.pid")
	pid := supervise.Recorded(file)
	kill(t, pid)
	eventually.Succeeds(t, time.Minute, func() error {
		if now := supervise.Recorded(file); now == 0 || now == pid {
			return fmt.Errorf("the machine is process %d", now)
		}
		_, err := w.Try(10*time.Second, "ssh", "--name", w.Name, "vm/testvm", "--", "curl", "-sS", "--max-time", "2", "-o", "/dev/null",
			"http://"+before+":8080")
		return err
	})
	w.Kubectl(t, "delete", "pods", "--all", "--grace-period=1")
	eventually.Succeeds(t, time.Minute, func() error { return onlyGroups(w) })
}

// is waits until a pod's status is as it should be.
func is(t *testing.T, w *world.World, pod, path, want string) {
	t.Helper()
	eventually.Succeeds(t, time.Minute, func() error {
		if got := w.Kubectl(t, "get", "pod", pod, "-o", path); got != want {
			return fmt.Errorf("pod %s is %q, want %q", pod, got, want)
		}
		return nil
	})
}

// TestVirtualNode kills the connector and the lab process, while pods are deleted and made: no container group is lost or left behind. In
// the end nothing of them is left on the machine.
func TestVirtualNode(t *testing.T) {
	t.Parallel()
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
	eventually.Succeeds(t, 60*time.Second, func() error {
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
	if out, err := w.Try(time.Minute, "ssh", "--name", w.Name, "vm/testvm", "--", "curl", "-sS", "--max-time", "20", "-o", "/dev/null",
		"http://"+ip+":8080"); err != nil {
		t.Errorf("without the lab process: %s %v", out, err)
	}
	w.Run(t, "up", "--name", w.Name)
	w.Kubectl(t, "delete", "pod", "goes", "--grace-period=1")
	eventually.Succeeds(t, time.Minute, func() error { return onlyGroups(w, "default-stays") })
	if now := started(t, w, "stays"); now != running {
		t.Errorf("the container that was to stay began at %s, and runs since %s", running, now)
	}
	w.Kubectl(t, "delete", "pod", "stays", "--grace-period=1")
	eventually.Succeeds(t, time.Minute, func() error { return onlyGroups(w) })
	w.Kubectl(t, "delete", "pod", "odd")
}

// started returns when a pod's container began.
func started(t *testing.T, w *world.World, pod string) string {
	t.Helper()
	return w.Kubectl(t, "get", "pod", pod, "-o",
		"jsonpath={.status.containerStatuses[0].state.running.startedAt} {.status.containerStatuses[0].restartCount}")
}

// refused: what container groups do not have is said on the pods, with the reason.
func refused(t *testing.T, w *world.World) {
	t.Helper()
	var daemon string
	eventually.Succeeds(t, time.Minute, func() error {
		if daemon = w.Kubectl(t, "get", "pods", "-l", "app=everywhere", "-o", "jsonpath={.items[*].metadata.name}"); daemon == "" {
			return errors.New("the DaemonSet has no pod yet")
		}
		return nil
	})
	for pod, words := range map[string][]string{
		"odd": {"hostNetwork: a container group has an address of its own", "init container first:",
			"volume host: a container group has no volumes of type hostPath"},
		daemon: {"DaemonSet everywhere: a DaemonSet has a pod on each machine"},
	} {
		eventually.Succeeds(t, time.Minute, func() error {
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

// onlyGroups returns an error unless these container groups, and no others, are in Azure's view and on the machine.
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
