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
	pods := func() string {
		t.Helper()
		return w.Kubectl(t, "get", "pods", "-l", "app=web", "-o", `jsonpath={range .items[*]}{.metadata.uid} {.status.podIP}{"\n"}{end}`)
	}
	// endpoints waits until the rules of the client's node have the endpoints of the pods that are there: pods come and go before their endpoints do.
	endpoints := func() {
		t.Helper()
		var want []string
		for pod := range strings.Lines(pods()) {
			want = append(want, strings.Fields(pod)[1])
		}
		slices.Sort(want)
		eventually.Succeeds(t, 20*time.Second, func() error {
			var walk struct {
				Outcomes []struct {
					End struct{ Packet struct{ DstIP string } }
				}
			}
			out, err := w.Try(20*time.Second, "walk", "--name", w.Name, "--from", "pod/client", "--to", "svc/web:80", "-o", "json")
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
		endpoints()
		ip := w.Kubectl(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
		script := fmt.Sprintf("for i in $(seq %d); do curl -s -m 5 http://%s/ask || echo lost; done", times, ip)
		out := w.Kubectl(t, "exec", "client", "--", "sh", "-c", script)
		if n := strings.Count(out, `"path_accessed": "/ask"`); n != times {
			t.Errorf("%d of %d requests were answered:\n%s", n, times, out)
		}
	}
	w.Kubectl(t, "apply", "-f", objects)
	ready()
	ask(10)
	if out := w.Kubectl(t, "get", "events", "--field-selector", "reason=Simulated"); !strings.Contains(out, "Without effect: commands.") {
		t.Errorf("no event says what has no effect:\n%s", out)
	}
	if out := w.Kubectl(t, "get", "pods", "-n", "kube-system", "-o", "wide"); strings.Contains(out, "aks-many-") {
		t.Errorf("pods of AKS's own are on simulated nodes:\n%s", out)
	}
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
		eventually.Succeeds(t, 20*time.Second, func() error {
			if now := status(t, w).Nodes[i+1]; now.Machine.Pid == 0 || now.Machine.Pid == s.Machine.Pid {
				return fmt.Errorf("its process is %+v", now.Machine)
			}
			return nil
		})
	}
	for pod := range strings.Lines(before) {
		eventually.Succeeds(t, 20*time.Second, func() error {
			_, err := w.Try(5*time.Second, "kubectl", "--name", w.Name, "exec", "client", "--", "curl", "-s", "-m", "2",
				"http://"+strings.Fields(pod)[1]+":8080/")
			return err
		})
	}
	ask(10)
	if after := pods(); after != before {
		t.Errorf("the pods were\n%sand after their nodes' processes were killed they are\n%s", before, after)
	}

	w.Kubectl(t, "delete", "pod", "web-0", "--timeout=30s")
	ready()
	if after := pods(); strings.Count(after, "\n") != 4 || after == before {
		t.Errorf("after web-0 was deleted:\n%s", after)
	}
	w.Az(t, "aks", "nodepool", "scale", "-n", "many", "-c", "1")
	eventually.Succeeds(t, 60*time.Second, func() error {
		out := w.Kubectl(t, "get", "pods", "-l", "app=web", "-o", "wide")
		if strings.Contains(out, "aks-many-25984526-1") || strings.Count(out, "1/1") != 4 {
			return errors.New(out)
		}
		return nil
	})
	ask(4)
	well(t, w)
}
