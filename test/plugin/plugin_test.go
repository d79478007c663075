package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"packetwalk.dev/test/world"
)

const config = `
apiVersion: packetwalk.dev/v1alpha1
kind: Cluster
spec:
  nodePools: [{name: pool, count: 2}]
  images: {pull: never}
`

// pods are one on each node, and a service of the second.
const pods = `
apiVersion: v1
kind: Pod
metadata: {name: one}
spec: {nodeName: %[1]s, containers: [{name: web, image: "erjosito/whereami:1.3"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: two, labels: {app: two}}
spec: {nodeName: %[2]s, containers: [{name: web, image: "erjosito/whereami:1.3"}]}
---
apiVersion: v1
kind: Service
metadata: {name: two}
spec: {selector: {app: two}, ports: [{port: 80}]}
`

// outside is a host of the lab's internet.
const outside = "198.51.100.80:80"

func TestMain(m *testing.M) { os.Exit(world.Main(m)) }

// TestPlugin spends one user's day with the plugin, on one lab.
func TestPlugin(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	p := newPlugin(t)
	p.parts(t, []part{
		{"two users", twoUsers},
		{"no rights", noRights},
		{"no API server", noServer},
		{"dry run", dryRun},
		{"interrupted at once", interruptedAtOnce},
		{"killed", killed},
	})
	// What follows goes on in the administrator's namespace: that of a run takes Kubernetes five seconds to delete.
	p.restrict(t)
	p.parts(t, []part{
		{"walks", walks},
		{"workloads", workloads},
		{"policies", policies},
		{"programs at sockets", programs},
		{"capture", captures},
		{"ports", sourcePorts},
		{"dry run with least rights", dryRun},
		{"wrong image", wrongImage},
		{"quota", quota},
		{"interrupted", interrupted},
		{"output cut", cut},
		{"hung node", hungNode},
		{"pod killed", podKilled},
		{"pod of a capture killed", podOfCaptureKilled},
		{"cleanup", nothingToClean},
	})
}

type part struct {
	name string
	test func(*testing.T, *plugin)
}

func (p *plugin) parts(t *testing.T, parts []part) {
	for _, part := range parts {
		t.Run(part.name, func(t *testing.T) {
			began := time.Now()
			part.test(t, p)
			took := time.Since(began)
			p.nothingLeft(t)
			t.Logf("%v, and nothing is left after %v", took.Round(10*time.Millisecond), (time.Since(began) - took).Round(10*time.Millisecond))
		})
	}
}

// plugin is a lab with pods, and what its users have.
type plugin struct {
	*world.World
	client     kubernetes.Interface
	dir        string
	kubeconfig string
	nodes      []string
	as         string   // the user; "" for the administrator
	image      string   // of the pods on nodes
	before     []string // objects of the cluster
}

func newPlugin(t *testing.T) *plugin {
	t.Helper()
	w := world.New(t, fmt.Sprintf("plugin-%d", os.Getpid()))
	p := &plugin{World: w, dir: t.TempDir()}
	file := p.file(t, "cluster.yaml", config)
	t.Cleanup(func() {
		if _, err := w.Try(3*time.Minute, "down", "--name", w.Name); err != nil {
			t.Error(err)
		}
		if left := servers(t, w.Name); len(left) > 0 {
			t.Errorf("still there: processes %v", left)
		}
	})
	if _, err := w.Try(3*time.Minute, "up", "--name", w.Name, "-f", file); err != nil {
		t.Fatal(err)
	}
	p.kubeconfig = p.file(t, "kubeconfig", w.Kubectl(t, "config", "view", "--raw"))
	rest, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	rest.QPS = -1
	if p.client, err = kubernetes.NewForConfig(rest); err != nil {
		t.Fatal(err)
	}
	var nodes corev1.NodeList
	w.Get(t, &nodes, "nodes")
	for i := range nodes.Items {
		p.nodes = append(p.nodes, nodes.Items[i].Name)
	}
	if len(p.nodes) != 2 {
		t.Fatalf("nodes %v", p.nodes)
	}
	w.Kubectl(t, "apply", "-f", p.file(t, "pods.yaml", fmt.Sprintf(pods, p.nodes[0], p.nodes[1])))
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/one", "pod/two", "--timeout=50s")
	p.image = p.PluginImage(t)
	p.before = p.objects(t)
	return p
}

