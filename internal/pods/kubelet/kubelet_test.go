package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	k8stesting "k8s.io/client-go/testing"

	"packetwalk.dev/internal/pods/container"
)

func TestNodeIsRegisteredReadyWithALease(t *testing.T) {
	b := newBench(t)
	n, err := b.client.CoreV1().Nodes().Get(context.Background(), testNode, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var conditions []string
	for _, c := range n.Status.Conditions {
		conditions = append(conditions, fmt.Sprintf("%s=%s", c.Type, c.Status))
	}
	want := []string{"MemoryPressure=False", "DiskPressure=False", "PIDPressure=False", "Ready=True"}
	if !slices.Equal(conditions, want) {
		t.Errorf("conditions %v, want %v", conditions, want)
	}
	if n.Labels[corev1.LabelHostname] != testNode || n.Status.NodeInfo.KubeletVersion == "" || n.Status.Capacity.Pods().IsZero() {
		t.Errorf("incomplete node: %+v", n)
	}
	for limit := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err = b.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(context.Background(), testNode,
			metav1.GetOptions{}); err == nil {
			break
		}
		if time.Now().After(limit) {
			t.Fatal(err)
		}
	}
	// A Node that somebody deletes comes back.
	if err := b.client.CoreV1().Nodes().Delete(context.Background(), testNode, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err = b.client.CoreV1().Nodes().Get(context.Background(), testNode, metav1.GetOptions{}); err == nil {
			return
		}
		if time.Now().After(limit) {
			t.Fatal(err)
		}
	}
}

