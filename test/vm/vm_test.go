package vm

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/test/world"
)

var (
	worldNames = flag.String("worlds", "", "the examples to bring up, separated by commas; empty for all")
)

// Emulation slows every step down ten times and more. No limit here is a requirement on speed.
const (
	upLimit      = 45 * time.Minute
	commandLimit = 15 * time.Minute
)

// examples are the worlds, each with the manifests that hold at the same time.
var examples = []struct {
	name      string
	namespace string // of what the manifests describe; empty for default
	manifests []string
	images    []string // programs that its images are made of
	bridge    bool     // nodes have a bridge, whose rules are ebtables'
}{
	{name: "azure-cni", manifests: []string{"whereami.yaml", "nginx-elb.yaml"}, bridge: true},
	{name: "calico", manifests: []string{"ubuntu.yaml", "othervnet.yaml"}},
	{name: "egress", manifests: []string{"whereami.yaml", "service.yaml"}},
	{name: "iptables", manifests: []string{"nginx.yaml", "ip-masq-agent-config.yaml"}, bridge: true},
	{name: "outbound", manifests: []string{"whereami.yaml", "second.yaml", "ubuntu.yaml"}, bridge: true},
	{name: "overlay", manifests: []string{"app.yaml", "pods.yaml"}},
	{name: "policy", namespace: "shop", manifests: []string{"shop.yaml", "web-from-nodes.yaml"}},
	{name: "recipes", manifests: []string{"web.yaml"}},
	{name: "shop", manifests: []string{"shop.yaml"}, images: []string{"front", "stock", "counter"}, bridge: true},
	{name: "todays-nodes", manifests: []string{"client.yaml"}},
	{name: "virtual-node", manifests: []string{"kuard-vnode.yaml"}},
}

func TestMain(m *testing.M) { os.Exit(world.Main(m)) }

// TestExamples fails when an example is missing in the list. It runs everywhere.
func TestExamples(t *testing.T) {
	folders, err := filepath.Glob("../../examples/*/cluster.yaml")
	if err != nil || len(folders) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for i, file := range folders {
		folders[i] = filepath.Base(filepath.Dir(file))
	}
	var listed []string
	for _, e := range examples {
		listed = append(listed, e.name)
	}
	if !slices.Equal(folders, listed) {
		t.Errorf("examples are %q, listed are %q", folders, listed)
	}
}

// TestWorlds brings each world up, uses it, and takes it down.
func TestWorlds(t *testing.T) {
	needVM(t)
	before := machineState(t)
	for _, e := range examples {
		if *worldNames != "" && !slices.Contains(strings.Split(*worldNames, ","), e.name) {
			continue
		}
		t.Run(e.name, func(t *testing.T) {
			l := &lab{World: world.New(t, "vm-"+e.name), namespace: cmp.Or(e.namespace, corev1.NamespaceDefault)}
			defer l.printLogs(t)
			if e.bridge && withoutBridges() {
				l.refuse(t, e.name)
				expectSame(t, before, machineState(t))
				return
			}
			l.makeImages(t, e.name, e.images)
			l.run(t, upLimit, l.upCommand(e.name)...)
			l.deploy(t, e.name, e.manifests)
			l.request(t)
			l.walk(t)
			l.limits(t)
			l.down(t)
			expectSame(t, before, machineState(t))
		})
	}
}

// withoutBridges reports whether the machine lacks the modules for rules on bridges, as WSL2's kernel does.
func withoutBridges() bool { return os.Getenv("PACKETWALK_VM") == "wsl2" }

// refuse checks that a lab that needs such rules does not start, says what is missing, and leaves nothing.
func (l *lab) refuse(t *testing.T, example string) {
	out, err := l.Try(upLimit, l.upCommand(example)...)
	if err == nil {
		t.Fatalf("up succeeded without ebtables\n%s", out)
	}
	t.Log(err)
	if !regexp.MustCompile(`(?m)^.*ebtables.*ebt_arpreply`).MatchString(err.Error()) {
		t.Errorf("up does not name the missing modules of ebtables: %v", err)
	}
}

// needVM skips a test outside of the virtual machine.
func needVM(t *testing.T) {
	t.Helper()
	if os.Getenv("PACKETWALK_VM") == "" {
		t.Skip("make test-vm runs it in a virtual machine")
	}
}

// A lab is a world in the virtual machine.
type lab struct {
	*world.World
	namespace string // of the pods and services
	pods      []corev1.Pod
	services  []corev1.Service
}

