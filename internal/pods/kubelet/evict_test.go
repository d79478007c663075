package kubelet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/testing/containertest"
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
			if got, err := b.k.byUID(pod.UID).overfull(t.Context()); got != "" || err != nil {
				t.Errorf("it is evicted: %s, %v", got, err)
			}
			continue
		}
		p := b.await(name, "evicted", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if p.Status.Reason != "Evicted" || p.Status.Message != `Usage of EmptyDir volume "cache" exceeds the limit "1Mi". ` {
			t.Errorf("%+v", p.Status)
		}
		if grace := <-c.stops; grace > evictedGrace {
			t.Errorf("its container has %v to end", grace)
		}
	}
}

// TestUnmeasured: a pod ends that has made its directories so that what is in them cannot be measured, and others are measured meanwhile.
func TestUnmeasured(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*corev1.Pod)
		dir  string // in the pod's
		want string
	}{
		"volume": {func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(quantity("1Gi"))}}}}
		}, "volumes/kubernetes.io~empty-dir/cache", `Usage of EmptyDir volume "cache" exceeds the limit "1Gi"`},
		"layer": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: quantity("1Gi")}
		}, "layers/app", "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			pod := b.create(testPod("web", tt.edit))
			b.runtime.next(t)
			b.await("web", "ready", ready)
			dir := filepath.Join(b.k.podDisk(string(pod.UID)), tt.dir)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			containertest.Deep(t, dir, 300)
			b.k.evict(t.Context())
			p := b.await("web", "evicted", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
			if want := tt.want + ": it cannot be measured: it has more than 200 directories in each other. "; p.Status.Message != want {
				t.Errorf("%q, want %q", p.Status.Message, want)
			}
		})
	}
}

// TestMeasuredInTurn: who evicts waits for none of the pods, and they are measured as soon as there is room, whatever other nodes measure.
func TestMeasuredInTurn(t *testing.T) {
	b := newBench(t)
	pod := b.create(testPod("web", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: quantity("1Mi")}
	}))
	b.runtime.next(t)
	b.await("web", "ready", ready)
	dir := filepath.Join(b.k.podDisk(string(pod.UID)), "layers/app")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "file"), make([]byte, 2<<20), 0o644)); err != nil {
		t.Fatal(err)
	}
	other, err := New(b.k.cfg) // a node whose pods take long
	if err != nil {
		t.Fatal(err)
	}
	for range cap(other.measures) {
		if _, err := takeBoth(t.Context(), other.measures, other.cfg.Shared.measures, mostTime); err != nil {
			t.Fatal(err)
		}
	}
	measures := b.k.measures
	for range cap(measures) {
		measures <- struct{}{}
	}
	for range 2 {
		b.k.evict(t.Context())
	}
	if p := b.await("web", "there", func(*corev1.Pod) bool { return true }); p.Status.Phase != corev1.PodRunning {
		t.Errorf("%+v", p.Status)
	}
	<-measures
	b.await("web", "evicted", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
}

// TestMeter: what counts, and up to which bounds.
func TestMeter(t *testing.T) {
	const kib = 1 << 10
	dir := t.TempDir()
	for n := range 5 {
		sub := filepath.Join(dir, strings.Repeat("d/", n+1))
		if err := errors.Join(os.Mkdir(sub, 0o755), os.WriteFile(sub+"file", make([]byte, 100*kib), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	all := int64(5*100*kib) / kib
	for _, tt := range []struct {
		name        string
		most, names int
		least       int64 // KiB
		err         error
	}{
		{"all of it", 1 << 30, 10, all, nil},
		{"too many files", 1 << 30, 9, 0, errMany},
		{"as much as need be known", 150 * kib, 9, 151, nil},
	} {
		m := meter{most: int64(tt.most), names: tt.names, linked: map[uint64]bool{}}
		if err := m.directory(t.Context(), unix.AT_FDCWD, dir, 0); !errors.Is(err, tt.err) || m.bytes/kib < tt.least || m.bytes/kib > all+100 {
			t.Errorf("%s: %d KiB, %v", tt.name, m.bytes/kib, err)
		}
	}
	m := meter{most: 1 << 30, names: 10, linked: map[uint64]bool{}}
	if err := m.directory(t.Context(), unix.AT_FDCWD, filepath.Join(dir, "nosuch"), 0); err != nil || m.bytes != 0 {
		t.Errorf("what is not there: %d, %v", m.bytes, err)
	}
	m = meter{limit: 1 << 30, names: 19, linked: map[uint64]bool{}}
	for n, want := range []error{nil, errMany} {
		if _, err := m.measure(t.Context(), dir, 1<<30); !errors.Is(err, want) {
			t.Errorf("directory %d of a pod: %v, want %v", n, err, want)
		}
	}
	over, cancel := context.WithTimeoutCause(t.Context(), 0, errLong)
	defer cancel()
	m = meter{limit: 1 << 30, names: mostNames, linked: map[uint64]bool{}}
	if _, err := m.measure(over, dir, 1<<30); !errors.Is(err, errLong) {
		t.Errorf("no time is left: %v", err)
	}
}

// TestSumOfVolumes: a pod ends as soon as its volumes take more than it may together, whatever it has made of the next.
func TestSumOfVolumes(t *testing.T) {
	b := newBench(t)
	pod := b.create(testPod("web", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: quantity("1Mi")}
		for _, name := range []string{"a", "b", "c"} {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(quantity("1Gi"))}}})
		}
	}))
	b.runtime.next(t)
	b.await("web", "ready", ready)
	dir := filepath.Join(b.k.podDisk(string(pod.UID)), "volumes/kubernetes.io~empty-dir")
	for _, name := range []string{"a/file", "b/file"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 700<<10), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	containertest.Deep(t, filepath.Join(dir, "c"), 300)
	const want = "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. "
	if got, err := b.k.byUID(pod.UID).overfull(t.Context()); got != want || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// TestOverfull: what counts to which limit, in which order, and in upstream's words.
