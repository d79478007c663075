package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/test/world"
)

// TestSimulatedNodes: pods of simulated nodes have addresses, are ready, answer by a Service, and walks agree with the kernel; kubectl says
// that they run no program; their node's process is killed, and they go on and are taken over; they go with a pod's deletion, a node's, and
// the lab's.
func TestSimulatedNodes(t *testing.T) {
	t.Parallel()
	w := world.Own(t, fmt.Sprintf("lab-simulated-%d", os.Getpid()))
	t.Cleanup(func() {
		f := footprintOf(t, w)
		w.Run(t, "down", "--name", w.Name)
		f.expectGone(t, w)
	})
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	const cluster = `apiVersion: packetwalk.dev/v1alpha1
kind: Cluster
spec:
  nodePools:
  - {name: system}
  - {name: many, mode: User, runtime: simulated, count: 2}
`
	objects := filepath.Join(t.TempDir(), "objects.yaml")
	const manifest = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  replicas: 4
  podManagementPolicy: Parallel
  serviceName: web
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {type: simulated}
      containers:
      - {name: web, image: registry.invalid/nothing:1, args: [x], ports: [{containerPort: 8080}, {containerPort: 53, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  nodeSelector: {agentpool: system}
  containers: [{name: curl, image: curlimages/curl, command: [sleep, "3600"]}]
`
	if err := errors.Join(os.WriteFile(file, []byte(cluster), 0o600), os.WriteFile(objects, []byte(manifest), 0o600)); err != nil {
		t.Fatal(err)
	}
	w.Run(t, "up", "--name", w.Name, "-f", file)
	ready := func() {
		t.Helper()
		w.Kubectl(t, "rollout", "status", "statefulset/web", "--timeout=60s")
		w.Kubectl(t, "wait", "--for=condition=Ready", "pod/client", "--timeout=60s")
	}
	// pods waits for the four pods, all of them with addresses, and returns a line for each.
	pods := func() (all string) {
		t.Helper()
		eventually.Succeeds(t, time.Minute, func() error {
			all = w.Kubectl(t, "get", "pods", "-l", "app=web", "-o", `jsonpath={range .items[*]}{.metadata.uid} {.status.podIP}{"\n"}{end}`)
			if lines := strings.Split(all, "\n"); len(lines) != 5 || slices.ContainsFunc(lines, func(l string) bool { return strings.HasSuffix(l, " ") }) {
				return fmt.Errorf("the pods are\n%s", all)
			}
			return nil
		})
		return all
	}
	// endpoints waits until the rules of a pod's node have the endpoints of the pods that are there: pods come and go before their endpoints do.
	endpoints := func(from string) {
		t.Helper()
		var want []string
		for pod := range strings.Lines(pods()) {
			want = append(want, strings.Fields(pod)[1])
		}
		slices.Sort(want)
		eventually.Succeeds(t, time.Minute, func() error {
			var walk struct {
				Outcomes []struct {
					End struct{ Packet struct{ DstIP string } }
				}
			}
			out, err := w.Try(20*time.Second, "walk", "--name", w.Name, "--from", from, "--to", "svc/web:80", "-o", "json")
			if err = errors.Join(err, json.Unmarshal([]byte(out), &walk)); err != nil {
				return err
			}
			var have []string
			for _, o := range walk.Outcomes {
				have = append(have, o.End.Packet.DstIP)
			}
			if slices.Sort(have); !slices.Equal(have, want) {
				return fmt.Errorf("the node's endpoints are %q, the pods' addresses are %q", have, want)
			}
			return nil
		})
	}
	ask := func(times int) {
		t.Helper()
		endpoints("pod/client")
		ip := w.Kubectl(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
		script := fmt.Sprintf("for i in $(seq %d); do curl -s -m 20 http://%s/ask || echo lost; done", times, ip)
		out := w.Kubectl(t, "exec", "client", "--", "sh", "-c", script)
		if n := strings.Count(out, `"path_accessed": "/ask"`); n != times {
			t.Errorf("%d of %d requests were answered:\n%s", n, times, out)
		}
	}
	eventually.Succeeds(t, time.Minute, func() error { // a node that is tainted still would get none of the pods
		if taints := w.Kubectl(t, "get", "nodes", "-o", "jsonpath={.items[*].spec.taints}"); strings.Contains(taints, "not-ready") {
			return fmt.Errorf("the nodes have taints: %s", taints)
		}
		return nil
	})
	w.Kubectl(t, "apply", "-f", objects)
	ready()
	ask(10)
	eventually.Succeeds(t, time.Minute, func() error {
		if out := w.Kubectl(t, "get", "events", "--field-selector", "reason=Simulated"); !strings.Contains(out, "Without effect: commands.") {
			return fmt.Errorf("no event says what has no effect:\n%s", out)
		}
		return nil
	})
	if out := w.Kubectl(t, "get", "pods", "-n", "kube-system", "-o", "wide"); strings.Contains(out, "aks-many-") {
		t.Errorf("pods of AKS's own are on simulated nodes:\n%s", out)
	}
	endpoints("pod/web-0")
	walk := w.Run(t, "walk", "--name", w.Name, "--live", "--from", "pod/web-0", "--to", "svc/web:80")
	if !strings.Contains(walk, "steps agree") {
		t.Errorf("the walk does not agree:\n%s", walk)
	}
	for _, command := range [][]string{{"exec", "web-0", "--", "true"}, {"attach", "web-0"}, {"logs", "web-0"}, {"port-forward", "web-0", ":8080"}} {
		t.Run(command[0], func(t *testing.T) {
			_, err := w.Try(20*time.Second, append([]string{"kubectl", "--name", w.Name}, command...)...)
			if err == nil || !strings.Contains(err.Error(), "pod is simulated and runs no program") {
				t.Errorf("kubectl %s: %v", command[0], err)
			}
		})
	}

	before := pods()
	for i := range 2 {
		s := status(t, w).Nodes[i+1]
		if s.Machine == nil || s.Machine.Pid == 0 || s.Pods != 2 {
			t.Fatalf("status of a simulated node: %+v", s)
		}
		if err := syscall.Kill(s.Machine.Pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually.Succeeds(t, time.Minute, func() error {
			if now := status(t, w).Nodes[i+1]; now.Machine.Pid == 0 || now.Machine.Pid == s.Machine.Pid {
				return fmt.Errorf("its process is %+v", now.Machine)
			}
			return nil
		})
	}
	for pod := range strings.Lines(before) {
		eventually.Succeeds(t, time.Minute, func() error {
			_, err := w.Try(5*time.Second, "kubectl", "--name", w.Name, "exec", "client", "--", "curl", "-s", "-m", "2",
				"http://"+strings.Fields(pod)[1]+":8080/")
			return err
		})
	}
	ask(10)
	if after := pods(); after != before {
		t.Errorf("the pods were\n%sand after their nodes' processes were killed they are\n%s", before, after)
	}

	uid := func() string {
		return w.Kubectl(t, "get", "pod", "web-0", "-o", "jsonpath={.metadata.uid}", "--ignore-not-found")
	}
	deleted := uid()
	w.Kubectl(t, "delete", "pod", "web-0", "--timeout=30s")
	eventually.Succeeds(t, time.Minute, func() error {
		if again := uid(); again == "" || again == deleted {
			return fmt.Errorf("web-0 is %q, and %q was deleted", again, deleted)
		}
		return nil
	})
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/web-0", "--timeout=60s")
	ready()
	if after := pods(); after == before {
		t.Errorf("after web-0 was deleted:\n%s", after)
	}
	w.Az(t, "aks", "nodepool", "scale", "-n", "many", "-c", "1")
	eventually.Succeeds(t, 3*time.Minute, func() error {
		out := w.Kubectl(t, "get", "pods", "-l", "app=web", "-o", "wide")
		if strings.Contains(out, "aks-many-25984526-1") || strings.Count(out, "1/1") != 4 {
			return errors.New(out)
		}
		return nil
	})
	ask(4)
	well(t, w)
}
