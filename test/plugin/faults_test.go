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
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/cluster"
	"packetwalk.dev/test/world"
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

// noServer: where the API server should be nobody listens.
func noServer(t *testing.T, p *plugin) {
	text, err := os.ReadFile(p.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := regexp.MustCompile(`server: https://\S+`).ReplaceAllString(string(text), "server: https://127.0.0.1:1")
	p.refused(t, `the API server does not answer: .*--context and --kubeconfig choose another one`,
		append(toTwo, "--kubeconfig", p.file(t, "elsewhere", elsewhere))...)
}

// running is a run of the plugin that has come to some place.
type running struct {
	*exec.Cmd
	out, err bytes.Buffer
	release  func() // what it waits for
}

// end waits for its end.
func (r *running) end(t *testing.T) said {
	t.Helper()
	if r.release != nil {
		r.release()
	}
	if err := r.Wait(); r.ProcessState == nil {
		t.Fatal(err)
	}
	return said{r.out.String(), r.err.String(), r.ProcessState.ExitCode()}
}

func (p *plugin) start(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	r := &running{Cmd: p.command(ctx, args...)}
	r.Stdout, r.Stderr = &r.out, &r.err
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	return r
}

// half is a walk --live that has read the nodes and has not sent the packet: it cannot say that it is about to, since nobody reads that
// until it is released.
func (p *plugin) half(t *testing.T) *running {
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
	half := &running{Cmd: p.command(ctx, append(toTwo, "--live")...)}
	half.Stdout, half.Stderr = &half.out, w
	if err := errors.Join(half.Start(), w.Close()); err != nil {
		t.Fatal(err)
	}
	half.release = func() {
		_, _ = io.CopyN(io.Discard, r, int64(full))
		_, _ = io.Copy(&half.err, r)
	}
	world.Eventually(t, limit, func() error { return blocked(half.Process.Pid) })
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

// pods are the plugin's, with the phase of each.
func (p *plugin) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	list, err := p.client.CoreV1().Pods(cluster.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// interrupted by Ctrl-C: when the namespace is made, when the first Job is, and when everything has been read.
func interrupted(t *testing.T, p *plugin) {
	for _, when := range []struct {
		name string
		come func() bool
	}{
		{"namespace", func() bool {
			_, err := p.client.CoreV1().Namespaces().Get(t.Context(), cluster.Namespace, metav1.GetOptions{})
			return err == nil
		}},
		{"job", func() bool {
			jobs, err := p.client.BatchV1().Jobs(cluster.Namespace).List(t.Context(), metav1.ListOptions{})
			return err == nil && len(jobs.Items) > 0
		}},
		{"pod", func() bool { return len(p.pods(t)) > 0 }},
	} {
		r := p.start(t, toTwo...)
		for deadline := time.Now().Add(limit); !when.come() && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		p.interrupt(t, r, "when there is a "+when.name)
		p.nothingLeft(t) // the next one has the namespace to make
	}
	p.interrupt(t, p.half(t), "when all is read")
}

func (p *plugin) interrupt(t *testing.T, r *running, when string) {
	t.Helper()
	if err := r.Process.Signal(os.Interrupt); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	began := time.Now()
	s := r.end(t)
	t.Logf("%s: %v", when, time.Since(began).Round(10*time.Millisecond))
	if s.status != 130 || s.out != "" || !strings.HasSuffix(s.err, "packetwalk: interrupted\n") {
		t.Errorf("interrupted %s: status %d: %s%s", when, s.status, s.out, s.err)
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
	if !regexp.MustCompile(`^(job/packetwalk-\w+-[12] deleted\n){2}namespace/packetwalk deleted\n$`).MatchString(s.out) {
		t.Errorf("cleanup says %q", s.out)
	}
	p.nothingLeft(t)
	if s := p.run(t, 0, "cleanup"); s.out != "nothing is left\n" {
		t.Errorf("cleanup says %q", s.out)
	}
}

// podKilled: the pods are deleted when all is read and the packet not sent yet.
func podKilled(t *testing.T, p *plugin) {
	r := p.half(t)
	p.deletePods(t)
	s := r.end(t)
	s.err = regexp.MustCompile(`^packetwalk: sends one .*\n`).ReplaceAllString(s.err, "")
	if s.status != 1 {
		t.Errorf("status %d", s.status)
	}
	oneLine(t, s, `node `+regexp.QuoteMeta(p.nodes[0])+`: .*broke off`)
}

func (p *plugin) deletePods(t *testing.T) {
	t.Helper()
	for _, pod := range p.pods(t) {
		if err := p.client.CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	world.Eventually(t, limit, func() error {
		if left := servers(t, p.Name); len(left) > 0 {
			return fmt.Errorf("the pods are gone, and processes %v there", left)
		}
		return nil
	})
}

// podOfCaptureKilled: the pod on the node goes while its state is read: its server is stopped before it has answered.
func podOfCaptureKilled(t *testing.T, p *plugin) {
	file := filepath.Join(p.dir, "half")
	r := p.start(t, "capture", p.nodes[0], "-o", file)
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if pids := servers(t, p.Name); len(pids) > 0 {
			if err := syscall.Kill(pids[0], syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	p.deletePods(t)
	s := r.end(t)
	if s.status != 1 {
		t.Errorf("status %d", s.status)
	}
	oneLine(t, s, `node `+regexp.QuoteMeta(p.nodes[0])+`: .*broke off`)
	if _, err := os.Stat(file); err == nil {
		t.Error("half a capture was written")
	}
}

// leastRights: who has those that rbac prints, bound as the documentation says, can do everything, and leaves what the administrator made.
func leastRights(t *testing.T, p *plugin) {
	const user = "somebody"
	rights := p.run(t, 0, "rbac").out
	if _, err := p.TryInput(limit, rights, "kubectl", "--name", p.Name, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	bind := [][]string{
		{"create", "clusterrolebinding", "packetwalk", "--clusterrole=packetwalk", "--user=" + user},
		{"create", "rolebinding", "packetwalk", "-n", "packetwalk", "--role=packetwalk", "--user=" + user},
		{"create", "rolebinding", "packetwalk", "-n", "kube-system", "--role=packetwalk", "--user=" + user},
	}
	for _, b := range bind {
		p.Kubectl(t, b...)
	}
	defer func() {
		p.Kubectl(t, "delete", "clusterrolebinding/packetwalk", "clusterrole/packetwalk", "namespace/packetwalk", "--wait=false")
		p.Kubectl(t, "delete", "-n", "kube-system", "rolebinding/packetwalk", "role/packetwalk")
	}()
	as := *p
	world.Eventually(t, limit, func() error { // what Kubernetes itself puts into a namespace
		as.before = p.objects(t)
		if more := without([]string{"ServiceAccount packetwalk/default", "ConfigMap packetwalk/kube-root-ca.crt"}, as.before); len(more) > 0 {
			return fmt.Errorf("no %q yet", more)
		}
		return nil
	})
	as.before = append(as.before, "ServiceAccount packetwalk/packetwalk") // which stays, too
	for range 2 {                                                         // the second time it is there
		s := p.run(t, 0, append(toTwo, "--live", "--as", user)...)
		proved(t, s.out)
		if strings.Contains(s.out+s.err, "forbidden") || strings.Contains(s.out, "are not known") {
			t.Errorf("something was not allowed:\n%s%s", s.err, s.out)
		}
		as.nothingLeft(t)
	}
	if s := p.run(t, 0, "cleanup", "--as", user); s.out != "nothing is left\n" {
		t.Errorf("cleanup says %q", s.out)
	}
}
