package realnode

import (
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

	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/test/world"
)

const (
	config = `
apiVersion: packetwalk.dev/v1alpha1
kind: Cluster
spec:
  nodePools:
  - {name: real}
  - {name: other}
`
	image    = "registry.k8s.io/e2e-test-images/agnhost:2.53"
	manifest = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  nodeSelector: {agentpool: real}
  containers:
  - name: web
    image: ` + image + `
    args: [netexec, --http-port=80]
    ports: [{containerPort: 80, hostPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: agent}
spec:
  nodeSelector: {agentpool: real}
  hostPID: true
  containers:
  - name: agent
    image: ` + image + `
    args: [pause]
    securityContext: {privileged: true}
    volumeMounts:
    - {name: host, mountPath: /host}
    - {name: usr, mountPath: /usr}
    - {name: bin, mountPath: /bin}
    - {name: lib, mountPath: /lib}
    - {name: lib64, mountPath: /lib64}
  volumes:
  - {name: host, hostPath: {path: /}}
  - {name: usr, hostPath: {path: /usr}}
  - {name: bin, hostPath: {path: /bin}}
  - {name: lib, hostPath: {path: /lib}}
  - {name: lib64, hostPath: {path: /lib64}}
---
apiVersion: v1
kind: Pod
metadata: {name: curl}
spec:
  nodeSelector: {agentpool: other}
  containers: [{name: curl, image: curlimages/curl, command: [sleep, "3600"]}]
`
)

// TestNode runs a pod on a node with upstream's kubelet and containerd, reaches it every way there is, kills the lab process, what the node
// keeps running, and the node, and takes all of it away.
func TestNode(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	w := start(t, "real", config)
	node := nodes(t, w, "real")[0]
	if _, err := w.TryInput(time.Minute, manifest, "kubectl", "--name", w.Name, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/web", "pod/agent", "pod/curl", "--timeout=60s")
	t.Run("identity", func(t *testing.T) { identity(t, w, node) })
	t.Run("ways to the pod", func(t *testing.T) { ways(t, w, node) })
	t.Run("the node's own root", func(t *testing.T) { ownRoot(t, w, node) })
	t.Run("a privileged pod", func(t *testing.T) { privileged(t, w, node) })
	t.Run("users of pods", func(t *testing.T) { users(t, w) })
	t.Run("host path", func(t *testing.T) { hostPath(t, w, node) })
	t.Run("volumes", func(t *testing.T) { volumes(t, w) })
	t.Run("service proxies", func(t *testing.T) { proxies(t, w) })
	t.Run("AKS's own pods", func(t *testing.T) { system(t, w, node) })
	t.Run("figures", func(t *testing.T) { figures(t, w, node) })
	t.Run("walks", func(t *testing.T) { walks(t, w) })
	t.Run("images", func(t *testing.T) { pulled(t, w, node) })
	t.Run("bomb", func(t *testing.T) { bomb(t, w, node) })
	t.Run("a runtime that hangs", func(t *testing.T) { hangs(t, w, node) })
	t.Run("kills", func(t *testing.T) { kills(t, w, node) })
	t.Run("scale", func(t *testing.T) { scale(t, w) })
}

// start brings up a lab with a cluster.yaml, and takes it away again at the end.
func start(t *testing.T, name, config string) *world.World {
	t.Helper()
	w := world.New(t, fmt.Sprintf("%s-%d", name, os.Getpid()))
	t.Cleanup(func() { down(t, w) })
	up(t, w, config)
	return w
}

// up makes or changes a lab to what a cluster.yaml says.
func up(t *testing.T, w *world.World, config string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Try(3*time.Minute, "up", "--name", w.Name, "-f", file); err != nil {
		t.Fatal(err)
	}
}

// nodes returns the names of a pool's nodes.
func nodes(t *testing.T, w *world.World, pool string) []string {
	t.Helper()
	return strings.Fields(w.Kubectl(t, "get", "nodes", "-l", "agentpool="+pool, "-o", "jsonpath={.items[*].metadata.name}"))
}

// identity: the kubelet is the node's own and no other's, and the node is what AKS makes it.
func identity(t *testing.T, w *world.World, node string) {
	about := w.Kubectl(t, "get", "node", node, "-o",
		`jsonpath={.status.nodeInfo.containerRuntimeVersion} {.status.nodeInfo.kubeletVersion} {.metadata.labels.kubernetes\.io/role} {.spec.providerID}`)
	if !strings.HasPrefix(about, "containerd://2.") || !strings.Contains(about, " v1.35.8 agent azure:///subscriptions/") {
		t.Errorf("the node says %q", about)
	}
	other := w.Kubectl(t, "get", "nodes", "-l", "agentpool=other", "-o", "jsonpath={.items[0].metadata.name}")
	as := "--as=system:node:" + node
	for _, test := range []struct {
		what []string
		can  bool
	}{
		{[]string{"label", "node", node, "example.com/a=b"}, true},
		{[]string{"label", "node", other, "example.com/a=b"}, false},
		{[]string{"label", "node", node, "node-role.kubernetes.io/other="}, false},
		{[]string{"get", "secrets", "-A"}, false},
	} {
		_, err := w.Try(time.Minute, slices.Concat([]string{"kubectl", "--name", w.Name, as, "--as-group=system:nodes"}, test.what)...)
		if (err == nil) != test.can {
			t.Errorf("%v as the node: %v, want it to be allowed: %v", test.what, err, test.can)
		}
	}
}

// ways: by the pod's address, the service, the load balancer and the host port; and by the kubelet, for exec and logs.
func ways(t *testing.T, w *world.World, node string) {
	pod := w.Kubectl(t, "get", "pod", "web", "-o", "jsonpath={.status.podIP}")
	address := w.Kubectl(t, "get", "node", node, "-o", "jsonpath={.status.addresses[0].address}")
	service := w.Kubectl(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	curl := func(url string) []string { return []string{"curl", "-sS", "-m", "5", url + "/hostname"} }
	asked := map[string]func() (string, error){}
	for name, url := range map[string]string{"pod": pod, "cluster IP": service} {
		asked[name] = func() (string, error) {
			return w.Try(time.Minute, slices.Concat([]string{"kubectl", "--name", w.Name, "exec", "curl", "--"}, curl("http://"+url))...)
		}
	}
	asked["host port"] = func() (string, error) {
		return w.Try(time.Minute, slices.Concat([]string{"ssh", "--name", w.Name, "vm", "--"}, curl("http://"+address+":8080"))...)
	}
	asked["load balancer"] = func() (string, error) {
		return w.Try(time.Minute, slices.Concat([]string{"ssh", "--name", w.Name, "client", "--"}, curl("http://"+frontEnd(t, w)))...)
	}
	for name, ask := range asked {
		eventually.Succeeds(t, time.Minute, func() error {
			out, err := ask()
			if err == nil && strings.TrimSpace(out) != "web" {
				err = fmt.Errorf("the answer is %q", out)
			}
			if err != nil {
				return fmt.Errorf("by the %s: %w", name, err)
			}
			return nil
		})
	}
	if out := w.Kubectl(t, "exec", "web", "--", "/agnhost", "connect", pod+":80", "--timeout=5s"); strings.TrimSpace(out) != "" {
		t.Errorf("exec: %q", out)
	}
	w.Kubectl(t, "logs", "web")
}

// ownRoot: neither the node nor a privileged pod on it sees the machine's files or processes, and no pod reaches its disks.
func ownRoot(t *testing.T, w *world.World, node string) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{
		"test ! -e " + secret, "test -z \"$(ls -A /home)\"", "test \"$(echo $(ls -A /root))\" = '.bashrc .profile'", // base-files'
		"test -e /etc/kubernetes/kubelet.conf",
		"test \"$(hostname)\" = " + node,
		"test \"$(ps -o comm= 1)\" = packetwalk-init", "test \"$(ls /var/lib/packetwalk 2>/dev/null)\" = ''", "test ! -e /dev/vda",
		"test -z \"$(ls /usr/local/sbin 2>/dev/null)\"",
	} {
		if _, err := w.Try(time.Minute, "ssh", "--name", w.Name, node, "--", "sh", "-c", script); err != nil {
			t.Errorf("on the node: %v", err)
		}
	}
	limits := w.Run(t, "ssh", "--name", w.Name, node, "--", "grep", "CapEff", "/proc/1/status")
	const module = 1 << 16 // CAP_SYS_MODULE
	var mask uint64
	if _, err := fmt.Sscanf(limits, "CapEff: %x", &mask); err != nil || mask&module != 0 {
		t.Errorf("the node's first process has capabilities %s, %v", limits, err)
	}
}

// system: AKS's own pods run on the node: the ip-masq-agent, and one of the DNS's.
func system(t *testing.T, w *world.World, node string) {
	w.Kubectl(t, "-n", "kube-system", "patch", "deployment", "coredns", "-p",
		`{"spec": {"template": {"spec": {"nodeSelector": {"agentpool": "real"}}}}}`)
	w.Kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=60s")
	pods := w.Kubectl(t, "-n", "kube-system", "get", "pods", "--field-selector", "spec.nodeName="+node, "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.status.phase} {.status.containerStatuses[0].ready}{"\n"}{end}`)
	for _, name := range []string{"azure-ip-masq-agent-", "coredns-"} {
		if !slices.ContainsFunc(strings.Split(pods, "\n"), func(line string) bool {
			return strings.HasPrefix(line, name) && strings.HasSuffix(line, " Running true")
		}) {
			t.Errorf("no %s runs on the node:\n%s", name, pods)
		}
	}
}

