package realnode

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/test/world"
)

// Pods that attack the machine: as they come; without a seccomp profile; with the capabilities of a privileged one, in a user namespace as
// all of these; and without a user namespace.
const (
	plain      = "plain"
	unconfined = "unconfined"
	mapped     = "mapped"
	unmapped   = "unmapped"
)

// attacker is a pod's manifest, without its name, fields of its spec, and those of its container's security context.
const attacker = `
---
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeSelector: {agentpool: real}
%s
  containers:
  - {name: c, image: ubuntu, command: [sleep, "3600"], securityContext: {%s}}
`

const (
	powerful    = "capabilities: {add: [SYS_ADMIN, NET_ADMIN]}"
	noProfile   = "seccompProfile: {type: Unconfined}"
	noNamespace = "  hostUsers: true"
)

var (
	attackers = fmt.Sprintf(attacker, plain, "", "") + fmt.Sprintf(attacker, unconfined, "", noProfile) +
		fmt.Sprintf(attacker, mapped, "", powerful)
	unmappedAttacker = fmt.Sprintf(attacker, unmapped, noNamespace, powerful+", "+noProfile)
)

// attacks are tried in each pod. Those that are named succeed, which shows that it is the user namespace, or seccomp's profile, that
// prevents them in the others. Where none does, the guard is the node's.
var attacks = []struct {
	name, script string
	succeed      []string
}{
	{"mount devices", "mkdir -p /d && mount -t devtmpfs d /d", []string{unmapped}},
	{"root of the machine", "test $(awk '{print $2}' /proc/self/uid_map) = 0", []string{unmapped}},
	{"see links of other namespaces", "/attack list-links", []string{unmapped}},
	{"delete links of other namespaces", "/attack delete-link", []string{unmapped}},
	{"make a user namespace", "unshare --user true", []string{unconfined, mapped, unmapped}},
	{"keys", "/attack add-key $KEY", []string{unconfined, unmapped}},
	{"leave the virtual machine", "/attack vsock", nil},
	{"io_uring", "/attack io-uring", nil},
	{"program for crashes", "mkdir -p /p && mount -t proc p /p && v=$(cat /p/sys/kernel/core_pattern) && echo \"$v\" >/p/sys/kernel/core_pattern", nil},
	{"control groups' program", `mkdir -p /g; n=0; for c in cpu memory pids rdma freezer none,name=attack; do
		mount -t cgroup -o $c g /g 2>/dev/null || continue
		find /g -name release_agent | grep -q . && n=1; umount /g; done; test $n = 1`, nil},
}

// users tries what a pod could do to the machine and its lab.
func users(t *testing.T, w *world.World) {
	program := buildAttack(t)
	kubectl := func(input string, args ...string) (string, error) {
		return w.TryInput(time.Minute, input, append([]string{"kubectl", "--name", w.Name}, args...)...)
	}
	all := attackers + unmappedAttacker
	_, err := kubectl(unmappedAttacker, "apply", "--dry-run=server", "--warnings-as-errors", "-f", "-")
	if err == nil || strings.Count(err.Error(), "container c is privileged or has SYS_ADMIN") != 1 {
		t.Errorf("without a warning, or with several: %v", err)
	}
	if _, err := kubectl(attackers, "apply", "--dry-run=server", "--warnings-as-errors", "-f", "-"); err != nil {
		t.Errorf("with a warning: %v", err)
	}
	if _, err := kubectl(all, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	pods := []string{plain, unconfined, mapped, unmapped}
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/plain", "pod/unconfined", "pod/mapped", "pod/unmapped", "--timeout=60s")
	for _, pod := range pods {
		if _, err := kubectl(program, "exec", "-i", pod, "--", "sh", "-c", "cat >/attack && chmod +x /attack"); err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprintf("packetwalk-%s-%d", pod, os.Getpid())
		for _, a := range attacks {
			out, err := kubectl("", "exec", pod, "--", "env", "KEY="+key, "sh", "-c", a.script)
			if (err == nil) != slices.Contains(a.succeed, pod) {
				t.Errorf("%s: %s: %s %v", pod, a.name, out, err)
			}
		}
		if found := dropKey(t, key); found != (pod == unmapped) {
			t.Errorf("%s: a key of it is one of the machine's: %v", pod, found)
		}
	}
	for _, pod := range []string{mapped, unmapped} {
		for _, script := range []string{ // what a pod with these capabilities is for
			"mkdir -p /t && mount -t tmpfs t /t", "mkdir -p /p && mount -t proc p /p", "ip link add v0 type veth peer name v1", "iptables -A INPUT -p tcp --dport 9 -j DROP",
			"ping -c 1 -W 5 127.0.0.1",
		} {
			if out, err := kubectl("", "exec", pod, "--", "sh", "-c", script); err != nil {
				t.Errorf("%s cannot: %s: %s %v", pod, script, out, err)
			}
		}
	}
}

// buildAttack returns the program attack.
func buildAttack(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "attack")
	build := program.Command{Path: "go", Args: []string{"build", "-o", path, "./attack"}, Env: append(os.Environ(), "CGO_ENABLED=0"), Limit: time.Minute}
	if _, err := build.Output(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// dropKey removes a key of the machine's root, and reports whether there was one.
func dropKey(t *testing.T, description string) bool {
	t.Helper()
	key, err := unix.KeyctlSearch(unix.KEY_SPEC_USER_KEYRING, "user", description, 0)
	if err != nil {
		return false
	}
	if _, err := unix.KeyctlInt(unix.KEYCTL_UNLINK, key, unix.KEY_SPEC_USER_KEYRING, 0, 0); err != nil {
		t.Error(err)
	}
	return true
}
