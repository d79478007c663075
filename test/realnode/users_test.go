package realnode

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/test/world"
)

// powerful are a pod that asks for the capabilities of a privileged one, which gets a user namespace, and one that refuses it.
const powerful = `
apiVersion: v1
kind: Pod
metadata: {name: mapped}
spec:
  nodeSelector: {agentpool: real}
  containers:
  - {name: c, image: ubuntu, command: [sleep, "3600"], securityContext: {capabilities: {add: [SYS_ADMIN, NET_ADMIN]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: unmapped}
spec:
  nodeSelector: {agentpool: real}
  hostUsers: true
  containers:
  - {name: c, image: ubuntu, command: [sleep, "3600"], securityContext: {capabilities: {add: [SYS_ADMIN, NET_ADMIN]}}}
`

// users tries what a pod with SYS_ADMIN and NET_ADMIN could do to the machine and its lab: from a user namespace it must fail. Each attack
// succeeds in a pod without one, which shows that it is one.
func users(t *testing.T, w *world.World) {
	reach := filepath.Join(t.TempDir(), "reach")
	build := program.Command{Path: "go", Args: []string{"build", "-o", reach, "./reach"}, Env: append(os.Environ(), "CGO_ENABLED=0"), Limit: time.Minute}
	if _, err := build.Output(t.Context()); err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(reach)
	if err != nil {
		t.Fatal(err)
	}
	kubectl := func(input string, args ...string) (string, error) {
		return w.TryInput(time.Minute, input, append([]string{"kubectl", "--name", w.Name}, args...)...)
	}
	_, err = kubectl(powerful, "apply", "--dry-run=server", "--warnings-as-errors", "-f", "-")
	if err == nil || strings.Count(err.Error(), "container c is privileged or has SYS_ADMIN") != 1 {
		t.Errorf("without a warning, or with several: %v", err)
	}
	if _, err := kubectl(powerful, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/mapped", "pod/unmapped", "--timeout=60s")
	attacks := map[string]string{
		"mount devices":             "mkdir -p /d && mount -t devtmpfs d /d",
		"links of other namespaces": "! /reach",
		"root of the machine":       "test $(awk '{print $2}' /proc/self/uid_map) = 0",
	}
	for _, pod := range []string{"mapped", "unmapped"} {
		sh := func(script string) (string, error) { return kubectl("", "exec", pod, "--", "sh", "-c", script) }
		if _, err := kubectl(string(binary), "exec", "-i", pod, "--", "sh", "-c", "cat >/reach && chmod +x /reach"); err != nil {
			t.Fatal(err)
		}
		for name, script := range attacks {
			out, err := sh(script)
			if (err == nil) != (pod == "unmapped") {
				t.Errorf("%s: %s: %s %v", pod, name, out, err)
			}
		}
		for _, script := range []string{ // what a pod with these capabilities is for
			"mkdir -p /t && mount -t tmpfs t /t", "ip link add v0 type veth peer name v1", "iptables -A INPUT -p tcp --dport 9 -j DROP",
			"ping -c 1 -W 5 127.0.0.1",
		} {
			if out, err := sh(script); err != nil {
				t.Errorf("%s cannot: %s: %s %v", pod, script, out, err)
			}
		}
	}
}