// figures: kubectl top has those of the node and of its pods, from metrics-server.
func figures(t *testing.T, w *world.World, node string) {
	eventually.Succeeds(t, 2*time.Minute, func() error {
		out, err := w.Try(time.Minute, "kubectl", "--name", w.Name, "top", "nodes", node, "--no-headers")
		if err != nil {
			return err
		}
		if f := strings.Fields(out); len(f) != 5 || f[0] != node || !strings.HasSuffix(f[1], "m") || !strings.HasSuffix(f[3], "Mi") {
			return fmt.Errorf("the node's figures: %q", out)
		}
		out, err = w.Try(time.Minute, "kubectl", "--name", w.Name, "top", "pods", "web", "--no-headers")
		if f := strings.Fields(out); err == nil && (len(f) != 3 || f[0] != "web" || f[2] == "0Mi") {
			err = fmt.Errorf("the pod's figures: %q", out)
		}
		return err
	})
}

// walks: a walk knows the pod, by its namespace on the node, and the kernel agrees.
func walks(t *testing.T, w *world.World) {
	for _, ends := range [][2]string{{"internet/client", "svc/web"}, {"pod/curl", "pod/web:80"}, {"pod/web", "pod/agent:80"}} {
		out := w.Run(t, "walk", "--name", w.Name, "--live", "--from", ends[0], "--to", ends[1])
		if !strings.Contains(out, " steps agree") || !strings.Contains(out, "pod default/web") {
			t.Errorf("from %s to %s:\n%s", ends[0], ends[1], out)
		}
	}
	if out := w.Run(t, "ssh", "--name", w.Name, "pod/web", "--", "cat", "/etc/resolv.conf"); !strings.Contains(out, "nameserver 10.0.0.10") {
		t.Errorf("the pod's resolv.conf: %s", out)
	}
}

