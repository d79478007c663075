package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// evictionPeriod is how often volumes are measured (pkg/kubelet, evictionMonitoringPeriod).
const evictionPeriod = 10 * time.Second

// measure evicts pods again and again until ctx ends.
func (k *Kubelet) measure(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-k.cfg.Clock.After(evictionPeriod):
			k.evict(ctx)
		}
	}
}

// evict ends the pods that have written more to a volume than its sizeLimit.
func (k *Kubelet) evict(ctx context.Context) {
	for _, w := range k.workers() {
		if message := w.overfull(ctx); message != "" {
			w.do(func(m *machine, _ time.Time) { m.evicted(message) })
		}
	}
}

// evicted ends the pod (pkg/kubelet/eviction).
func (m *machine) evicted(message string) {
	if m.terminal() {
		return
	}
	m.emit(corev1.EventTypeWarning, "Evicted", message, nil)
	m.failure = &event{reason: "Evicted", message: message}
}

// overfull tells which volume of the pod holds more than it may, "" for none. Those in memory cannot.
func (w *worker) overfull(ctx context.Context) string {
	w.mu.Lock()
	pod, ended := w.m.pod, w.m.terminal() || !w.m.volumes.ready
	w.mu.Unlock()
	if ended {
		return ""
	}
	v := volumes{dir: w.volumesDir()}
	for _, spec := range pod.Spec.Volumes {
		e := spec.EmptyDir
		if e == nil || e.Medium == corev1.StorageMediumMemory || e.SizeLimit == nil || e.SizeLimit.IsZero() {
			continue
		}
		if over(ctx, v.path("empty-dir", spec.Name), e.SizeLimit) {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", spec.Name, e.SizeLimit.String())
		}
	}
	return ""
}

// How long one volume is measured, and how deep: what is deeper does not count, and costs whoever looks for it.
const (
	measureTime  = 5 * time.Second
	measureDepth = 200
)

var errOver = errors.New("it is over its limit")

// over tells whether a directory takes more of the disk than it may. What containers change meanwhile, and what cannot be read, does not
// count.
func over(ctx context.Context, dir string, limit *resource.Quantity) bool {
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false
	}
	defer root.Close()
	left, linked := limit.Value(), map[uint64]bool{}
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return nil //nolint:nilerr // it does not count
		case d.IsDir() && strings.Count(name, "/") >= measureDepth:
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // it is gone
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || st.Nlink > 1 && !d.IsDir() && linked[st.Ino] {
			return nil
		}
		if st.Nlink > 1 && !d.IsDir() {
			linked[st.Ino] = true
		}
		if left -= st.Blocks * 512; left < 0 {
			return errOver
		}
		return nil
	})
	return errors.Is(err, errOver)
}
