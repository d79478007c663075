package realnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/test/world"
)

// chartCluster is a cluster on whose nodes the lab has neither a network for pods nor rules of services.
const chartCluster = `
apiVersion: packetwalk.dev/v1alpha1
kind: Cluster
spec:
  nodePools: [{name: real, count: 2}]
  network: {plugin: none, podCIDR: 10.244.0.0/16, routes: true}
  serviceProxy: {implementation: none}
  images: {pull: never}
`

// kubeProxy is upstream's, as kubeadm runs it, with the node's programs, because its image has none.
const kubeProxy = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: kube-proxy, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-kube-proxy}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:node-proxier}
subjects: [{kind: ServiceAccount, name: kube-proxy, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kube-proxy, namespace: kube-system}
data:
  kubeconfig: |
    apiVersion: v1
    kind: Config
    clusters:
    - {name: default, cluster: {server: "%[1]s", certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt}}
    users:
    - {name: default, user: {tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}}
    contexts:
    - {name: default, context: {cluster: default, user: default}}
    current-context: default
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: kube-proxy}}
  template:
    metadata: {labels: {k8s-app: kube-proxy}}
    spec:
      serviceAccountName: kube-proxy
      hostNetwork: true
      tolerations: [{operator: Exists}]
      containers:
      - name: kube-proxy
        image: %[2]s
        command: [/kube-proxy, --proxy-mode=%[3]s, --master=%[1]s, --kubeconfig=/config/kubeconfig, --cluster-cidr=10.244.0.0/16,
          --conntrack-max-per-core=0, --hostname-override=$(NODE_NAME)]
        env:
        - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        - {name: PATH, value: "/usr/sbin:/usr/bin:/sbin:/bin"}
        securityContext: {privileged: true}
        volumeMounts:
        - {name: config, mountPath: /config}
        - {name: usr, mountPath: /usr}
        - {name: bin, mountPath: /bin}
        - {name: sbin, mountPath: /sbin}
        - {name: lib, mountPath: /lib}
        - {name: lib64, mountPath: /lib64}
        - {name: alternatives, mountPath: /etc/alternatives}
      volumes:
      - {name: config, configMap: {name: kube-proxy}}
      - {name: usr, hostPath: {path: /usr}}
      - {name: bin, hostPath: {path: /bin}}
      - {name: sbin, hostPath: {path: /sbin}}
      - {name: lib, hostPath: {path: /lib}}
      - {name: lib64, hostPath: {path: /lib64}}
      - {name: alternatives, hostPath: {path: /etc/alternatives}} # which iptables