// kills: pods go on without the lab process, without kubelet and without containerd; a node that was killed comes up with its pods.
func kills(t *testing.T, w *world.World, node string) {
	started := func() string { return containerOf(t, w) }
	before := started()
	var status struct {
		Pid   int
		Nodes []struct {
			Name    string
			Pods    int
			Machine *struct{ Pid int }
		}
	}
	machine := func() (pid, pods int) {
		statusInto(t, w, &status)
		for _, n := range status.Nodes {
			if n.Name == node && n.Machine != nil {
				return n.Machine.Pid, n.Pods
			}
		}
		t.Fatalf("the status has no machine of %s", node)
		return 0, 0
	}
	pid, pods := machine()
	if pods < 2 {
		t.Errorf("the node has %d pods, want 2 at least", pods)
	}
	public := frontEnd(t, w)
	kill(t, status.Pid)
	w.SSH(t, "client", "curl", "-sS", "-m", "20", "http://"+public+"/hostname")
	w.Run(t, "up", "--name", w.Name)
	if again, _ := machine(); again != pid {
		t.Errorf("the node's first process was %d and is %d after the lab process was killed", pid, again)
	}
	w.SSH(t, node, "sh", "-c", "kill -9 $(pidof kubelet containerd)")
	w.SSH(t, "client", "curl", "-sS", "-m", "20", "http://"+public+"/hostname")
	eventually.Succeeds(t, time.Minute, func() error {
		_, err := w.Try(10*time.Second, "kubectl", "--name", w.Name, "exec", "web", "--", "/agnhost", "connect", "127.0.0.1:80", "--timeout=5s")
		return err
	})
	if after := started(); after != before {
		t.Errorf("the container was %s and is %s", before, after)
	}
	// As if the lab process had been killed before it wrote down the machine's first process.
	machine()
	kill(t, status.Pid)
	if err := os.Remove(filepath.Join("/run/packetwalk", w.Name, "nodes", node, "machine.pid")); err != nil {
		t.Fatal(err)
	}
	w.Run(t, "up", "--name", w.Name)
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the first process without a pid file: %v", err)
	}
	another(t, w, before)
	before = started()
	pid, _ = machine()
	kill(t, pid)
	another(t, w, before)
}

