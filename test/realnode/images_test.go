package realnode

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/test/world"
)

// pulled shows that the node's containerd pulls images of the machine's store, under any registry's name, whatever the pull policy. It also
// pulls by digest, and from another lab process. For a missing image, the pod's events say what to do. No other client on the node gets
// anything.
func pulled(t *testing.T, w *world.World, node string) {
	id := os.Getpid()
	names := map[string]string{ // by imagePullPolicy
		"Always": fmt.Sprintf("mcr.microsoft.com/packetwalk-test/a:%d", id), "IfNotPresent": fmt.Sprintf("registry.example:5000/test/b:%d", id),
	}
	digests := map[string]string{}
	program, err := os.ReadFile(filepath.Join(w.Root, "bin", "packetwalk-app"))
	if err != nil {
		t.Fatal(err)
	}
	agnhost := filepath.Join(t.TempDir(), "agnhost")
	if err := os.WriteFile(agnhost, program, 0o755); err != nil {
		t.Fatal(err)
	}
	for policy, name := range names {
		w.Run(t, "image", "build", agnhost, "-t", name, "--env", "OF="+policy)
		t.Cleanup(func() { w.Run(t, "image", "rm", name) })
		run(t, w, "pull-"+strings.ToLower(policy), name, policy)
	}
	run(t, w, "pull-none", fmt.Sprintf("registry.invalid/packetwalk-none:%d", id), "Always")
	for policy := range names {
		pod := "pull-" + strings.ToLower(policy)
		w.Kubectl(t, "wait", "--for=condition=Ready", "pod/"+pod, "--timeout=60s")
		digests[policy] = w.Kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].imageID}")
	}
	hasEvent(t, w, "pull-none", "packetwalk image load") // the remedy
	hasEvent(t, w, "pull-always", "Successfully pulled")
	builtIn(t, w, agnhost)
	movedTag(t, w, agnhost)
	onlyContainerd(t, w, node)
	var status struct{ Pid int }
	if err := json.Unmarshal([]byte(w.Run(t, "status", "--name", w.Name, "-o", "json")), &status); err != nil {
		t.Fatal(err)
	}
	kill(t, status.Pid)
	w.Run(t, "up", "--name", w.Name)
	run(t, w, "pull-digest", digests["Always"], "Always")
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/pull-digest", "--timeout=60s")
}

// builtIn: an image's name that is a built-in application's means that, without asking a registry, until an image of that name is loaded.
func builtIn(t *testing.T, w *world.World, program string) {
	t.Helper()
	name := fmt.Sprintf("nginx:1.27-packetwalk-%d", os.Getpid())
	imageOf := func(pod, policy string) string {
		run(t, w, pod, name, policy)
		w.Kubectl(t, "wait", "--for=condition=Ready", "pod/"+pod, "--timeout=60s")
		return w.Kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].imageID}")
	}
	first := imageOf("pull-builtin", "IfNotPresent")
	if out := w.Kubectl(t, "exec", "pull-builtin", "--", "sh", "-c", "nginx -v 2>&1"); !strings.Contains(out, "nginx") {
		t.Errorf("the built-in nginx says %q", out)
	}
	w.Run(t, "image", "build", program, "-t", name)
	t.Cleanup(func() { w.Run(t, "image", "rm", name) })
	if after := imageOf("pull-loaded", "Always"); after == first {
		t.Errorf("an image is loaded, and a pod has %s still", after)
	}
}

// movedTag shows that a name that is built again means the new image on nodes that have the old one, with pull policy IfNotPresent and Never.
func movedTag(t *testing.T, w *world.World, program string) {
	t.Helper()
	name := fmt.Sprintf("again:%d", os.Getpid())
	t.Cleanup(func() { w.Run(t, "image", "rm", name) })
	build := func(version string) string {
		return w.Run(t, "image", "build", program, "-t", name, "--env", "OF="+version)
	}
	imageOf := func(pod, policy string) string {
		run(t, w, pod, name, policy)
		w.Kubectl(t, "wait", "--for=condition=Ready", "pod/"+pod, "--timeout=60s")
		return w.Kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].imageID}")
	}
	if out := build("one"); strings.Contains(out, "moved on") {
		t.Errorf("a new name moved:\n%s", out)
	}
	first := imageOf("moved-before", "IfNotPresent")
	if out := build("two"); !strings.Contains(out, "moved on node ") || !strings.Contains(out, " of lab "+w.Name) {
		t.Errorf("the build does not say where the name moved:\n%s", out)
	}
	for _, policy := range []string{"IfNotPresent", "Never"} {
		if got := imageOf("moved-"+strings.ToLower(policy), policy); got == first || !strings.Contains(got, "sha256:") {
			t.Errorf("policy %s: a new pod runs %s, the old one %s", policy, got, first)
		}
	}
	if got := w.Kubectl(t, "get", "pod", "moved-before", "-o", "jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}"); got != "Running 0" {
		t.Errorf("the old pod is %s", got)
	}
}

// hasEvent waits for an event of a pod with a text: a kubelet sends events later than a pod's state.
func hasEvent(t *testing.T, w *world.World, pod, text string) {
	t.Helper()
	eventually.Succeeds(t, time.Minute, func() error {
		out := w.Kubectl(t, "get", "events", "--field-selector", "involvedObject.name="+pod, "-o", `jsonpath={range .items[*]}{.message}{"\n"}{end}`)
		if !strings.Contains(out, text) {
			return fmt.Errorf("no event of pod %s says %q:\n%s", pod, text, out)
		}
		return nil
	})
}

// run makes a pod of an image: agnhost, but for the built-in one.
func run(t *testing.T, w *world.World, name, image, policy string) {
	t.Helper()
	args := ""
	if !strings.Contains(name, "builtin") {
		args = `, "args": ["pause"]`
	}
	pod := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"nodeSelector": {"agentpool": "real"},
		"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": %q, "imagePullPolicy": %q%s}]}}`, name, image, policy, args)
	if _, err := w.TryInput(time.Minute, pod, "kubectl", "--name", w.Name, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// onlyContainerd shows that the registry answers only clients with the node's secret, which only the node's root can read. It answers no
// client elsewhere.
func onlyContainerd(t *testing.T, w *world.World, node string) {
	t.Helper()
	for script, want := range map[string]string{
		"curl -sk -o /dev/null -w '%{http_code}' https://127.0.0.1:911/v2/":                                         "401",
		"curl -s --cacert /etc/kubernetes/ca.crt -o /dev/null -w '%{http_code}' https://127.0.0.1:911/v2/":          "401",
		"curl -s -m 5 -o /dev/null -w '%{http_code}' https://127.0.0.1:911/v2/ || echo ' untrusted'":                "000 untrusted",
		"curl -sk -m 5 -o /dev/null -w '%{http_code}' https://$(hostname -i | cut -d' ' -f1):911/v2/ || echo ' no'": "000 no",
		"stat -c '%a %u' /etc/containerd/certs.d/_default/hosts.toml":                                               "600 0",
	} {
		if out := strings.TrimSpace(w.SSH(t, node, "sh", "-c", script)); out != want {
			t.Errorf("%s: %q, want %q", script, out, want)
		}
	}
	out, err := w.Try(time.Minute, "ssh", "--name", w.Name, "pod/web", "--", "curl", "-sk", "-m", "5", "https://127.0.0.1:911/v2/")
	if err == nil {
		t.Errorf("a pod reaches the registry: %s", out)
	}
}