// TestFaultsEnd: what the API server did not let the kubelet do is a fault until it does: the node's registration before the roles of a new
// cluster are there, a pod's deletion.
func TestFaultsEnd(t *testing.T) {
	refused := func(a k8stesting.Action) error {
		return apierrors.NewForbidden(corev1.Resource(a.GetResource().Resource), "x", errors.New("not now"))
	}
	var tries, deletions atomic.Int32
	b := newBenchWith(t, func(b *bench, _ *Config) {
		b.client.PrependReactor("create", "nodes", func(a k8stesting.Action) (bool, runtime.Object, error) {
			return tries.Add(1) <= 2, nil, refused(a)
		})
		b.client.PrependReactor("delete", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
			if grace := a.(k8stesting.DeleteActionImpl).DeleteOptions.GracePeriodSeconds; grace == nil || *grace > 0 {
				return false, nil, nil
			}
			return deletions.Add(1) <= 2, nil, refused(a)
		})
	})
	if err := b.k.Status().Fault; err != nil || tries.Load() < 3 {
		t.Errorf("registered at try %d: %v", tries.Load(), err)
	}
	b.create(testPod("a"))
	b.await("a", "ready", ready)
	if err := b.client.CoreV1().Pods("default").Delete(context.Background(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	seen := false
	for limit := time.Now().Add(10 * time.Second); b.k.Status().Pods > 0; time.Sleep(time.Millisecond) {
		if err := b.k.Status().Fault; err != nil {
			seen = seen || strings.Contains(err.Error(), "delete pod a_default(")
		}
		if time.Now().After(limit) {
			t.Fatal("the pod stays")
		}
	}
	if err := b.k.Status().Fault; err != nil || !seen {
		t.Errorf("deleted at try %d: %v; seen meanwhile: %v", deletions.Load(), err, seen)
	}
}

func TestPodRunsAndIsDeleted(t *testing.T) {
	b := newBench(t)
	pod := b.create(testPod("web"))
	c := b.runtime.next(t)
	p := b.await("web", "ready", ready)
	if p.Status.Phase != corev1.PodRunning || p.Status.PodIP != "10.0.0.1" || p.Status.HostIP != "127.0.0.1" ||
		p.Status.QOSClass != corev1.PodQOSBestEffort {
		t.Errorf("status %+v", p.Status)
	}
	if got := p.Status.ContainerStatuses[0]; got.State.Running == nil || !strings.HasPrefix(got.ContainerID, "packetwalk://") ||
		got.RestartCount != 0 {
		t.Errorf("container status %+v", got)
	}
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodScheduled && cond.LastTransitionTime.Unix() != 1700000000 {
			t.Error("PodScheduled is not the kubelet's to change")
		}
	}
	if got := c.spec.Hostname; got != "web" {
		t.Errorf("hostname %q", got)
	}
	if want := "nameserver 10.0.0.10\n"; !strings.Contains(string(c.spec.ResolvConf), want) {
		t.Errorf("resolv.conf %s", c.spec.ResolvConf)
	}
	if err := b.client.CoreV1().Pods("default").Delete(context.Background(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if grace := <-c.stops; grace < 28*time.Second || grace > 30*time.Second {
		t.Errorf("grace %v", grace)
	}
	b.awaitGone("web")
	if b.network.count() != 0 {
		t.Error("the address was not given back")
	}
	if _, err := os.Stat(b.k.podDir(string(pod.UID))); !os.IsNotExist(err) {
		t.Errorf("directory left: %v", err)
	}
}

// The API server is written to as little as possible: one status for a pod that starts at once.
func TestOneStatusUpdatePerStart(t *testing.T) {
	b := newBench(t)
	b.create(testPod("web"))
	b.await("web", "ready", ready)
	updates := 0
	for _, a := range b.client.Actions() {
		if a.GetVerb() == "update" && a.GetResource().Resource == "pods" && a.GetSubresource() == "status" {
			updates++
		}
	}
	if updates != 1 {
		t.Errorf("%d status updates", updates)
	}
}

func TestShorterGraceEndsADeafContainer(t *testing.T) {
	b := newBench(t)
	b.runtime.deaf = true
	b.create(testPod("web"))
	c := b.runtime.next(t)
	b.await("web", "ready", ready)
	ctx := context.Background()
	if err := b.client.CoreV1().Pods("default").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	<-c.stops
	now := int64(1)
	if err := b.client.CoreV1().Pods("default").Delete(ctx, "web", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	b.awaitGone("web")
	if c.exit.Code != 137 {
		t.Errorf("exit %+v", c.exit)
	}
}

// TestHookThatTakesItsTime: after a preStop hook that has used up the grace period a container still has two seconds.
func TestHookThatTakesItsTime(t *testing.T) {
	for grace, want := range map[int64]time.Duration{1: leastGrace, 20: 20 * time.Second} {
		b := newBench(t)
		b.create(testPod("web", func(p *corev1.Pod) {
			p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}}
		}))
		c := b.runtime.next(t)
		c.answer(func(container.Exec) (int, error) {
			if grace == 1 {
				time.Sleep(time.Second)
			}
			return 0, nil
		})
		b.await("web", "ready", ready)
		if err := b.client.CoreV1().Pods("default").Delete(context.Background(), "web",
			metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
			t.Fatal(err)
		}
		if got := <-c.stops; got > want || got < want*3/4 {
			t.Errorf("%d s: %v, want %v", grace, got, want)
		}
		b.awaitGone("web")
	}
}

func TestForcedDeletion(t *testing.T) {
	b := newBench(t)
	b.runtime.deaf = true
	b.create(testPod("web"))
	c := b.runtime.next(t)
	b.await("web", "ready", ready)
	if err := b.client.CoreV1().Pods("default").Delete(context.Background(), "web",
		metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	if grace := <-c.stops; grace > orphanGrace {
		t.Errorf("grace %v", grace)
	}
	b.awaitGone("web")
}

// A pod that is deleted and made again by the same name (a StatefulSet's) is another pod, which starts when the first is gone.
func TestSameNameAgain(t *testing.T) {
	b := newBench(t)
	b.create(testPod("web"))
	b.runtime.next(t)
	b.await("web", "ready", ready)
	ctx := context.Background()
	if err := b.client.CoreV1().Pods("default").Delete(ctx, "web", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	again := b.create(testPod("web"))
	c := b.runtime.next(t)
	if c.spec.Labels["io.kubernetes.pod.uid"] != string(again.UID) {
		t.Errorf("started for %s", c.spec.Labels["io.kubernetes.pod.uid"])
	}
	p := b.await("web", "ready", ready)
	if p.UID != again.UID || p.Status.PodIP != "10.0.0.2" || b.network.count() != 1 {
		t.Errorf("uid %s, address %s, %d attachments", p.UID, p.Status.PodIP, b.network.count())
	}
}

func TestJobCompletes(t *testing.T) {
	b := newBench(t)
	b.create(testPod("job", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }))
	c := b.runtime.next(t)
	b.await("job", "ready", ready)
	if err := os.WriteFile(c.spec.Mounts[len(c.spec.Mounts)-1].Source, []byte("all is well"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.end(0)
	p := b.await("job", "succeeded", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	if s := p.Status.ContainerStatuses[0].State.Terminated; s == nil || s.Reason != "Completed" || s.Message != "all is well" {
		t.Errorf("state %+v", s)
	}
	for limit := time.Now().Add(5 * time.Second); b.network.count() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("a pod that has ended keeps its address")
		}
	}
}

func TestUnknownImage(t *testing.T) {
	b := newBench(t)
	b.create(testPod("web", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "nosuch" }))
	waiting := func(p *corev1.Pod) string {
		if len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Waiting == nil {
			return ""
		}
		return p.Status.ContainerStatuses[0].State.Waiting.Reason
	}
	p := b.await("web", "ErrImagePull", func(p *corev1.Pod) bool { return waiting(p) == "ErrImagePull" })
	if m := p.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(m, "there are app") {
		t.Errorf("message %q", m)
	}
	b.await("web", "ImagePullBackOff", func(p *corev1.Pod) bool { return waiting(p) == "ImagePullBackOff" })
}

func TestSandboxIsTriedAgain(t *testing.T) {
	b := newBench(t)
	b.network.fails = 1
	b.create(testPod("web"))
	b.await("web", "ready", ready)
}

func TestStartFailures(t *testing.T) {
	b := newBench(t)
	b.runtime.fail = func(s container.Spec) error {
		return fmt.Errorf("%w: exec: %q: executable file not found in $PATH", container.ErrStart, s.Command[0])
	}
	b.create(testPod("web", func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers[0].Command = []string{"nosuch"}
	}))
	p := b.await("web", "failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if s := p.Status.ContainerStatuses[0].State.Terminated; s == nil || s.ExitCode != 128 || s.Reason != "StartError" ||
		s.StartedAt.IsZero() || s.StartedAt.Unix() != 0 {
		t.Errorf("status %+v", p.Status.ContainerStatuses[0])
	}
}

func TestReadinessByExecAndLivenessRestart(t *testing.T) {
	b := newBench(t)
	b.create(testPod("web", func(p *corev1.Pod) {
		probe := func(cmd string) *corev1.Probe {
			return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{cmd}}}, PeriodSeconds: 1,
				FailureThreshold: 1}
		}
		p.Spec.Containers[0].ReadinessProbe = probe("ready")
		p.Spec.Containers[0].LivenessProbe = probe("alive")
	}))
	c := b.runtime.next(t)
	b.await("web", "ready", ready)
	// The probe's answer changes; the container is stopped and made again.
	c.answer(func(e container.Exec) (int, error) {
		if e.Args[0] == "alive" {
			fmt.Fprint(e.Stdout, "no pulse")
			return 1, nil
		}
		return 0, nil
	})
	<-c.stops
	b.runtime.next(t)
	p := b.await("web", "restarted", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount == 1 && ready(p) })
	if p.Status.ContainerStatuses[0].LastTerminationState.Terminated == nil {
		t.Error("no last state")
	}
}

