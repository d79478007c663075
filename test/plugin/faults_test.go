package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/capture"
)

var toTwo = []string{"walk", "--from", "pod/one", "--to", "pod/two:80"}

func noRights(t *testing.T, p *plugin) {
	for _, args := range [][]string{toTwo, {"capture", "--all-nodes", "-o", filepath.Join(p.dir, "none")}, {"cleanup"}} {
		p.refused(t, `forbidden.*'kubectl packetwalk rbac' prints the rights that it takes`, append(args, "--as", "nobody")...)
	}
}

func wrongImage(t *testing.T, p *plugin) {
	p.refused(t, `image example\.org/none:1 cannot be pulled: .*--image.*--image-pull-secret`,
		append(toTwo, "--image", "example.org/none:1", "--start-timeout", "20s")...)
}

// noServer runs a walk with an API server address on which no process listens.
func noServer(t *testing.T, p *plugin) {
	text, err := os.ReadFile(p.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := regexp.MustCompile(`server: https://\S+`).ReplaceAllString(string(text), "server: https://127.0.0.1:1")
	p.refused(t, `the API server does not answer: .*--context and --kubeconfig choose another one`,
		append(toTwo, "--kubeconfig", p.file(t, "elsewhere", elsewhere))...)
}

// pluginRun is a run of the plugin that has come to some place.
type pluginRun struct {
	*exec.Cmd
	out, err bytes.Buffer
	release  func() // what it waits for
}

// end waits for its end.
func (r *pluginRun) end(t *testing.T) runOutput {
	t.Helper()
	if r.release != nil {
		r.release()
	}
	if err := r.Wait(); r.ProcessState == nil {
		t.Fatal(err)
	}
	return runOutput{r.out.String(), r.err.String(), r.ProcessState.ExitCode()}
}

func (p *plugin) start(t *testing.T, args ...string) *pluginRun {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	r := &pluginRun{Cmd: p.command(ctx, args...)}
	r.Stdout, r.Stderr = &r.out, &r.err
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	return r
}

// half returns a walk --live that has read the nodes and has not sent the packet. It cannot announce the packet, because no process reads
// its standard error until release.
func (p *plugin) half(t *testing.T) *pluginRun {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	full := 0
	raw, err := w.SyscallConn()
	if err == nil {
		err = raw.Write(func(fd uintptr) bool {
			for ; ; full++ {
				if _, err := syscall.Write(int(fd), []byte{'.'}); err != nil {
					return true // EAGAIN: the pipe is full
				}
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	half := &pluginRun{Cmd: p.command(ctx, append(toTwo, "--live")...)}
	half.Stdout, half.Stderr = &half.out, w
	if err := errors.Join(half.Start(), w.Close()); err != nil {
		t.Fatal(err)
	}
	half.release = func() {
		_, _ = io.CopyN(io.Discard, r, int64(full))
		_, _ = io.Copy(&half.err, r)
	}
	eventually.Succeeds(t, limit, func() error { return blocked(half.Process.Pid) })
	return half
}

// blocked: a thread of a process waits in a pipe's write.
func blocked(pid int) error {
	found, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
	for _, file := range found {
		line, err := os.ReadFile(file)
		if err == nil && strings.HasPrefix(string(line), fmt.Sprintf("%d 0x2 ", syscall.SYS_WRITE)) {
			return nil
		}
	}
	return fmt.Errorf("process %d has not come there", pid)
}

// ours chooses what the plugin has made.
var ours = metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=packetwalk"}

// pods returns the plugin's pods.
func (p *plugin) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	list, err := p.client.CoreV1().Pods("").List(t.Context(), ours)
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// interruptedAtOnce by Ctrl-C, when no more is there than the namespace.
func interruptedAtOnce(t *testing.T, p *plugin) {
	p.interruptWhen(t, "there is a namespace", func() bool {
		made, err := p.client.CoreV1().Namespaces().List(t.Context(), ours)
		return err == nil && len(made.Items) > 0
	})
}

// interrupted by Ctrl-C: when the first Job is there, when its pod is, and when everything has been read.
func interrupted(t *testing.T, p *plugin) {
	p.interruptWhen(t, "there is a job", func() bool {
		jobs, err := p.client.BatchV1().Jobs("").List(t.Context(), ours)
		return err == nil && len(jobs.Items) > 0
	})
	p.nothingLeft(t)
	p.interruptWhen(t, "there is a pod", func() bool { return len(p.pods(t)) > 0 })
	p.nothingLeft(t)
	p.interrupt(t, p.half(t), "all is read")
}

func (p *plugin) interruptWhen(t *testing.T, when string, come func() bool) {
	t.Helper()
	r := p.start(t, toTwo...)
	for deadline := time.Now().Add(limit); !come() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	p.interrupt(t, r, when)
}

func (p *plugin) interrupt(t *testing.T, r *pluginRun, when string) {
	t.Helper()
	if err := r.Process.Signal(os.Interrupt); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	began := time.Now()
	s := r.end(t)
	t.Logf("%s: %v", when, time.Since(began).Round(10*time.Millisecond))
	if s.status != 130 || s.out != "" || !strings.HasSuffix(s.err, "packetwalk: interrupted\n") {
		t.Errorf("interrupted when %s: status %d: %s%s", when, s.status, s.out, s.err)
	}
}

// killed: what a run has left that could not take it away, cleanup does.
func killed(t *testing.T, p *plugin) {
	r := p.half(t)
	if err := r.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	r.end(t)
	if left := p.pods(t); len(left) != 2 {
		t.Fatalf("%d pods are left, not 2", len(left))
	}
	s := p.run(t, 0, "cleanup")
	if !regexp.MustCompile(`^namespace/packetwalk-\w+ deleted\n$`).MatchString(s.out) {
		t.Errorf("cleanup says %q", s.out)
	}
	p.nothingLeft(t)
	if s := p.run(t, 0, "cleanup"); s.out != "nothing to delete\n" {
		t.Errorf("cleanup says %q", s.out)
	}
}

// podKilled: the pods are deleted when all is read and the packet not sent yet.
func podKilled(t *testing.T, p *plugin) {
	r := p.half(t)
	p.deletePods(t)
	s := r.end(t)
	s.err = regexp.MustCompile(`^packetwalk: opens one .*\n`).ReplaceAllString(s.err, "")
	if s.status != 1 {
		t.Errorf("status %d", s.status)
	}
	oneLine(t, s, `the stream to node \S+ broke off: its pod was deleted, or .*; run it again`)
}

func (p *plugin) deletePods(t *testing.T) {
	t.Helper()
	for _, pod := range p.pods(t) {
		if err := p.client.CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually.Succeeds(t, limit, func() error {
		if left := servers(t, p.Name); len(left) > 0 {
			return fmt.Errorf("the pods are gone, and processes %v there", left)
		}
		return nil
	})
}

// podOfCaptureKilled: the pod on the node goes while its state is read: its server is stopped when it has greeted and not answered all. On
// a busy machine the capture may be over before that: then it is tried again.
func podOfCaptureKilled(t *testing.T, p *plugin) {
	file := filepath.Join(p.dir, "half")
	for began := time.Now(); ; {
		r := p.start(t, "capture", p.nodes[0], "-o", file)
		p.stopServer(t, 60)
		p.deletePods(t)
		s := r.end(t)
		if s.status == 0 && time.Since(began) < 2*limit {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if s.status != 1 {
			t.Errorf("status %d", s.status)
		}
		oneLine(t, s, `the stream to node \S+ broke off: its pod was deleted, or .*; run it again`)
		if _, err := os.Stat(file); err == nil {
			t.Error("half a capture was written")
		}
		return
	}
}

// stopServer stops the server of a run when it has written more than so many bytes. It lets the server go on in short steps until then.
func (p *plugin) stopServer(t *testing.T, bytes int) {
	t.Helper()
	const step, patience = 200 * time.Microsecond, 20 * time.Second // the server may have ended before it was seen
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(step) {
		pids := servers(t, p.Name)
		if len(pids) == 0 {
			continue
		}
		for written(pids[0]) <= bytes && time.Now().Before(deadline) {
			_ = syscall.Kill(pids[0], syscall.SIGCONT) // it may have ended
			time.Sleep(step)
			_ = syscall.Kill(pids[0], syscall.SIGSTOP)
		}
		_ = syscall.Kill(pids[0], syscall.SIGSTOP)
		return
	}
}

// written returns how many bytes a process has written.
func written(pid int) (octets int) {
	io, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	_, after, _ := strings.Cut(string(io), "wchar: ")
	_, _ = fmt.Sscan(after, &octets)
	return octets
}

// restrict goes on as a user who has the rights that rbac prints, bound as the documentation says, and no others.
func (p *plugin) restrict(t *testing.T) {
	t.Helper()
	const user = "someuser"
	rights := p.run(t, 0, "rbac").out
	if _, err := p.TryInput(limit, rights, "kubectl", "--name", p.Name, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	for _, bind := range []string{
		"create clusterrolebinding packetwalk --clusterrole=packetwalk --user=" + user,
		"create rolebinding packetwalk -n packetwalk --role=packetwalk --user=" + user,
		"create rolebinding packetwalk -n kube-system --role=packetwalk --user=" + user,
	} {
		p.Kubectl(t, strings.Fields(bind)...)
	}
	eventually.Succeeds(t, limit, func() error { // what Kubernetes itself puts into a namespace
		p.before = p.objects(t)
		if more := without([]string{"ServiceAccount packetwalk/default", "ConfigMap packetwalk/kube-root-ca.crt"}, p.before); len(more) > 0 {
			return fmt.Errorf("no %q yet", more)
		}
		return nil
	})
	p.as = user
	p.waitRight(t, true, "list", "nodes")
	p.waitRight(t, true, "create", "jobs.batch", "-n", "packetwalk")
	p.waitRight(t, true, "get", "configmaps/"+capture.ConfigMapNames[0], "-n", "kube-system")
	p.run(t, 0, toTwo...)
	p.before = append(p.before, "ServiceAccount packetwalk/packetwalk") // stays, as it has no rights
	slices.Sort(p.before)
}

// waitRight waits until the API server allows the user something, or does not: it learns of roles and their bindings some time after they
// were written, and of each kind by itself.
func (p *plugin) waitRight(t *testing.T, allowed bool, what ...string) {
	t.Helper()
	want := map[bool]string{true: "yes", false: "no"}[allowed]
	eventually.Succeeds(t, limit, func() error {
		args := slices.Concat([]string{"kubectl", "--name", p.Name, "auth", "can-i", "--as", p.as}, what)
		if out, err := p.Try(limit, args...); strings.TrimSpace(out) != want { // exit status 1 says no
			return fmt.Errorf("may %s %v? %q, want %s: %w", p.as, what, out, want, err)
		}
		return nil
	})
}

// nothingToClean: what the administrator made is not a run's.
func nothingToClean(t *testing.T, p *plugin) {
	if s := p.run(t, 0, "cleanup"); s.out != "nothing to delete\n" {
		t.Errorf("cleanup says %q", s.out)
	}
}

// hung is a node that is Ready and runs no pod, with one of the two endpoints of the service mixed; %s is an endpoint that answers.
const hung = `
apiVersion: v1
kind: Node
metadata: {name: hung}
---
apiVersion: v1
kind: Pod
metadata: {name: away}
spec: {nodeName: hung, containers: [{name: web, image: "erjosito/whereami:1.3"}]}
---
apiVersion: v1
kind: Service
metadata: {name: mixed}
spec: {ports: [{port: 80, name: http}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: mixed-1, labels: {kubernetes.io/service-name: mixed}}
addressType: IPv4
ports: [{name: http, port: 80, protocol: TCP}]
endpoints: [{addresses: [10.244.9.200], nodeName: hung}, {addresses: [%s]}]
`

// hungNode: a node whose pod does not run makes only the outcomes on it undecided, and is not waited for where it is not chosen.
func hungNode(t *testing.T, p *plugin) {
	ctx := t.Context()
	two, err := p.client.CoreV1().Pods("default").Get(ctx, "two", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Kubectl(t, "apply", "-f", p.file(t, "hung.yaml", fmt.Sprintf(hung, two.Status.PodIP)))
	defer p.Kubectl(t, "delete", "--force", "-f", filepath.Join(p.dir, "hung.yaml"))
	p.Kubectl(t, "patch", "node", "hung", "--subresource=status", "--type=merge", "-p",
		`{"status":{"conditions":[{"type":"Ready","status":"True"}],"addresses":[{"type":"InternalIP","address":"10.224.0.250"}]}}`)
	p.Kubectl(t, "patch", "pod", "away", "--subresource=status", "--type=merge", "-p",
		`{"status":{"phase":"Running","podIP":"10.244.9.200","podIPs":[{"ip":"10.244.9.200"}]}}`)
	walk := []string{"walk", "--from", "pod/one", "--to", "svc/mixed:http", "--start-timeout", "10s"}
	eventually.Succeeds(t, limit, func() error {
		s, err := p.try(append(walk, "--choose", two.Status.PodIP)...)
		if err == nil && (s.status != 0 || strings.Contains(s.out, "hung is not read")) {
			err = fmt.Errorf("status %d\n%s%s", s.status, s.out, s.err)
		}
		return err
	})
	s := p.run(t, 3, walk...)
	for _, want := range []string{"node/hung is not read: its pod does not run after 10s", "the destination sees the sender's own address"} {
		if !strings.Contains(s.out, want) {
			t.Errorf("no %q in\n%s%s", want, s.out, s.err)
		}
	}
	p.run(t, 3, append(walk, "--max-nodes", "2")...)
}