`

// chartAPI is where the nodes of a lab have the API server.
const chartAPI = "https://203.0.113.1:443"

// chartRounds install the chart beside kube-proxy and remove it again, for each backend and each mode of kube-proxy. So each round begins
// where the one before ended.
var chartRounds = []struct {
	mode, backend string
	all           bool // also change, roll back and disturb it
}{
	{"iptables", "nftables", true},
	{"iptables", "iptables", false},
	{"nftables", "iptables", false},
	{"nftables", "nftables", true},
}

// The blocks of commands of docs/node-components.md, in their order.
const (
	blockInstall = iota
	blockTakeOver
	blockDeleteManifests
	blockUpgrade
	blockRollBack
	blockUninstall
	blockChangeBackend
	blockRemoveAll
	blockSELinux
	blocks
)

// TestChart runs all commands of docs/node-components.md, of the chart's notes and of the plain manifests on a cluster with kube-proxy, and
// all that pods and services need from the chart. Under connections, packetwalk-node waits for kube-proxy, takes over, is upgraded, changed
// and rolled back, hands over, and is uninstalled. No connection is lost, and no table of it is left.
func TestChart(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	if os.Getenv("CHART") == "" {
		t.Skip("make test leaves the chart on a cluster to make test-chart, which builds the image and helm")
	}
	w := start(t, "chart", chartCluster)
	c := &chartTest{World: w, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	if err := os.WriteFile(c.kubeconfig, []byte(w.Kubectl(t, "config", "view", "--raw")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes(t, w, "real") {
		w.PodNetwork(t, node)
	}
	c.tag, c.kubeProxy = c.images(t)
	c.writeFiles(t)
	if c.blocks = c.commands(t, "docs/node-components.md", shellBlock); len(c.blocks) != blocks {
		t.Fatalf("the page has %d blocks of commands: %q", len(c.blocks), c.blocks)
	}
	for i, r := range chartRounds {
		c.startKubeProxy(t, r.mode)
		c.writeValues(t, r.backend, "")
		ok := t.Run(fmt.Sprintf("%s beside kube-proxy with %s", r.backend, r.mode), func(t *testing.T) {
			takeOver := c.blocks[blockTakeOver]
			if i == 0 {
				c.first(t)
			} else {
				c.step(t, "install", func() { c.run(t, c.blocks[blockInstall]) })
				takeOver = c.notes(t)
			}
			c.step(t, "take over", func() { c.run(t, takeOver); c.ready(t, r.backend) })
			if r.all {
				c.changes(t, r.mode)
			}
			if r.backend == "iptables" && r.mode == "nftables" {
				c.step(t, "change the backend", func() { c.run(t, c.blocks[blockChangeBackend]); c.ready(t, "nftables") })
			}
			c.step(t, "uninstall", func() { c.run(t, c.blocks[blockUninstall]); c.uninstalled(t, r.mode) })
			c.rollOut(t)
		})
		if !ok {
			return
		}
	}
	c.startKubeProxy(t, "iptables")
	c.writeValues(t, "nftables", "")
	for _, round := range []struct {
		name string
		test func(*testing.T)
	}{
		{"uninstall at once", c.uninstallAtOnce},
		{"orphaned table", c.orphanedTable},
		{"manifests", c.manifests},
		{"remove all", c.removeAll},
	} {
		if !t.Run(round.name, round.test) {
			return
		}
	}
}

// uninstallAtOnce uninstalls the chart without waiting for kube-proxy.
func (c *chartTest) uninstallAtOnce(t *testing.T) {
	c.install(t)
	c.step(t, "uninstall without waiting", func() {
		c.patchKubeProxy(t, "null")
		c.helm(t, "uninstall", "packetwalk", "--wait")
		c.uninstalled(t, "iptables")
	})
	c.rollOut(t)
}

// install installs the chart with nftables, and ends kube-proxy.
func (c *chartTest) install(t *testing.T) {
	t.Helper()
	c.run(t, c.blocks[blockInstall])
	c.run(t, c.blocks[blockTakeOver])
	c.ready(t, "nftables")
}

// first installs the chart and makes the service.
func (c *chartTest) first(t *testing.T) {
	c.run(t, c.blocks[blockInstall])
	c.Kubectl(t, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=50s")
	t.Run("waits for kube-proxy", func(t *testing.T) { c.waits(t) })
	c.inside, c.public = c.service(t)
}

// changes lists what an operator does to the chart with nftables beside kube-proxy in a mode, and what happens to it.
func (c *chartTest) changes(t *testing.T, mode string) {
	c.step(t, "second service proxy", func() { c.secondProxy(t); c.ready(t, "nftables") })
	c.writeValues(t, "nftables", "node: {podAnnotations: {upgrade: 'yes'}}")
	c.step(t, "upgrade", func() { c.run(t, c.blocks[blockUpgrade]); c.ready(t, "nftables") })
	c.writeValues(t, "iptables", "")
	c.step(t, "upgrade to iptables", func() { c.run(t, c.blocks[blockUpgrade]); c.ready(t, "iptables") })
	if mode == "nftables" {
		c.step(t, "change the backend back", func() { c.run(t, c.blocks[blockChangeBackend]); c.ready(t, "nftables") })
		return
	}
	c.step(t, "roll back", func() { c.run(t, c.blocks[blockRollBack]); c.ready(t, "nftables") })
	c.writeValues(t, "nftables", "")
	c.step(t, "SELinux's domain", func() { c.run(t, c.blocks[blockSELinux]); c.ready(t, "nftables") })
	c.hasDomain(t, "spc_t")
	c.step(t, "delete the pods", func() {
		c.Kubectl(t, "-n", "kube-system", "delete", "pods", "-l", "app.kubernetes.io/component=node", "--timeout=50s")
		c.ready(t, "nftables")
	})
}

// step does something under connections, none of which may be lost.
func (c *chartTest) step(t *testing.T, name string, do func()) {
	t.Run(name, func(t *testing.T) {
		streams := []*world.Stream{world.NewStream(t, c.World, "pod/default/ubuntu", c.inside), world.NewStream(t, c.World, "client", c.public)}
		began := time.Now()
		do()
		for _, s := range streams {
			s.Check(t, fmt.Sprintf("%s in %v", name, time.Since(began).Round(100*time.Millisecond)), false)
		}
	})
}

// rollOut replaces the endpoints of the service, which the rules in force must follow.
func (c *chartTest) rollOut(t *testing.T) {
	t.Helper()
	c.Kubectl(t, "rollout", "restart", "deployment/web")
	c.Kubectl(t, "rollout", "status", "deployment/web", "--timeout=50s")
	eventually.Succeeds(t, 30*time.Second, func() error { // kube-proxy writes changes once a second
		_, err := c.Try(50*time.Second, "kubectl", "--name", c.Name, "exec", "ubuntu", "--", "bash", "-c",
			"for i in {1..20}; do curl -sS -m 2 -o /dev/null http://"+c.inside+" || exit 1; done")
		return err
	})
	c.step(t, "after a rollout", func() {})
}

// startKubeProxy starts kube-proxy in a mode on each node. What the other mode left goes.
func (c *chartTest) startKubeProxy(t *testing.T, mode string) {
	t.Helper()
	if _, err := c.TryInput(time.Minute, fmt.Sprintf(kubeProxy, chartAPI, c.kubeProxy, mode), "kubectl", "--name", c.Name, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	c.Kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/kube-proxy", "--timeout=50s")
	for _, node := range nodes(t, c.World, "real") {
		eventually.Succeeds(t, 50*time.Second, func() error { return c.hasKubeProxys(t, node, mode) })
	}
}

// hasKubeProxys returns an error unless a node has the rules of kube-proxy's mode.
func (c *chartTest) hasKubeProxys(t *testing.T, node, mode string) error {
	t.Helper()
	rules := c.SSH(t, node, "nft", "list", "ruleset")
	table, chain := strings.Contains(rules, "table ip kube-proxy "), strings.Contains(rules, "chain KUBE-SERVICES ")
	if table != (mode == "nftables") || chain != (mode == "iptables") {
		return fmt.Errorf("%s with kube-proxy's mode %s: table %v, chain %v in\n%s", node, mode, table, chain, rules)
	}
	return nil
}

// writeValues writes the documented values.yaml, with what pods need on this cluster, and more.
func (c *chartTest) writeValues(t *testing.T, backend, more string) {
	t.Helper()
	text := fmt.Sprintf(chartValues, c.tag, chartAPI, backend) + more + "\n"
	if err := os.WriteFile(filepath.Join(c.dir, "values.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const chartValues = `