func TestTCPReadiness(t *testing.T) {
	ln, err := fakeNS{}.Listen(context.Background(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, _ := strings.Cut(ln.Addr().String(), ":")
	b := newBench(t)
	b.create(testPod("web", func(p *corev1.Pod) {
		p.Spec.HostNetwork = true // its address is the node's, which is 127.0.0.1 here
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
			TCPSocket: &corev1.TCPSocketAction{Port: intstr.Parse(port)},
		}}
	}))
	b.await("web", "ready", ready)
	if b.network.count() != 0 {
		t.Error("a pod on the host's network needs no attachment")
	}
}

// A kubelet that comes back finds its pods running, and deletes those that went meanwhile.
func TestRestartAdoptsPods(t *testing.T) {
	b := newBench(t)
	for _, name := range []string{"stays", "goes", "ended"} {
		b.create(testPod(name))
		b.await(name, "ready", ready)
	}
	byName := make(map[string]*fakeContainer)
	for range 3 {
		c := b.runtime.next(t)
		byName[c.spec.Labels["io.kubernetes.pod.name"]] = c
	}
	before := b.await("stays", "ready", ready)
	b.stop()
	if err := b.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "default", "goes"); err != nil {
		t.Fatal(err)
	}
	byName["ended"].end(3)
	b.start()
	<-byName["goes"].stops
	b.await("ended", "restarted", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount == 1 })
	after := b.await("stays", "ready", ready)
	if x, y := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]; x.ContainerID != y.ContainerID || y.RestartCount != 0 {
		t.Errorf("before %+v, after %+v", x, y)
	}
	select {
	case <-byName["stays"].done:
		t.Error("the container did not survive")
	default:
	}
	for limit := time.Now().Add(5 * time.Second); b.network.count() != 2; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%d attachments", b.network.count())
		}
	}
}

func TestInitContainersRunInOrder(t *testing.T) {
	b := newBench(t)
	b.create(testPod("web", func(p *corev1.Pod) {
		always := corev1.ContainerRestartPolicyAlways
		p.Spec.InitContainers = []corev1.Container{{Name: "one", Image: "app"}, {Name: "side", Image: "app", RestartPolicy: &always},
			{Name: "two", Image: "app"}}
	}))
	for _, want := range []string{"one", "side", "two", "app"} {
		c := b.runtime.next(t)
		if c.spec.Name != want {
			t.Fatalf("%s started, want %s", c.spec.Name, want)
		}
		if want == "one" || want == "two" {
			c.end(0)
		}
	}
	b.await("web", "ready", ready)
}

// Who deletes a pod by name must not delete its successor.
func TestDeleteOfUnknownPod(t *testing.T) {
	b := newBench(t)
	err := b.k.DeletePod(context.Background(), testPod("nobody"))
	if err == nil || apierrors.IsNotFound(err) {
		t.Errorf("error %v", err)
	}
}
