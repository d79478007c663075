package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/test/world"
)

// mayDo lists all that the manifests' service account may do, as "kubectl auth can-i --list" prints it, beyond what every user may.
var mayDo = []string{
	"daemonsets.apps [] [packetwalk-node] [get list watch]", // the agent's own: has it been deleted?
	"endpointslices.discovery.k8s.io [] [] [list watch]", "events [] [] [create]", "nodes [] [] [list watch]",
	"pods/status [] [] [patch]", "servicecidrs.networking.k8s.io [] [] [list watch]", "services [] [] [list watch]",
}

// TestServiceProxyManifests applies deploy/manifests/service-proxy.yaml to a cluster without a service proxy: its service account may do
// what packetwalk-node needs, with which it serves a cluster IP, and nothing more.
func TestServiceProxyManifests(t *testing.T) {
	t.Parallel()
	w := world.Own(t, "manifests")
	t.Cleanup(func() {
		if _, err := w.Try(3*time.Minute, "down", "--name", w.Name); err != nil {
			t.Error(err)
		}
	})
	file := writeFile(t, "spec:\n  nodePools: [{name: nodepool1, count: 1}]\n  serviceProxy: {implementation: none}\n")
	if _, err := w.Try(3*time.Minute, "up", "--name", w.Name, "-f", file); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(w.Root, "deploy", "manifests", "service-proxy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	// Its image is the user's: here the program runs without one.
	manifests := strings.NewReplacer("https://api.example:443", "https://203.0.113.1:443", "kubernetes.io/os: linux", "runs: nowhere").
		Replace(string(text))
	if _, err := w.TryInput(time.Minute, manifests, "kubectl", "--name", w.Name, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}

	const account = "packetwalk-node"
	var may []string
	list := w.Kubectl(t, "auth", "can-i", "--list", "--no-headers", "--as=system:serviceaccount:kube-system:"+account, "-n", "kube-system")
	for line := range strings.Lines(list) {
		words := strings.Join(strings.Fields(line), " ")
		if !strings.HasPrefix(words, "self") && !strings.HasPrefix(words, "[") && words != "" {
			may = append(may, words)
		}
	}
	slices.Sort(may)
	if !slices.Equal(may, mayDo) {
		t.Errorf("the service account may do %q, want %q", may, mayDo)
	}

	node := w.Kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
	const dir = "/run/manifests" // on the node
	write := func(name, text string) string {
		path := dir + "/" + name
		const take = `mkdir -p "$(dirname "$1")" && cat >"$1"`
		if _, err := w.TryInput(time.Minute, text, "ssh", "--name", w.Name, node, "--", "sh", "-c", take, "sh", path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key := func(configMap, key string) string {
		return w.Kubectl(t, "-n", "kube-system", "get", "configmap", configMap, "-o", `jsonpath={.data.`+strings.ReplaceAll(key, ".", `\.`)+`}`)
	}
	here := strings.NewReplacer("/etc/packetwalk", dir, "/var/run/secrets/kubernetes.io/serviceaccount", dir)
	write("kubeconfig.conf", here.Replace(key(account, "kubeconfig.conf")))
	config := write("config.conf", here.Replace(key(account, "config.conf")))
	write("ca.crt", key("kube-root-ca.crt", "ca.crt"))
	write("token", w.Kubectl(t, "-n", "kube-system", "create", "token", account))

	address := w.Kubectl(t, "get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")
	answers := func() error {
		_, err := w.Try(20*time.Second, "ssh", "--name", w.Name, node, "--", "curl", "-sSk", "-m", "2", "https://"+address+"/livez")
		return err
	}
	if answers() == nil {
		t.Fatal("a cluster IP answers without a service proxy")
	}
	const logFile = dir + "/log"
	const run = `"$1" --config="$2" --hostname-override="$3" --strict-config >"$4" 2>&1 & trap "kill $!; wait $!" EXIT; read -r end`
	_, _, end := w.Talk(t, node, run, "/opt/packetwalk/packetwalk-node", config, node, logFile)
	defer func() {
		end()
		log := w.SSH(t, node, "cat", logFile)
		if strings.Contains(log, "forbidden") {
			t.Error("it may not do what it needs")
		}
		if t.Failed() {
			t.Logf("%s", log)
		}
	}()
	eventually.Succeeds(t, time.Minute, answers)
	for path, want := range map[string]string{"/healthz": `"healthy":true`, "/readyz": `"ready": true`} {
		eventually.Succeeds(t, time.Minute, func() error {
			out, err := w.Try(20*time.Second, "ssh", "--name", w.Name, node, "--", "curl", "-sS", "-m", "2", "http://127.0.0.1:10256"+path)
			if err == nil && !strings.Contains(out, want) {
				err = fmt.Errorf("%s is %s", path, out)
			}
			return err
		})
	}
}
