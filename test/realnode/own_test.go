package realnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/internal/pods/realnode"
	"packetwalk.dev/test/world"
)

const ownConfig = `
apiVersion: packetwalk.dev/v1alpha1
kind: Cluster
spec:
  network: {plugin: none, podCIDR: 10.244.0.0/16, routes: true}
  serviceProxy: {implementation: kube-proxy}
  nodePools:
  - {name: real, count: 2}
`

// ownPlugin is a CNI plugin as a user may write one (CNI specification 1.0.0): a veth pair for each pod, with the next address of the
// node's range and a route to it.
const ownPlugin = `#!/bin/sh
set -eu
exec 3>&1 >&2
config=$(cat)
case $CNI_COMMAND in
VERSION)
	echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}' >&3 ;;
ADD)
	prefix=$(echo "$config" | sed -n 's/.*"prefix": *"\([0-9.]*\)".*/\1/p')
	number=$(flock /run/own.lock sh -c 'n=$(($(cat /run/own.last 2>/dev/null || echo 1) + 1)); echo $n > /run/own.last; echo $n')
	nsenter --net="$CNI_NETNS" ip link add "$CNI_IFNAME" type veth peer name "own$number" netns 1
	ip link set "own$number" up
	ip route add "$prefix.$number/32" dev "own$number"
	echo 1 > "/proc/sys/net/ipv4/conf/own$number/proxy_arp"
	echo 1 > /proc/sys/net/ipv4/ip_forward
	nsenter --net="$CNI_NETNS" sh -euc "
		ip address add $prefix.$number/32 dev $CNI_IFNAME
		ip link set $CNI_IFNAME up
		ip link set lo up
		ip route add 169.254.1.1 dev $CNI_IFNAME
		ip route add default via 169.254.1.1"
	echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "'"$CNI_IFNAME"'", "sandbox": "'"$CNI_NETNS"'"}],
		"ips": [{"address": "'"$prefix.$number"'/32", "interface": 0}]}' >&3 ;;
DEL)
	[ ! -e "${CNI_NETNS:-}" ] || nsenter --net="$CNI_NETNS" ip link delete "$CNI_IFNAME" || true ;;
esac
`

const ownManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web}}}
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      containers:
      - {name: web, image: "` + image + `", args: [netexec, --http-port=80]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
`

// TestOwnPlugin: without a network plugin nodes come up, and are not Ready until the user has installed one; then pods reach each other
// across nodes, by their own addresses and by services. A node that is lost loses its pods to another, and is taken back.
func TestOwnPlugin(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	w := start(t, "own", ownConfig)
	all := nodes(t, w, "real")
	if ready := readiness(t, w); ready != "False False" {
		t.Fatalf("without a CNI plugin the nodes are Ready: %s", ready)
	}
	if problems := statusProblems(t, w); !strings.Contains(problems, "waits for a CNI plugin of yours") {
		t.Errorf("the status says %q", problems)
	}
	for _, node := range all {
		install(t, w, node)
	}
	w.Kubectl(t, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s")
	eventually.Succeeds(t, time.Minute, func() error { // of not being Ready, which end pods that tolerate them for a second
		taints := w.Kubectl(t, "get", "nodes", "-o", "jsonpath={.items[*].spec.taints}")
		if taints != "" {
			return fmt.Errorf("the nodes have taints: %s", taints)
		}
		return nil
	})
	if _, err := w.TryInput(time.Minute, ownManifest, "kubectl", "--name", w.Name, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	w.Kubectl(t, "rollout", "status", "deployment/web", "--timeout=60s")
	t.Run("ways", func(t *testing.T) { ownWays(t, w) })
	t.Run("a lost node", func(t *testing.T) { lost(t, w, all) })
}

// readiness returns the Ready conditions of the nodes.
func readiness(t *testing.T, w *world.World) string {
	t.Helper()
	return w.Kubectl(t, "get", "nodes", "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
}

// install installs the plugin on a node, for its range of pods.
func install(t *testing.T, w *world.World, node string) {
	t.Helper()
	pods := w.Kubectl(t, "get", "node", node, "-o", "jsonpath={.spec.podCIDR}")
	prefix, found := strings.CutSuffix(pods, ".0/24")
	if !found {
		t.Fatalf("node %s has the range %q", node, pods)
	}
	for file, text := range map[string]string{
		"/opt/cni/bin/own":               ownPlugin,
		"/etc/cni/net.d/10-own.conflist": `{"cniVersion": "1.0.0", "name": "own", "plugins": [{"type": "own", "prefix": "` + prefix + `"}]}`,
	} {
		if _, err := w.TryInput(time.Minute, text, "ssh", "--name", w.Name, node, "--", "sh", "-c",
			"cat > "+file+".part && chmod 755 "+file+".part && mv "+file+".part "+file); err != nil {
			t.Fatal(err)
		}
	}
}

// ownWays: from each pod to each, on whichever node it is, and to the service; walks say the same as the kernel.
func ownWays(t *testing.T, w *world.World) {
	pods := strings.Fields(w.Kubectl(t, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"))
	addresses := strings.Fields(w.Kubectl(t, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.podIP}"))
	on := strings.Fields(w.Kubectl(t, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.nodeName}"))
	service := w.Kubectl(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	if len(pods) != 2 || on[0] == on[1] {
		t.Fatalf("the pods are %q on %q", pods, on)
	}
	for i, pod := range pods {
		for _, target := range []string{addresses[1-i], service} {
			eventually.Succeeds(t, time.Minute, func() error {
				_, err := w.Try(10*time.Second, "kubectl", "--name", w.Name, "exec", pod, "--", "/agnhost", "connect", target+":80", "--timeout=5s")
				return err
			})
		}
	}
	for _, to := range []string{"pod/" + pods[1] + ":80", "svc/web"} {
		out := w.Run(t, "walk", "--name", w.Name, "--live", "--from", "pod/"+pods[0], "--to", to)
		if !strings.Contains(out, " steps agree") || !strings.Contains(out, "pod default/web-") {
			t.Errorf("from %s to %s:\n%s", pods[0], to, out)
		}
	}
}

// lost stops all processes of a node, as when its machine hangs: its pods are evicted and come up elsewhere, as on AKS, and the status says
// so; when the machine goes on, so does the node.
func lost(t *testing.T, w *world.World, all []string) {
	group := "packetwalk/" + w.Name + "/" + all[0]
	signal := func(s syscall.Signal) error {
		pids, err := realnode.Processes(group)
		for _, pid := range pids {
			if e := syscall.Kill(pid, s); !errors.Is(e, syscall.ESRCH) {
				err = errors.Join(err, e)
			}
		}
		return err
	}
	t.Cleanup(func() {
		if err := signal(syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	})
	if err := signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually.Succeeds(t, 3*time.Minute, func() error {
		on, err := w.Try(10*time.Second, "kubectl", "--name", w.Name, "get", "pods", "-l", "app=web", "-o",
			`jsonpath={range .items[?(@.status.phase=="Running")]}{.metadata.deletionTimestamp} {.spec.nodeName}{"\n"}{end}`)
		elsewhere := 0
		for line := range strings.Lines(on) {
			if line == " "+all[1]+"\n" {
				elsewhere++
			}
		}
		if err == nil && elsewhere != 2 {
			err = fmt.Errorf("the pods are on:\n%s", on)
		}
		return err
	})
	if problems := statusProblems(t, w); !strings.Contains(problems, all[0]+": not Ready: Kubelet stopped posting node status") {
		t.Errorf("the status says %q", problems)
	}
	if err := signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	w.Kubectl(t, "wait", "--for=condition=Ready", "node/"+all[0], "--timeout=60s")
}

// statusProblems returns the problems in the lab's status.
func statusProblems(t *testing.T, w *world.World) string {
	t.Helper()
	var status struct{ Problems []string }
	statusInto(t, w, &status)
	return strings.Join(status.Problems, "\n")
}

// statusInto reads the lab's status, which is an error where it has problems.
func statusInto(t *testing.T, w *world.World, into any) {
	t.Helper()
	out, err := w.Try(time.Minute, "status", "--name", w.Name, "-o", "json")
	if e := json.Unmarshal([]byte(out), into); e != nil {
		t.Fatal(errors.Join(err, e))
	}
}