func (p *plugin) file(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(p.dir, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// command returns the plugin, to be started.
func (p *plugin) command(ctx context.Context, args ...string) *exec.Cmd {
	if p.as != "" {
		args = append([]string{"--as", p.as}, args...)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(p.Root, "bin", "kubectl-packetwalk"), args...)
	cmd.Env = []string{"KUBECONFIG=" + p.kubeconfig, "HOME=" + p.dir, "PATH=" + os.Getenv("PATH"), "PACKETWALK_IMAGE=" + p.image}
	return cmd
}

// runOutput is what one run of the plugin gave.
type runOutput struct {
	out, err string
	status   int
}

// limit is how long one run may take.
const limit = 2 * time.Minute

// try runs the plugin.
func (p *plugin) try(args ...string) (runOutput, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := p.command(ctx, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	s := runOutput{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
	var status *exec.ExitError
	if errors.As(err, &status) && ctx.Err() == nil {
		err = nil
	}
	return s, err
}

// run does what try does, and expects a status.
func (p *plugin) run(t *testing.T, status int, args ...string) runOutput {
	t.Helper()
	s, err := p.try(args...)
	if err != nil || s.status != status {
		t.Fatalf("kubectl packetwalk %s: status %d, %v\n%s%s", strings.Join(args, " "), s.status, err, s.out, s.err)
	}
	return s
}

// refused runs what has to end with status 1 and one line that matches.
func (p *plugin) refused(t *testing.T, line string, args ...string) {
	t.Helper()
	oneLine(t, p.run(t, 1, args...), line)
}

// oneLine: all that was said is one line that matches.
func oneLine(t *testing.T, s runOutput, line string) {
	t.Helper()
	t.Logf("%s", s.err)
	if s.out != "" || strings.Count(s.err, "\n") != 1 || !regexp.MustCompile(`^packetwalk: .*`+line).MatchString(s.err) {
		t.Errorf("not one line %q: %q%q", line, s.out, s.err)
	}
}

// objects returns the names of what a run may make on a cluster.
func (p *plugin) objects(t *testing.T) []string {
	t.Helper()
	var names []string
	all := metav1.ListOptions{}
	add := func(kind string, list runtime.Object, err error) {
		if err == nil {
			err = meta.EachListItem(list, func(o runtime.Object) error {
				m, err := meta.Accessor(o)
				if err == nil {
					names = append(names, kind+" "+m.GetNamespace()+"/"+m.GetName())
				}
				return err
			})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, c := t.Context(), p.client
	namespaces, err := c.CoreV1().Namespaces().List(ctx, all)
	add("Namespace", namespaces, err)
	jobs, err := c.BatchV1().Jobs("").List(ctx, all)
	add("Job", jobs, err)
	pods, err := c.CoreV1().Pods("").List(ctx, all)
	add("Pod", pods, err)
	accounts, err := c.CoreV1().ServiceAccounts("").List(ctx, all)
	add("ServiceAccount", accounts, err)
	secrets, err := c.CoreV1().Secrets("").List(ctx, all)
	add("Secret", secrets, err)
	maps, err := c.CoreV1().ConfigMaps("").List(ctx, all)
	add("ConfigMap", maps, err)
	clusterRoles, err := c.RbacV1().ClusterRoles().List(ctx, all)
	add("ClusterRole", clusterRoles, err)
	clusterBindings, err := c.RbacV1().ClusterRoleBindings().List(ctx, all)
	add("ClusterRoleBinding", clusterBindings, err)
	roles, err := c.RbacV1().Roles("").List(ctx, all)
	add("Role", roles, err)
	bindings, err := c.RbacV1().RoleBindings("").List(ctx, all)
	add("RoleBinding", bindings, err)
	slices.Sort(names)
	return names
}

// nothingLeft: the cluster has the objects that it had, and the nodes no server of the plugin's, a moment after a run.
func (p *plugin) nothingLeft(t *testing.T) {
	t.Helper()
	eventually.Succeeds(t, limit, func() error {
		if left := servers(t, p.Name); len(left) > 0 {
			return fmt.Errorf("still there: processes %v", left)
		}
		now := p.objects(t)
		if more, less := without(now, p.before), without(p.before, now); len(more)+len(less) > 0 {
			return fmt.Errorf("more: %q, gone: %q", more, less)
		}
		return nil
	})
}

func without(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(some, s) })
}

// servers returns the processes that answer for the nodes of a lab, by id.
func servers(t *testing.T, lab string) (pids []int) {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range found {
		line, err := os.ReadFile(file)
		group, err2 := os.ReadFile(filepath.Join(filepath.Dir(file), "cgroup"))
		if err != nil || err2 != nil {
			continue // it has ended
		}
		args := strings.Split(string(line), "\x00")
		if slices.Contains(args, "on-node") && slices.Contains(args, "serve") && strings.Contains(string(group), "/packetwalk/"+lab+"/") {
			var pid int
			if _, err := fmt.Sscanf(file, "/proc/%d/", &pid); err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

var agreed = regexp.MustCompile(`(?m)^kernel: (\d+) of (\d+) steps agree$`)

// proved: every step of what a walk --live printed agrees.
func proved(t *testing.T, out string) {
	t.Helper()
	if m := agreed.FindStringSubmatch(out); m == nil || m[1] != m[2] || m[1] == "0" {
		t.Errorf("not proved:\n%s", out)
	}
}

// missingState matches an assumption about a part of a host's state that was not read, such as "sysctls unknown". It does not match
// "the network beyond eth0 is unknown".
var missingState = regexp.MustCompile(`\w\ws unknown\b`)

func walks(t *testing.T, p *plugin) {
	const beyond = "as far as the state was read, "
	for _, w := range []struct{ from, to, sure, answer string }{
		{"pod/one", "pod/two:80", "", `the sender's own address, `},
		{"pod/default/one", outside, beyond, `[0-9.]+:\S+, because nat IP-MASQ-AGENT 2: MASQUERADE `},
		{"node/" + p.nodes[0], "pod/default/two:80", "", `the sender's own address, `},
		{"pod/one", "svc/two", "", `the sender's own address, `},
	} {
		args := []string{"walk", "--from", w.from, "--to", w.to}
		began := time.Now()
		s := p.run(t, 0, args...)
		t.Logf("%v: %v", time.Since(began).Round(10*time.Millisecond), args)
		if !regexp.MustCompile(`(?m)^(1 of 2: )?`+w.sure+`the destination sees `+w.answer).MatchString(s.out) || s.err != "" {
			t.Errorf("%v says\n%s%s", args, s.out, s.err)
		}
		if strings.Contains(s.out+s.err, "forbidden") || missingState.MatchString(s.out) {
			t.Errorf("something was not allowed:\n%s%s", s.err, s.out)
		}
	}
	const name = "ifconfig.co:80"
	if s := p.run(t, 2, "walk", "--from", "pod/one", "--to", name); !strings.Contains(s.err, "add --resolve") {
		t.Errorf("without --resolve: %s%s", s.out, s.err)
	}
	resolved := regexp.MustCompile(`ifconfig\.co:80 stands for 198\.51\.100\.80:80: [0-9.]+ has it for ifconfig\.co, asked from pod/default/one`)
	queried := regexp.MustCompile(`^DNS: pod default/one asks 10\.\S+ \(service kube-system/kube-dns: cluster IP\) for ifconfig\.co: pod kube-system/coredns-\S+ answers`)
	eventually.Succeeds(t, limit, func() error { // DNS comes after the nodes
		s, err := p.try("walk", "--from", "pod/one", "--to", name, "--resolve")
		if err == nil && (s.status != 0 || !resolved.MatchString(s.out) || !queried.MatchString(s.out)) {
			err = fmt.Errorf("status %d\n%s%s", s.status, s.out, s.err)
		}
		return err
	})
	for _, w := range [][2]string{{"pod/one", "svc/two"}, {"svc/two", outside}, {"pod/one", name}} {
		began := time.Now()
		s := p.run(t, 0, "walk", "--live", "--from", w[0], "--to", w[1])
		t.Logf("%v: --live %v", time.Since(began).Round(10*time.Millisecond), w)
		proved(t, s.out)
		if !regexp.MustCompile(`(?m)^packetwalk: opens one TCP connection and closes it again, from pod/default/\w+ to \S+, and traces it on `).MatchString(s.err) {
			t.Errorf("before a packet is sent it says %q", s.err)
		}
		announced := strings.HasPrefix(s.err, "packetwalk: sends one DNS query from pod/default/one to ")
		if w[1] == name && (!queried.MatchString(s.out) || !announced) {
			t.Errorf("of the name's query it says\n%s%s", s.out, s.err)
		}
	}
}

// captures: of one node and of all, for their owner alone, to walk through; what is half of one is refused.
func captures(t *testing.T, p *plugin) {
	walk := func(file, from string) runOutput {
		t.Helper()
		var s runOutput
		cmd := p.Command("walk", "--snapshot", file, "--from", from, "--to", outside)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); cmd.ProcessState == nil {
			t.Fatal(err)
		}
		s.out, s.err, s.status = out.String(), errs.String(), cmd.ProcessState.ExitCode()
		return s
	}
	for name, args := range map[string][]string{"node": {p.nodes[0]}, "all": {"--all-nodes"}} {
		file := filepath.Join(p.dir, name+".pwcap.tar.gz")
		began := time.Now()
		s := p.run(t, 0, append([]string{"capture", "-o", file}, args...)...)
		t.Logf("%v: %s%s", time.Since(began).Round(10*time.Millisecond), s.out, s.err)
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o600 {
			t.Errorf("mode %v", info.Mode())
		}
		if s := walk(file, "pod/one"); s.status != 0 || !strings.Contains(s.out, "by nat IP-MASQ-AGENT 2: MASQUERADE") {
			t.Errorf("a walk in the capture of %s: status %d\n%s%s", name, s.status, s.out, s.err)
		}
		if s := walk(file, "pod/two"); (s.status == 0) != (name == "all") {
			t.Errorf("a walk of another node in the capture of %s: status %d\n%s%s", name, s.status, s.out, s.err)
		}
		if err := os.Truncate(file, info.Size()*2/3); err != nil {
			t.Fatal(err)
		}
		if s := walk(file, "pod/one"); s.status == 0 || s.out != "" || strings.Count(s.err, "\n") != 1 {
			t.Errorf("a walk in half a capture: status %d\n%s%s", s.status, s.out, s.err)
		}
	}
}

// sourcePorts counts the ports of connections whose source a node translates. Each node's pods are connected with the API server.
func sourcePorts(t *testing.T, p *plugin) {
	for _, args := range [][]string{{p.nodes[0]}, {"--all-nodes", "--for", "1s"}} {
		out := p.run(t, 0, append([]string{"ports"}, args...)...).out
		for _, node := range p.nodes {
			if read := node == p.nodes[0] || args[0] == "--all-nodes"; strings.Contains(out, "node/"+node) != read {
				t.Errorf("%v: lines of %s: %t\n%s", args, node, !read, out)
			}
		}
		if !strings.Contains(out, "64512") || strings.Contains(out, "GROWTH") != (len(args) > 1) {
			t.Errorf("%v:\n%s", args, out)
		}
	}
	if s := p.run(t, 2, "ports"); !strings.Contains(s.err, "name the nodes, or --all-nodes") {
		t.Errorf("without a node: %s", s.err)
	}
}

// dryRun prints what would be made.
func dryRun(t *testing.T, p *plugin) {
	for _, args := range [][]string{
		{"walk", "--from", "pod/one", "--to", outside, "--dry-run"},
		{"capture", "--all-nodes", "-o", filepath.Join(p.dir, "none"), "--dry-run"},
		{"ports", "--all-nodes", "--dry-run"},
	} {
		out := p.run(t, 0, args...).out
		for _, kind := range []string{"Namespace", "ServiceAccount", "Job"} {
			if !strings.Contains(out, "\nkind: "+kind+"\n") {
				t.Errorf("%v: no %s in\n%s", args, kind, out)
			}
		}
		if now := p.objects(t); !slices.Equal(now, p.before) {
			t.Errorf("%v made %q", args, without(now, p.before))
		}
	}
	if _, err := os.Stat(filepath.Join(p.dir, "none")); err == nil {
		t.Error("a file was written")
	}
}

// twoUsers walk at the same time, and neither takes away what the other one needs.
func twoUsers(t *testing.T, p *plugin) {
	results := make(chan runOutput)
	for range 2 {
		go func() {
			s, err := p.try("walk", "--live", "--from", "pod/one", "--to", "pod/two:80")
			if err != nil {
				s.err += err.Error()
			}
			results <- s
		}()
	}
	for range 2 {
		s := <-results
		if s.status != 0 {
			t.Errorf("status %d: %s%s", s.status, s.out, s.err)
			continue
		}
		proved(t, s.out)
	}
}

// cut: who reads the output goes after a line.
func cut(t *testing.T, p *plugin) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := p.command(ctx, "walk", "--from", "pod/one", "--to", "pod/two:80", "-o", "wide")
	cmd.Stdout = w
	if err := errors.Join(r.Close(), cmd.Start()); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	_ = cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Exited() {
		t.Errorf("it ended by %v", cmd.ProcessState)
	}
}