func TestOverfull(t *testing.T) {
	const kib = 1 << 10
	limit := func(p *corev1.Pod, i int, s string) {
		p.Spec.Containers[i].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: quantity(s)}
	}
	empty := func(p *corev1.Pod, e corev1.EmptyDirVolumeSource) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &e}})
	}
	const (
		layer, other, logs = "layers/app/1/upper", "layers/other/1/upper", "logs/app"
		volume             = "volumes/kubernetes.io~empty-dir/cache"
		ofPod              = "Pod ephemeral local storage usage exceeds the total limit of containers "
	)
	for name, tt := range map[string]struct {
		edit  func(*corev1.Pod)
		files map[string]int // sizes in the pod's directory
		want  string
	}{
		"no limit":      {func(*corev1.Pod) {}, map[string]int{layer: 900 * kib, volume: 900 * kib}, ""},
		"within":        {func(p *corev1.Pod) { limit(p, 0, "1Mi") }, map[string]int{layer: 300 * kib, logs: 300 * kib}, ""},
		"the layer":     {func(p *corev1.Pod) { limit(p, 0, "1Mi") }, map[string]int{layer: 1100 * kib}, ofPod + "1Mi. "},
		"layer and log": {func(p *corev1.Pod) { limit(p, 0, "1Mi") }, map[string]int{layer: 600 * kib, logs: 600 * kib}, ofPod + "1Mi. "},
		"a volume counts": {func(p *corev1.Pod) { limit(p, 0, "1Mi"); empty(p, corev1.EmptyDirVolumeSource{}) },
			map[string]int{layer: 600 * kib, volume: 600 * kib}, ofPod + "1Mi. "},
		"not one in memory": {func(p *corev1.Pod) {
			limit(p, 0, "1Mi")
			empty(p, corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory})
		}, map[string]int{layer: 600 * kib, volume: 600 * kib}, ""},
		"one of two containers": {func(p *corev1.Pod) { limit(p, 0, "1Mi"); limit(p, 1, "3Mi") }, map[string]int{layer: 1100 * kib},
			`Container app exceeded its local ephemeral storage limit "1Mi". `},
		"one without limit counts to the pod's": {func(p *corev1.Pod) { limit(p, 0, "1Mi") }, map[string]int{other: 1100 * kib}, ofPod + "1Mi. "},
		"the volume first": {func(p *corev1.Pod) {
			limit(p, 0, "1Mi")
			empty(p, corev1.EmptyDirVolumeSource{SizeLimit: new(quantity("512Ki"))})
		}, map[string]int{layer: 1100 * kib, volume: 600 * kib}, `Usage of EmptyDir volume "cache" exceeds the limit "512Ki". `},
		"not a critical one": {func(p *corev1.Pod) { limit(p, 0, "1Mi"); p.Spec.Priority = new(int32(systemCritical)) },
			map[string]int{layer: 1100 * kib}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBenchWith(t, func(_ *bench, c *Config) {
				c.DiskLayers, c.MountMemory = true, func(string, int64) error { return nil }
			})
			pod := b.create(testPod("web", func(p *corev1.Pod) {
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "other", Image: "app"})
				tt.edit(p)
			}))
			b.await("web", "ready", ready)
			disk := b.k.podDisk(string(pod.UID))
			for _, c := range []*fakeContainer{b.runtime.next(t), b.runtime.next(t)} {
				if want := filepath.Join(disk, "layers", c.spec.Name, "1"); c.spec.Upper != want {
					t.Errorf("its layer is %q, want %q", c.spec.Upper, want)
				}
			}
			for dir, size := range tt.files {
				dir = filepath.Join(disk, dir)
				if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "file"), make([]byte, size), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := b.k.byUID(pod.UID).overfull(t.Context()); got != tt.want || err != nil {
				t.Errorf("got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}
