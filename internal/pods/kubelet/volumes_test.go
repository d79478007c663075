package kubelet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"packetwalk.dev/internal/pods/container"
)

func TestMissingConfigMapIsWaitedFor(t *testing.T) {
	b := newBench(t)
	b.create(testPod("web", func(p *corev1.Pod) {
		conf := corev1.LocalObjectReference{Name: "conf"}
		p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: conf}}}
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: conf, Optional: new(true)}}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/etc/conf"}}
	}))
	p := b.await("web", "waiting for its configuration", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == "CreateContainerConfigError"
	})
	if m := p.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(m, `"conf" not found`) {
		t.Errorf("message %q", m)
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "conf", Namespace: "default"}, Data: map[string]string{"A": "1"}}
	if _, err := b.client.CoreV1().ConfigMaps("default").Create(context.Background(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c := b.runtime.next(t)
	if !slices.Contains(c.spec.Env, "A=1") {
		t.Errorf("environment %v", c.spec.Env)
	}
	// Its volume follows the ConfigMap.
	path := filepath.Join(c.spec.Mounts[0].Source, "A")
	await := func(want string) {
		t.Helper()
		for limit := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
			if got, _ := os.ReadFile(path); string(got) == want {
				return
			}
			if time.Now().After(limit) {
				t.Fatalf("%s does not become %q", path, want)
			}
		}
	}
	await("1")
	cm.Data["A"] = "2"
	if _, err := b.client.CoreV1().ConfigMaps("default").Update(context.Background(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("2")
}

// TestVolumeFollowsWhileItIsWritten: a change of a ConfigMap reaches its volume also when it comes between the reading of the ConfigMap and
// the end of the writing, while the pod starts and when volumes are renewed.
func TestVolumeFollowsWhileItIsWritten(t *testing.T) {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "conf", Namespace: "default"}, Data: map[string]string{"A": "1"}}
	b := newBench(t, cm)
	asked, answer := make(chan bool), make(chan bool)
	b.client.PrependReactor("create", "serviceaccounts", func(k8stesting.Action) (bool, runtime.Object, error) {
		asked <- true // volumes are made in the pod's order: the ConfigMap has been read
		<-answer
		return false, nil, nil
	})
	b.create(testPod("web", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}}}},
			{Name: "t", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}}}}},
		}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/etc/conf"}}
	}))
	told := make(chan string, 10)
	_, err := b.k.cfg.Shared.factory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, o any) { told <- o.(*corev1.ConfigMap).Data["A"] },
	})
	if err != nil {
		t.Fatal(err)
	}
	change := func(to string) {
		t.Helper()
		changed := cm.DeepCopy()
		changed.Data["A"] = to
		// Not by the client, which does one thing at a time.
		if err := b.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), changed, "default"); err != nil {
			t.Fatal(err)
		}
		for got := range told {
			if got == to {
				break
			}
		}
		time.Sleep(50 * time.Millisecond) // the kubelet's own handler is told at the same time as the test's
	}
	<-asked
	change("2")
	answer <- true
	c := b.runtime.next(t)
	path := filepath.Join(c.spec.Mounts[0].Source, "A")
	limit := time.After(time.Minute)
	for want := range 2 {
		select {
		case <-asked: // the renewal that the change asks for
		case <-limit:
			got, _ := os.ReadFile(path)
			t.Fatalf("the volume has %q, and nobody looks at it again", got)
		}
		if want == 0 {
			change("3")
		}
		answer <- true
	}
	for got := ""; got != "3"; time.Sleep(2 * time.Millisecond) {
		data, _ := os.ReadFile(path)
		got = string(data)
		select {
		case <-limit:
			t.Fatalf("the volume has %q", got)
		case <-asked:
			answer <- true
		default:
		}
	}
	go func() { // what else asks, until the test ends
		for {
			select {
			case <-asked:
				answer <- true
			case <-t.Context().Done():
				return
			}
		}
	}()
}

// TestPartOfTheNode: a part of the distribution is that, also by a subPath of a hostPath of all of the node.
func TestPartOfTheNode(t *testing.T) {
	root, base := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(base, "usr/lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	whole, err := hostPath(root, base, &corev1.HostPathVolumeSource{Path: "/"})
	if err != nil {
		t.Fatal(err)
	}
	for sub, want := range map[string]string{"usr/lib": filepath.Join(base, "usr/lib"), "srv/x": filepath.Join(root, "srv/x")} {
		v, err := whole.subPath(sub)
		if err != nil {
			t.Fatal(err)
		}
		if got := filepath.Join(append([]string{v.source}, v.beneath...)...); got != want || v.readOnly != (sub == "usr/lib") {
			t.Errorf("%s: %s, %v", sub, got, v.readOnly)
		}
	}
}

func TestServiceAccountToken(t *testing.T) {
	b := newBench(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt", Namespace: "default"},
		Data: map[string]string{"ca.crt": "PEM"}})
	b.create(testPod("web", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "kube-api-access",
			VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
					Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
				{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "namespace",
					FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
			}}}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "kube-api-access",
			MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}}
	}))
	c := b.runtime.next(t)
	m := c.spec.Mounts[slices.IndexFunc(c.spec.Mounts,
		func(m container.Mount) bool { return strings.HasSuffix(m.Destination, "serviceaccount") })]
	for name, want := range map[string]string{"token": "tok", "ca.crt": "PEM", "namespace": "default"} {
		got, err := os.ReadFile(filepath.Join(m.Source, name))
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if !m.ReadOnly {
		t.Error("the volume can be written to")
	}
}

// TestNodeFiles: a node has the files that a machine has, and keeps what a pod has made of them; no link leads out.
func TestNodeFiles(t *testing.T) {
	b := newBench(t)
	root := b.k.hostRoot()
	read := func(name string) string { text, _ := os.ReadFile(filepath.Join(root, name)); return string(text) }
	if got := read("etc/hostname"); got != testNode+"\n" {
		t.Errorf("/etc/hostname is %q", got)
	}
	if got := read("etc/hosts"); !strings.Contains(got, "127.0.1.1\t"+testNode+"\n") {
		t.Errorf("/etc/hosts is %q", got)
	}
	b.stop()
	outside := filepath.Join(t.TempDir(), "outside")
	for name, make := range map[string]func(path string) error{
		"etc/hosts":    func(path string) error { return os.WriteFile(path, []byte("a pod's\n"), 0o644) },
		"etc/hostname": func(path string) error { return os.Symlink(outside, path) },
	} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.Remove(path), make(path)); err != nil {
			t.Fatal(err)
		}
	}
	b.start()
	if got := read("etc/hosts"); got != "a pod's\n" {
		t.Errorf("/etc/hosts is %q", got)
	}
	if _, err := os.Lstat(outside); err == nil {
		t.Error("a link was followed")
	}
}