// another waits until the pod web has another container than before, and answers: the API may have it later than the load balancer.
func another(t *testing.T, w *world.World, before string) {
	t.Helper()
	eventually.Succeeds(t, 2*time.Minute, func() error {
		if now := containerOf(t, w); now == "" || now == before {
			return fmt.Errorf("the container was %s and is %q after the node was killed", before, now)
		}
		return nil
	})
	answers(t, w)
}

// containerOf returns the ID of the pod web's container.
func containerOf(t *testing.T, w *world.World) string {
	t.Helper()
	return w.Kubectl(t, "get", "pod", "web", "-o", "jsonpath={.status.containerStatuses[0].containerID}")
}

// frontEnd returns the public address of the service web.
func frontEnd(t *testing.T, w *world.World) string {
	t.Helper()
	return w.Kubectl(t, "get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
}

// answers waits until the pod web answers by the load balancer.
func answers(t *testing.T, w *world.World) {
	t.Helper()
	public := frontEnd(t, w)
	eventually.Succeeds(t, time.Minute, func() error {
		_, err := w.Try(10*time.Second, "ssh", "--name", w.Name, "client", "--", "curl", "-sSf", "-m", "2", "http://"+public+"/hostname")
		return err
	})
}

// hangs: a containerd that does nothing any more is started again by the node, and containers go on.
func hangs(t *testing.T, w *world.World, node string) {
	oldest := []string{"pgrep", "-o", "-x", "containerd"} // not a child that is about to run another program
	was, had := strings.TrimSpace(w.SSH(t, node, oldest...)), containerOf(t, w)
	w.SSH(t, node, "kill", "-STOP", was)
	answers(t, w)
	eventually.Succeeds(t, 2*time.Minute, func() error {
		out, err := w.Try(10*time.Second, append([]string{"ssh", "--name", w.Name, node, "--"}, oldest...)...)
		if err != nil || strings.TrimSpace(out) == was {
			return fmt.Errorf("containerd is %s still, %w", out, err)
		}
		_, err = w.Try(10*time.Second, "kubectl", "--name", w.Name, "exec", "web", "--", "/agnhost", "connect", "127.0.0.1:80", "--timeout=5s")
		return err
	})
	if has := containerOf(t, w); has != had {
		t.Errorf("the container was %s and is %s", had, has)
	}
}

// scale: a node that leaves takes all that it had with it, and one that comes is as good as the first.
func scale(t *testing.T, w *world.World) {
	for _, count := range []string{"2", "1"} {
		_, err := w.Try(3*time.Minute, "az", "--name", w.Name, "aks", "nodepool", "scale", "-g", "akstest", "--cluster-name",
			"aksPacketWalkAzure",
			"-n", "real", "--node-count", count)
		if err != nil {
			t.Fatal(err)
		}
		if groups := left(w.Name, "real"); len(groups) != map[string]int{"1": 1, "2": 2}[count]*places(t) {
			t.Errorf("with %s nodes there are %q", count, groups)
		}
	}
}

// places counts the directories of a node: one of files, and a control group in each hierarchy that is mounted.
func places(t *testing.T) int {
	all, err := cgroup.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	n := 1
	for _, h := range all {
		if strings.HasPrefix(h.Point, "/sys/fs/cgroup/") || h.Point == "/sys/fs/cgroup" { // others are not mounted where this runs
			n++
		}
	}
	return n
}

// left returns the directories that nodes whose names have a part leave on the machine.
func left(lab, part string) (all []string) {
	for _, pattern := range []string{"/var/lib/packetwalk/" + lab + "/nodes/*" + part + "*",
		"/sys/fs/cgroup/packetwalk/" + lab + "/*" + part + "*",
		"/sys/fs/cgroup/*/packetwalk/" + lab + "/*" + part + "*"} {
		found, _ := filepath.Glob(pattern) // the patterns are well formed
		all = append(all, found...)
	}
	return all
}

// down takes the lab away and finds nothing of it on the machine.
func down(t *testing.T, w *world.World) {
	if _, err := w.Try(3*time.Minute, "down", "--name", w.Name); err != nil {
		t.Fatal(err)
	}
	if found := left(w.Name, ""); len(found) > 0 {
		t.Errorf("down left %q", found)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), w.Name) {
		t.Errorf("down left mounts: %v", err)
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range processes {
		eventually.Succeeds(t, time.Minute, func() error { // the kernel ends what has been killed
			text, _ := os.ReadFile(file) // it may be gone
			if !strings.Contains(string(text), "/packetwalk/"+w.Name+"/") {
				return nil
			}
			status, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "status"))
			return fmt.Errorf("down left a process: %s%s", status, text)
		})
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if pid == 0 {
		t.Fatal("there is no process to kill")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
