package kubelet

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestEvicted: a pod that has written more to a volume than its limit ends, and one that has not goes on.
func TestEvicted(t *testing.T) {
	b := newBench(t)
	for _, name := range []string{"small", "large"} {
		pod := b.create(testPod(name, func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(quantity("1Mi"))}}}}
		}))
		c := b.runtime.next(t)
		b.await(name, "ready", ready)
		dir := filepath.Join(b.k.podDisk(string(pod.UID)), "volumes/kubernetes.io~empty-dir/cache")
		outside := filepath.Join(t.TempDir(), "outside")
		if err := errors.Join(os.WriteFile(outside, make([]byte, 4<<20), 0o644), os.Symlink(outside, filepath.Join(dir, "link")),
			os.WriteFile(filepath.Join(dir, "file"), make([]byte, 700<<10), 0o644),
			os.Link(filepath.Join(dir, "file"), filepath.Join(dir, "again"))); err != nil {
			t.Fatal(err)
		}
		if name == "large" {
			deep := filepath.Join(dir, strings.Repeat("d/", 50))
			if err := errors.Join(os.MkdirAll(deep, 0o755), os.WriteFile(deep+"more", make([]byte, 400<<10), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		b.k.evict(t.Context())
		if name == "small" {
			if b.k.byUID(pod.UID).overfull(t.Context()) != "" {
				t.Error("it is evicted")
			}
			continue
		}
		p := b.await(name, "evicted", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if p.Status.Reason != "Evicted" || p.Status.Message != `Usage of EmptyDir volume "cache" exceeds the limit "1Mi". ` {
			t.Errorf("%+v", p.Status)
		}
		<-c.stops
	}
}