// run runs packetwalk. The command must succeed.
func (l *lab) run(t *testing.T, limit time.Duration, args ...string) string {
	t.Helper()
	began := time.Now()
	out, err := l.Try(limit, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.1f s: packetwalk %s", time.Since(began).Seconds(), strings.Join(args, " "))
	return out
}

func (l *lab) kubectlCommand(args ...string) []string {
	return append([]string{"kubectl", "--name", l.Name, "--namespace", l.namespace}, args...)
}

// kubectl runs kubectl until it succeeds, and returns its output: in emulation a request may meet a time-out of kubectl's, and a rollout
// its deadline of ten minutes.
func (l *lab) kubectl(t *testing.T, args ...string) (out string) {
	t.Helper()
	eventually.Succeeds(t, 2*commandLimit, func() (err error) {
		if out, err = l.Try(commandLimit, l.kubectlCommand(args...)...); err != nil {
			t.Logf("asked again: %v", err)
		}
		return err
	})
	return out
}

func (l *lab) get(t *testing.T, v any, args ...string) {
	t.Helper()
	if err := json.Unmarshal([]byte(l.kubectl(t, append([]string{"get", "-o", "json"}, args...)...)), v); err != nil {
		t.Fatal(err)
	}
}

// makeImages makes an example's images of programs that were built outside.
func (l *lab) makeImages(t *testing.T, example string, programs []string) {
	for _, program := range programs {
		tag := example + "/" + program + ":v1"
		l.run(t, commandLimit, "image", "build", filepath.Join(l.Root, "bin", "vm", example, program), "-t", tag)
		t.Cleanup(func() { l.run(t, commandLimit, "image", "rm", tag) })
	}
}

// upCommand returns the command that brings an example's cluster up.
func (l *lab) upCommand(example string) []string {
	return []string{"up", "--name", l.Name, "--timeout", upLimit.String(), "-f", l.Example(example, "cluster.yaml")}
}

// deploy applies manifests and waits until what they describe is ready.
func (l *lab) deploy(t *testing.T, example string, manifests []string) {
	for _, m := range manifests {
		l.kubectl(t, "apply", "-f", l.Example(example, m))
	}
	for name := range strings.FieldsSeq(l.kubectl(t, "get", "deployments,statefulsets,daemonsets", "-o", "name")) {
		l.kubectl(t, "rollout", "status", name, "--timeout="+commandLimit.String())
	}
	l.kubectl(t, "wait", "--for=condition=Ready", "pods", "--all", "--timeout="+commandLimit.String())
	var pods corev1.PodList
	l.get(t, &pods, "pods")
	l.pods = pods.Items
	eventually.Succeeds(t, commandLimit, func() error {
		var services corev1.ServiceList
		l.get(t, &services, "services")
		l.services = slices.DeleteFunc(services.Items, func(s corev1.Service) bool { return s.Spec.ClusterIP == corev1.ClusterIPNone })
		for _, s := range l.services {
			if s.Spec.Type == corev1.ServiceTypeLoadBalancer && len(s.Status.LoadBalancer.Ingress) == 0 {
				return fmt.Errorf("service %s has no address", s.Name)
			}
		}
		return nil
	})
}

// node returns the name of a machine, which is no virtual node.
func (l *lab) node(t *testing.T) string {
	t.Helper()
	return strings.Fields(l.kubectl(t, "get", "nodes", "-l", "agentpool", "-o", "jsonpath={.items[*].metadata.name}"))[0]
}

// request sends a request to every service, from a node by its cluster IP and from the internet by the load balancer.
func (l *lab) request(t *testing.T) {
	node := l.node(t)
	for _, s := range l.services {
		if len(s.Spec.Selector) == 0 {
			continue // the API server's
		}
		l.curl(t, node, fmt.Sprintf("http://%s:%d", s.Spec.ClusterIP, s.Spec.Ports[0].Port))
		for _, front := range s.Status.LoadBalancer.Ingress {
			l.curl(t, "client", fmt.Sprintf("http://%s:%d", front.IP, s.Spec.Ports[0].Port))
		}
	}
}

// curl tries a request on a host until it succeeds, because the load balancer's probes need time.
func (l *lab) curl(t *testing.T, host, url string) {
	t.Helper()
	eventually.Succeeds(t, commandLimit, func() error {
		_, err := l.Try(commandLimit, "ssh", "--name", l.Name, host, "--", "curl", "-sSf", "-o", "/dev/null", "--max-time", "30", url)
		return err
	})
	t.Logf("%s: %s answers", host, url)
}

var agreed = regexp.MustCompile(`(?m)^kernel: (\d+) of (\d+) steps agree$`)

// walk walks from a pod, a node and the internet to every service, and from a pod to every host. The kernel agrees with every step.
func (l *lab) walk(t *testing.T) {
	type pair struct{ from, to string }
	var pairs []pair
	node, pod := "node/"+l.node(t), "pod/"+l.namespace+"/"+l.pods[0].Name
	for _, s := range l.services {
		to := "svc/" + l.namespace + "/" + s.Name
		pairs = append(pairs, pair{node, to}, pair{pod, to})
		if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
			pairs = append(pairs, pair{"internet/client", to})
		}
	}
	var status struct {
		Hosts []struct{ Name, Kind, App string }
	}
	eventually.Succeeds(t, commandLimit, func() error { // it fails while something is not well
		out, err := l.Try(commandLimit, "status", "--name", l.Name, "-o", "json")
		return errors.Join(err, json.Unmarshal([]byte(out), &status))
	})
	for _, h := range status.Hosts {
		if (h.Kind == "vm" || h.Kind == "internet") && h.App != "dns" {
			pairs = append(pairs, pair{pod, h.Kind + "/" + h.Name + ":80"})
		}
	}
	if len(pairs) < 3 {
		t.Fatalf("only these pairs to walk: %v", pairs)
	}
	for _, p := range pairs {
		began := time.Now()
		out, err := l.Try(commandLimit, "walk", "--name", l.Name, "--live", "--from", p.from, "--to", p.to)
		m := agreed.FindStringSubmatch(out)
		if err != nil || m == nil || m[1] != m[2] || m[1] == "0" {
			t.Errorf("walk from %s to %s: the kernel does not agree: %v\n%s", p.from, p.to, err, out)
			continue
		}
		t.Logf("%.1f s: walk from %s to %s: %s steps agree", time.Since(began).Seconds(), p.from, p.to, m[1])
	}
}

