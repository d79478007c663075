package kubelet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	requests "k8s.io/component-helpers/resource"
)

// evictionPeriod is how often pods' files are measured (pkg/kubelet, evictionMonitoringPeriod).
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

// evict ends the pods that have written more to the disk than they may.
func (k *Kubelet) evict(ctx context.Context) {
	for _, w := range k.workers() {
		if message := w.overfull(ctx); message != "" {
			w.do(func(m *machine, _ time.Time) { m.evicted(message) })
		}
	}
}

const (
	reasonEvicted = "Evicted"
	evictedGrace  = time.Second // for its containers (pkg/kubelet/eviction, immediateEvictionGracePeriodSeconds)
	// systemCritical is the priority from which on pods are not evicted (pkg/apis/scheduling, SystemCriticalPriority).
	systemCritical = 2_000_000_000
)

// evicted ends the pod (pkg/kubelet/eviction).
func (m *machine) evicted(message string) {
	if m.terminal() {
		return
	}
	m.emit(corev1.EventTypeWarning, reasonEvicted, message, nil)
	m.failure = &event{reason: reasonEvicted, message: message}
}

// overfull tells what of the pod takes more of the disk than it may, "" for nothing: a volume, the pod, a container, in upstream's order
// and words (pkg/kubelet/eviction, localStorageEviction). What is in memory does not count.
func (w *worker) overfull(ctx context.Context) string {
	w.mu.Lock()
	pod, ended := w.m.pod, w.m.terminal() || !w.m.volumes.ready
	w.mu.Unlock()
	if ended || pod.Spec.Priority != nil && *pod.Spec.Priority >= systemCritical {
		return ""
	}
	limit, limited := requests.PodLimits(pod, requests.PodResourcesOptions{})[corev1.ResourceEphemeralStorage]
	v, total := volumes{dir: w.volumesDir()}, int64(0)
	for _, spec := range pod.Spec.Volumes {
		e := spec.EmptyDir
		if e == nil || e.Medium == corev1.StorageMediumMemory {
			continue
		}
		bound := e.SizeLimit != nil && e.SizeLimit.Sign() > 0
		if !bound && !limited {
			continue
		}
		used := usage(ctx, v.path("empty-dir", spec.Name))
		if total += used; bound && used > e.SizeLimit.Value() {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", spec.Name, e.SizeLimit.String())
		}
	}
	if !limited {
		return ""
	}
	containers := w.containersUsage(ctx)
	for _, used := range containers {
		total += used
	}
	if total > limit.Value() {
		return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
	}
	for _, c := range pod.Spec.Containers {
		if most := c.Resources.Limits.StorageEphemeral(); most.Sign() > 0 && containers[c.Name] > most.Value() {
			return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, most.String())
		}
	}
	return ""
}

// containersUsage is what each container takes of the disk by its logs and, unless they are in memory, its writable layers, in bytes.
func (w *worker) containersUsage(ctx context.Context) map[string]int64 {
	used := map[string]int64{}
	w.mu.Lock()
	for _, c := range w.m.containers {
		used[c.Name] = 0
	}
	w.mu.Unlock()
	for name := range used {
		used[name] = usage(ctx, filepath.Join(w.disk, "logs", name)) + usage(ctx, filepath.Join(w.disk, "layers", name))
	}
	return used
}

// How long one directory is measured, and how deep: what is deeper does not count, and costs whoever looks for it.
const (
	measureTime  = 5 * time.Second
	measureDepth = 200
)

// usage is how much of the disk a directory takes, in bytes, as far as that is found out in time. What containers change meanwhile, and
// what cannot be read, does not count.
func usage(ctx context.Context, dir string) int64 {
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	m := meter{linked: map[uint64]bool{}}
	if fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
		m.add(ctx, fd, 0)
	}
	return m.bytes
}

// A meter adds up what files take of the disk, those with several names once.
type meter struct {
	bytes  int64
	linked map[uint64]bool // by inode
}

// add measures an open directory, and closes it. It takes names some at a time: a container may have made millions.
func (m *meter) add(ctx context.Context, fd, depth int) {
	dir := os.NewFile(uintptr(fd), "measured")
	defer dir.Close()
	for ctx.Err() == nil {
		names, err := dir.Readdirnames(1000)
		if err != nil {
			return
		}
		for _, name := range names {
			var st unix.Stat_t
			if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue
			}
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				m.file(&st)
				continue
			}
			m.bytes += st.Blocks * 512
			if depth == measureDepth || ctx.Err() != nil {
				continue
			}
			if below, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
				m.add(ctx, below, depth+1)
			}
		}
	}
}

func (m *meter) file(st *unix.Stat_t) {
	if st.Nlink > 1 {
		if m.linked[st.Ino] {
			return
		}
		m.linked[st.Ino] = true
	}
	m.bytes += st.Blocks * 512
}