image: {tag: %q}
apiServer: %s
serviceProxy: {clusterCIDR: 10.244.0.0/16, backend: %s}
metrics: {port: 10300}
ipMasqAgent: {enabled: true, config: {nonMasqueradeCIDRs: [10.0.0.0/8]}}
`

type chartTest struct {
	*world.World
	kubeconfig string
	dir        string // in which the documented commands run
	tag        string // of packetwalk's image
	kubeProxy  string // kube-proxy's image
	blocks     []string

	inside, public string // addresses of the service
}

// writeFiles makes the directory in which the documented commands run: with the chart, and the programs helm and kubectl.
func (c *chartTest) writeFiles(t *testing.T) {
	t.Helper()
	c.dir = filepath.Dir(c.kubeconfig)
	program := filepath.Join(c.Root, "bin", "packetwalk")
	kubectl := fmt.Sprintf("#!/bin/sh\nexec %s kubectl --name %s \"$@\"\n", program, c.Name)
	packetwalk := fmt.Sprintf("#!/bin/sh\ncommand=$1\nshift\nexec %s $command --name %s \"$@\"\n", program, c.Name)
	err := errors.Join(
		os.WriteFile(filepath.Join(c.dir, "kubectl"), []byte(kubectl), 0o700),       //nolint:gosec // a program
		os.WriteFile(filepath.Join(c.dir, "packetwalk"), []byte(packetwalk), 0o700), //nolint:gosec // a program
		os.Symlink(filepath.Join(c.Root, "bin", "helm"), filepath.Join(c.dir, "helm")),
		os.Symlink(filepath.Join(c.Root, "deploy"), filepath.Join(c.dir, "deploy")))
	if err != nil {
		t.Fatal(err)
	}
}

// run runs a block of commands as it is written.
func (c *chartTest) run(t *testing.T, block string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euxo", "pipefail", "-c", block)
	cmd.Dir = c.dir
	cmd.Env = []string{"KUBECONFIG=" + c.kubeconfig, "HOME=" + c.dir, "PATH=" + c.dir + ":" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// secondProxy has kube-proxy start beside packetwalk-node, as kubeadm upgrade does, and end again.
func (c *chartTest) secondProxy(t *testing.T) {
	t.Helper()
	others := func(want string) func() error {
		return func() error {
			for _, node := range nodes(t, c.World, "real") {
				metrics := c.SSH(t, node, "curl", "-s", "http://127.0.0.1:10300/metrics")
				line := fmt.Sprintf("packetwalk_proxy_other_service_proxies{node=%q} ", node)
				if !regexp.MustCompile(regexp.QuoteMeta(line) + want).MatchString(metrics) {
					return fmt.Errorf("%s: not %s%s", node, line, want)
				}
			}
			return nil
		}
	}
	c.patchKubeProxy(t, "null")
	eventually.Succeeds(t, time.Minute, others("[1-9]"))
	for _, node := range nodes(t, c.World, "real") {
		eventually.Succeeds(t, time.Minute, func() error {
			if tables := c.SSH(t, node, "nft", "list", "tables"); strings.Contains(tables, nftables.TableName) {
				return fmt.Errorf("%s has not handed over: %s", node, tables)
			}
			return nil
		})
	}
	if events := c.Kubectl(t, "get", "events", "-A"); !strings.Contains(events, "OtherServiceProxyRunning") {
		t.Errorf("no event among\n%s", events)
	}
	c.patchKubeProxy(t, `{"kube-proxy":"none"}`)
	eventually.Succeeds(t, time.Minute, others("0"))
}

// patchKubeProxy selects kube-proxy's nodes.
func (c *chartTest) patchKubeProxy(t *testing.T, selector string) {
	t.Helper()
	c.Kubectl(t, "-n", "kube-system", "patch", "daemonset", "kube-proxy", "-p", `{"spec":{"template":{"spec":{"nodeSelector":`+selector+`}}}}`)
}

// images loads packetwalk's image and makes kube-proxy's of the control plane's program, and gives the tag of the one and the name of the
// other.
func (c *chartTest) images(t *testing.T) (tag, proxy string) {
	t.Helper()
	before := c.Run(t, "image", "list")
	out := c.Run(t, "image", "load", filepath.Join(c.Root, "bin", "packetwalk-image.tar"))
	name := regexp.MustCompile(`packetwalk\.dev/packetwalk:(\S+)`).FindStringSubmatch(out)
	if name == nil {
		t.Fatalf("what was loaded? %s", out)
	}
	if !strings.Contains(before, name[0]+" ") { // the store is the machine's
		t.Cleanup(func() { c.Run(t, "image", "rm", name[0]) })
	}
	text, err := os.ReadFile(filepath.Join(c.Root, "bin", "packetwalk-controlplane"))
	program := filepath.Join(t.TempDir(), "kube-proxy")
	if err == nil {
		err = os.WriteFile(program, text, 0o700) //nolint:gosec // a program
	}
	if err != nil {
		t.Fatal(err)
	}
	proxy = fmt.Sprintf("registry.example/kube-proxy:%s", c.Name)
	c.Run(t, "image", "build", program, "-t", proxy)
	t.Cleanup(func() { c.Run(t, "image", "rm", proxy) })
	return name[1], proxy
}

// helm runs upstream's Helm, of which make helm makes a program.
func (c *chartTest) helm(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(c.Root, "bin", "helm"), append(args, "-n", "kube-system")...)
	home := filepath.Dir(c.kubeconfig)
	cmd.Env = []string{"KUBECONFIG=" + c.kubeconfig, "HOME=" + home, "PATH=" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// waits: while kube-proxy runs packetwalk-node is ready, reports that it waits in its log, in an event and at /readyz, and writes nothing.
func (c *chartTest) waits(t *testing.T) {
	eventually.Succeeds(t, 30*time.Second, func() error {
		log, err := c.Try(20*time.Second, "kubectl", "--name", c.Name, "-n", "kube-system", "logs", "daemonset/packetwalk-node")
		if err == nil && !regexp.MustCompile(`waits for kube-proxy \(pid \d+\)`).MatchString(log) {
			err = fmt.Errorf("it says %s", log)
		}
		return err
	})
	var set struct {
		Status struct{ NumberReady, DesiredNumberScheduled int }
	}
	c.Get(t, &set, "-n", "kube-system", "daemonset", "packetwalk-node")
	if set.Status.NumberReady != 2 || set.Status.DesiredNumberScheduled != 2 {
		t.Errorf("%+v", set.Status)
	}
	c.Kubectl(t, "-n", "kube-system", "exec", "daemonset/packetwalk-node", "--", "/usr/bin/packetwalk-node", "check-livez") // alive all the same
	if events := c.Kubectl(t, "get", "events", "-A"); !strings.Contains(events, "WaitingForServiceProxy") {
		t.Errorf("no event among\n%s", events)
	}
	for _, node := range nodes(t, c.World, "real") {
		if tables := c.SSH(t, node, "nft", "list", "tables"); strings.Contains(tables, nftables.TableName) {
			t.Errorf("%s has\n%s", node, tables)
		}
		ready := c.SSH(t, node, "curl", "-s", "http://127.0.0.1:10300/readyz")
		var r struct{ Waiting []string }
		if err := json.Unmarshal([]byte(ready), &r); err != nil || len(r.Waiting) == 0 {
			t.Errorf("%s says %s, %v", node, ready, err)
		}
	}
}

// service has two pods behind a cluster IP and a public address.
func (c *chartTest) service(t *testing.T) (inside, public string) {
	t.Helper()
	c.Kubectl(t, "create", "deployment", "web", "--image=nginx", "--replicas=2")
	c.Kubectl(t, "expose", "deployment", "web", "--port=80", "--type=LoadBalancer")
	c.Kubectl(t, "run", "ubuntu", "--image=ubuntu", "--", "sleep", "36000")
	c.Kubectl(t, "rollout", "status", "deployment/web", "--timeout=50s")
	c.Kubectl(t, "wait", "--for=condition=Ready", "pod/ubuntu", "--timeout=50s")
	eventually.Succeeds(t, time.Minute, func() error {
		if public = c.Kubectl(t, "get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}"); public == "" {
			return fmt.Errorf("no address yet")
		}
		_, err := c.Try(20*time.Second, "ssh", "--name", c.Name, "client", "--", "curl", "-sS", "-m", "2", "-o", "/dev/null", "http://"+public)
		return err
	})
	return c.Kubectl(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"), public
}

// ready waits until each node has the rules of a backend, and no others.
func (c *chartTest) ready(t *testing.T, backend string) {
	t.Helper()
	c.Kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/packetwalk-node", "--timeout=55s")
	again := c.Kubectl(t, "-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=packetwalk",
		"-o", "jsonpath={.items[*].status.containerStatuses[*].restartCount}")
	if strings.Trim(again, "0 \n") != "" {
		t.Errorf("containers were started again: %s", again)
	}
	for _, node := range nodes(t, c.World, "real") {
		eventually.Succeeds(t, 20*time.Second, func() error {
			rules := c.SSH(t, node, "nft", "list", "ruleset")
			table, chain := strings.Contains(rules, "table ip "+nftables.TableName+" "), strings.Contains(rules, "chain KUBE-SERVICES ")
			if !strings.Contains(rules, "chain IP-MASQ-AGENT ") {
				return fmt.Errorf("%s has no rules of the ip-masq-agent:\n%s", node, rules)
			}
			if table != (backend == "nftables") || chain != (backend == "iptables") || strings.Contains(rules, "table ip kube-proxy ") {
				return fmt.Errorf("%s with %s: table %v, chain %v in\n%s", node, backend, table, chain, rules)
			}
			return nil
		})
	}
}

// uninstalled: with the release packetwalk's rules of Services go from each node, and the chain IP-MASQ-AGENT stays.
func (c *chartTest) uninstalled(t *testing.T, mode string) {
	t.Helper()
	for _, node := range nodes(t, c.World, "real") {
		eventually.Succeeds(t, 50*time.Second, func() error {
			rules := c.SSH(t, node, "nft", "list", "ruleset")
			if strings.Contains(rules, nftables.TableName) || !strings.Contains(rules, "chain IP-MASQ-AGENT ") {
				return fmt.Errorf("%s has\n%s", node, rules)
			}
			return c.hasKubeProxys(t, node, mode)
		})
	}
}

// removeAll runs the documented command on each node, after which nothing is left there.
func (c *chartTest) removeAll(t *testing.T) {
	for _, node := range nodes(t, c.World, "real") {
		c.debug(t, c.blocks[blockRemoveAll], node, func() error {
			rules := c.SSH(t, node, "nft", "list", "ruleset")
			if strings.Contains(rules, "chain IP-MASQ-AGENT ") {
				return fmt.Errorf("%s still has\n%s", node, rules)
			}
			return nil
		})
	}
}

// debug runs a documented command in a debugging pod of a node, and waits for what it does.
func (c *chartTest) debug(t *testing.T, block, node string, done func() error) {
	t.Helper()
	out := c.run(t, strings.NewReplacer("node/NODE", "node/"+node, "registry.example/packetwalk:TAG", c.image()).Replace(block))
	pod := regexp.MustCompile(`node-debugger-\S+`).FindString(out)
	if pod == "" {
		t.Fatalf("no pod: %s", out)
	}
	eventually.Succeeds(t, 50*time.Second, func() error {
		err := done()
		if err != nil {
			log, _ := c.Try(20*time.Second, "kubectl", "--name", c.Name, "logs", pod)
			err = fmt.Errorf("%w\nthe command says %s", err, log)
		}
		return err
	})
	c.Kubectl(t, "delete", "pod", pod)
}