// limited are a pod that takes more memory than it may have, and one that uses all of the processor that it can get. The processor's limit
// identifies the second's control group.
const limited = `
apiVersion: v1
kind: Pod
metadata: {name: hungry}
spec:
  restartPolicy: Never
  containers:
  - name: hungry
    image: ubuntu
    command: [bash, -c, "head -c 300M /dev/zero | tail -c 300M"]
    resources: {limits: {memory: 64Mi, cpu: "1"}, requests: {cpu: 10m}}
---
apiVersion: v1
kind: Pod
metadata: {name: busy}
spec:
  containers:
  - name: busy
    image: ubuntu
    command: [bash, -c, "while :; do :; done"]
    resources: {limits: {cpu: 130m}, requests: {cpu: 10m}}
`

// limits checks that the kernel enforces limits of memory and processor.
func (l *lab) limits(t *testing.T) {
	if _, err := l.TryInput(commandLimit, limited, l.kubectlCommand("apply", "-f", "-")...); err != nil {
		t.Fatal(err)
	}
	eventually.Succeeds(t, commandLimit, func() error {
		reason := l.kubectl(t, "get", "pod", "hungry", "-o", "jsonpath={.status.containerStatuses[*].state.terminated.reason}")
		if reason != "OOMKilled" {
			return fmt.Errorf("a container that used up its memory ended with %q", reason)
		}
		return nil
	})
	l.kubectl(t, "wait", "--for=condition=Ready", "pod/busy", "--timeout="+commandLimit.String())
	eventually.Succeeds(t, commandLimit, func() error {
		stats, err := filesBelow("/sys/fs/cgroup/packetwalk/"+l.Name, "cpu.max")
		if err != nil {
			return err
		}
		for _, file := range stats {
			if text, _ := os.ReadFile(file); string(text) != "13000 100000\n" {
				continue
			}
			stat, err := os.ReadFile(filepath.Join(filepath.Dir(file), "cpu.stat"))
			if err != nil || !regexp.MustCompile(`(?m)^nr_throttled [1-9]`).Match(stat) {
				return fmt.Errorf("%s: not throttled: %w\n%s", file, err, stat)
			}
			return nil
		}
		return fmt.Errorf("no control group of %d has the limit of 130m", len(stats))
	})
	l.kubectl(t, "delete", "pod", "hungry", "busy", "--now", "--ignore-not-found")
}

// down takes the lab down. Nothing with its name is left.
func (l *lab) down(t *testing.T) {
	l.run(t, commandLimit, "down", "--name", l.Name)
	for _, dir := range []string{"/run/packetwalk/", "/var/lib/packetwalk/", "/sys/fs/cgroup/packetwalk/"} {
		if _, err := os.Stat(dir + l.Name); err == nil {
			t.Errorf("%s%s is left", dir, l.Name)
		}
	}
}

// printLogs prints what helps to find a failure's cause.
func (l *lab) printLogs(t *testing.T) {
	if !t.Failed() {
		return
	}
	for _, command := range []string{
		"tail -v -n 20 /var/lib/packetwalk/" + l.Name + "/disk/.logs/*.log", "journalctl -b --no-pager -n 60", "dmesg | tail -n 30", "free -m", "df -h",
		"ps -e -o cputimes,etimes,stat,args --sort=-cputimes | head -n 40 | cut -c 1-150",
	} {
		out, err := exec.Command("timeout", "60", "sh", "-c", command).CombinedOutput()
		t.Logf("$ %s (%v)\n%s", command, err, out)
	}
	for _, what := range [][]string{{"pods", "-o", "wide"}, {"events"}} {
		out, err := l.Try(time.Minute, l.kubectlCommand(append([]string{"get", "--all-namespaces"}, what...)...)...)
		t.Logf("%s: %v\n%s", what[0], err, out)
	}
	if _, err := l.Try(commandLimit, "down", "--name", l.Name); err != nil {
		t.Log(err)
	}
}
