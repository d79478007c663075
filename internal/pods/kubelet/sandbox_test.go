package kubelet

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestRealSharedProcesses: the containers of a pod see each other's processes where it asks for that, and write into one volume in memory,
// which goes with the pod (world.end).
func TestRealSharedProcesses(t *testing.T) {
	w := newWorld(t)
	w.create(testPod("shared", func(p *corev1.Pod) {
		p.Spec.ShareProcessNamespace = new(true)
		p.Spec.Volumes = []corev1.Volume{{Name: "fast", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			Medium: corev1.StorageMediumMemory, SizeLimit: new(quantity("1Mi"))}}}}
		first := &p.Spec.Containers[0]
		first.Image, first.Command = "ubuntu", []string{"sleep", "1000"}
		first.VolumeMounts = []corev1.VolumeMount{{Name: "fast", MountPath: "/fast"}}
		second := first.DeepCopy()
		second.Name, second.Command = "other", []string{"sleep", "2000"}
		p.Spec.Containers = append(p.Spec.Containers, *second)
	}))
	w.await("shared", "ready", ready)
	got := w.shell("shared/app", everyProcess+"; echo x > /fast/file; stat -f -c '%T %b %S' /fast")
	for _, want := range []string{"sleep 1000 \n", "sleep 2000 \n", "tmpfs 256 4096\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %s", want, got)
		}
	}
	if got := w.shell("shared/other", "cat /fast/file; dd if=/dev/zero of=/fast/more bs=4096 count=512 2>&1"+
		" | grep -o 'No space left'; readlink /proc/1/exe || echo guarded"); got != "x\nNo space left\nguarded\n" {
		t.Errorf("got %q", got)
	}
}

const everyProcess = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done"

// TestRealHostPID: a pod with hostPID sees the processes of the other pods of its node, and nothing of the machine's.
func TestRealHostPID(t *testing.T) {
	w := newWorld(t)
	sleeps := func(name string, edit ...func(*corev1.Pod)) {
		w.create(testPod(name, append(edit, func(p *corev1.Pod) {
			p.Spec.Containers[0].Image, p.Spec.Containers[0].Command = "ubuntu", []string{"sleep", name}
		})...))
		w.await(name, "ready", ready)
	}
	sleeps("1001")
	sleeps("1002", func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) })
	sleeps("1003", func(p *corev1.Pod) { p.Spec.HostPID = true })
	got := w.shell("1003/app", everyProcess)
	for _, want := range []string{"sleep 1001 \n", "sleep 1002 \n", "sleep 1003 \n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %s", want, got)
		}
	}
	if strings.Contains(got, os.Args[0]) {
		t.Errorf("the kubelet is to be seen: %s", got)
	}
	if got := w.shell("1002/app", everyProcess); strings.Contains(got, "sleep 1001") || strings.Contains(got, "sleep 1003") {
		t.Errorf("others are to be seen: %s", got)
	}
}

// TestTargetOfEphemeralContainer: kubectl debug --target sees the processes of that container.
func TestTargetOfEphemeralContainer(t *testing.T) {
	b := newBench(t)
	debug := func(name, target string) corev1.EphemeralContainer {
		return corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name, Image: "app"},
			TargetContainerName: target}
	}
	b.create(testPod("web"))
	app := b.runtime.next(t)
	p := b.await("web", "ready", ready).DeepCopy()
	update := func() {
		t.Helper()
		if _, err := b.client.CoreV1().Pods("default").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{debug("one", "app"), debug("none", "")}
	update()
	for range 2 {
		c := b.runtime.next(t)
		if want := map[string]string{"one": app.spec.Dir}[c.spec.Name]; c.spec.ProcessesOf != want {
			t.Errorf("%s: %q, want %q", c.spec.Name, c.spec.ProcessesOf, want)
		}
	}
	p = b.await("web", "two more", func(p *corev1.Pod) bool { return len(p.Status.EphemeralContainerStatuses) == 2 }).DeepCopy()
	p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, debug("lost", "nosuch"))
	update()
	b.await("web", "why there is none", func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.EphemeralContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.State.Waiting != nil && s.State.Waiting.Message == "unable to find target container nosuch"
		})
	})
}

func TestMountMemory(t *testing.T) {
	kerneltest.NeedRoot(t)
	dir := filepath.Join(t.TempDir(), "volume")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it is there
		if err := mountMemory(dir, 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Type != unix.TMPFS_MAGIC || int64(st.Blocks)*st.Bsize != 1<<20 {
		t.Errorf("%+v, %v", st, err)
	}
	mounted, err := os.ReadFile("/proc/self/mountinfo")
	if n := strings.Count(string(mounted), " "+dir+" "); n != 1 || err != nil {
		t.Errorf("mounted %d times, %v", n, err)
	}
}

// TestSandboxOfSharedProcesses: one container before the others, for a pod that shares processes; started again when it has ended; others
// have none.
func TestSandboxOfSharedProcesses(t *testing.T) {
	b := newBench(t)
	b.create(testPod("plain"))
	node := b.k.processes.dir
	if c := b.runtime.next(t); c.spec.Name != "app" || c.spec.ProcessesOf != "" || c.spec.ProcessesBelow != node {
		t.Fatalf("%+v", c.spec)
	}
	b.create(testPod("shared", func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) }))
	sandbox, c := b.runtime.next(t), b.runtime.next(t)
	if sandbox.spec.Name != "sandbox" || c.spec.Name != "app" || c.spec.ProcessesOf != sandbox.spec.Dir ||
		sandbox.spec.NetNS != c.spec.NetNS || sandbox.spec.ProcessesBelow != node {
		t.Fatalf("%+v, %+v", sandbox.spec, c.spec)
	}
	sandbox.end(137)
	c.end(137)
	again := []string{b.runtime.next(t).spec.Name, fmt.Sprint(b.runtime.next(t).spec.ProcessesOf)}
	if !slices.Equal(again, []string{"sandbox", sandbox.spec.Dir}) {
		t.Errorf("started again: %q", again)
	}
	b.runtime.mu.Lock()
	defer b.runtime.mu.Unlock()
	if n := b.runtime.adopted[sandbox.spec.Dir]; n != 1 { // each is a watch of its own
		t.Errorf("adopted %d times", n)
	}
}

// TestSandboxOfTheNode: it is there once, before any pod; a kubelet that comes later finds it, and one that has ended is started again.
// Containers of a pod with hostPID are in its process namespace, all others below.
func TestSandboxOfTheNode(t *testing.T) {
	b := newBench(t)
	dir := b.k.processes.dir
	node := func() *fakeContainer {
		b.runtime.mu.Lock()
		defer b.runtime.mu.Unlock()
		return b.runtime.byDir[dir]
	}
	for limit := time.Now().Add(10 * time.Second); node() == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("the node has no sandbox")
		}
	}
	first := node()
	if s := first.spec; s.NetNS != "/node" || s.Hostname != testNode || s.ProcessesOf+s.ProcessesBelow != "" {
		t.Errorf("%+v", s)
	}
	hosted := func(name string) {
		t.Helper()
		b.create(testPod(name, func(p *corev1.Pod) { p.Spec.HostPID = true }))
		if s := b.runtime.next(t).spec; s.ProcessesOf != dir || s.ProcessesBelow != "" {
			t.Errorf("%+v", s)
		}
	}
	hosted("one")
	b.stop()
	b.start()
	hosted("two")
	if node() != first {
		t.Error("started again while it ran")
	}
	first.end(137)
	hosted("three")
	if node() == first {
		t.Error("not started again when it had ended")
	}
}
