package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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

// evict has all pods measured, and ends those that have written more to the disk than they may. It waits for none: one may have written
// millions of files.
func (k *Kubelet) evict(ctx context.Context) {
	for _, w := range k.workers() {
		if !w.measuring.CompareAndSwap(false, true) {
			continue // since the last time
		}
		k.group.Go(func() {
			defer w.measuring.Store(false)
			message, err := w.overfull(ctx)
			if message != "" {
				w.do(func(m *machine, _ time.Time) { m.evicted(message) })
			}
			if err != nil && ctx.Err() == nil {
				k.cfg.Log("pod %s: %v", podRef(w.pod()), err)
			}
		})
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
// and words (pkg/kubelet/eviction, localStorageEviction). What is in memory does not count, and what a pod has made so that it cannot be
// measured counts as too much.
func (w *worker) overfull(ctx context.Context) (message string, err error) {
	w.mu.Lock()
	pod, ended := w.m.pod, w.m.terminal() || !w.m.volumes.ready
	w.mu.Unlock()
	if ended || pod.Spec.Priority != nil && *pod.Spec.Priority >= systemCritical {
		return "", nil
	}
	m := meter{limit: math.MaxInt64, names: mostNames, linked: map[uint64]bool{}}
	limit, limited := requests.PodLimits(pod, requests.PodResourcesOptions{})[corev1.ResourceEphemeralStorage]
	if limited {
		m.limit = limit.Value()
	}
	release, err := takeBoth(ctx, w.k.measures, w.k.cfg.Shared.measures, mostTime)
	if err != nil {
		return "", err
	}
	defer release()
	ctx, cancel := context.WithTimeoutCause(ctx, mostTime, errLong)
	defer cancel()
	v := volumes{dir: w.volumesDir()}
	for _, spec := range pod.Spec.Volumes {
		e := spec.EmptyDir
		if e == nil || e.Medium == corev1.StorageMediumMemory {
			continue
		}
		most, words := limit, ofPod(limit)
		switch bound := e.SizeLimit != nil && e.SizeLimit.Sign() > 0; {
		case bound:
			most, words = *e.SizeLimit, fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q", spec.Name, e.SizeLimit.String())
		case !limited:
			continue
		}
		used, err := m.measure(ctx, v.path("empty-dir", spec.Name), most.Value())
		switch {
		case used > most.Value() || errors.Is(err, errUnmeasured):
			return exceeded(words, err), nil
		case m.bytes > m.limit:
			return exceeded(ofPod(limit), nil), nil
		case err != nil:
			return "", err
		}
	}
	if !limited {
		return "", nil
	}
	containers, err := w.containersUsage(ctx, &m)
	if m.bytes > m.limit || errors.Is(err, errUnmeasured) {
		return exceeded(ofPod(limit), err), nil
	}
	for _, c := range pod.Spec.Containers {
		if most := c.Resources.Limits.StorageEphemeral(); most.Sign() > 0 && containers[c.Name] > most.Value() {
			return exceeded(fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q", c.Name, most.String()), nil), err
		}
	}
	return "", err
}

func ofPod(limit resource.Quantity) string {
	return "Pod ephemeral local storage usage exceeds the total limit of containers " + limit.String()
}

// exceeded ends upstream's words, with why it was not measured.
func exceeded(words string, err error) string {
	if err != nil {
		words += ": " + err.Error()
	}
	return words + ". "
}

// containersUsage is what each container takes of the disk by its logs and, unless they are in memory, its writable layers, in bytes.
func (w *worker) containersUsage(ctx context.Context, m *meter) (map[string]int64, error) {
	used := map[string]int64{}
	w.mu.Lock()
	for _, c := range w.m.containers {
		used[c.Name] = 0
	}
	w.mu.Unlock()
	for name := range used {
		for _, kind := range []string{"logs", "layers"} {
			n, err := m.measure(ctx, filepath.Join(w.disk, kind, name), m.limit)
			if used[name] += n; err != nil {
				return used, err
			}
		}
	}
	return used, nil
}

// What a pod may make that is measured: more of it takes too long, or too many descriptors.
const (
	mostDeep   = 200 // directories in each other
	mostNames  = 10_000_000
	mostLinked = 100_000         // files of several names; more count for each name
	mostTime   = 2 * time.Minute // with nobody to wait for
)

var (
	errUnmeasured = errors.New("it cannot be measured")
	errDeep       = fmt.Errorf("%w: it has more than %d directories in each other", errUnmeasured, mostDeep)
	errMany       = fmt.Errorf("%w: it has more than %d files", errUnmeasured, mostNames)
	errLong       = fmt.Errorf("%w: it takes longer than %v", errUnmeasured, mostTime)
)

// A meter adds up what all files of a pod take of the disk, those with several names once.
type meter struct {
	bytes  int64
	limit  int64 // the pod's
	most   int64 // more than that need not be told from even more
	names  int   // that it still looks at
	linked map[uint64]bool
}

// measure is how much of the disk a directory takes, in bytes, or something above most, or above what is left of the pod's limit. The error
// is one of errUnmeasured where the pod has made it so. What containers change meanwhile may count or not.
func (m *meter) measure(ctx context.Context, dir string, most int64) (used int64, err error) {
	before := m.bytes
	m.most = before + min(most, m.limit-before)
	err = m.directory(ctx, unix.AT_FDCWD, dir, 0)
	return m.bytes - before, err
}

// directory measures a directory, by its name in one that is open, as far as it is one. It takes names some at a time: a container may have
// made millions.
func (m *meter) directory(ctx context.Context, in int, name string, depth int) error {
	fd, err := unix.Openat(in, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP): // it is not there, or is another by now
		return nil
	case err != nil:
		return &os.PathError{Op: "measure", Path: name, Err: err}
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	if depth > mostDeep {
		return errDeep
	}
	for ctx.Err() == nil && m.bytes <= m.most {
		names, err := dir.Readdirnames(1000)
		if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		for _, below := range names {
			if err == nil {
				err = m.file(ctx, fd, below, depth)
			}
		}
		if err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

func (m *meter) file(ctx context.Context, in int, name string, depth int) error {
	if m.names--; m.names < 0 {
		return errMany
	}
	var st unix.Stat_t
	there := unix.Fstatat(in, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
	if !there || m.linked[st.Ino] { // or it was counted by another name
		return nil
	}
	m.bytes += st.Blocks * 512
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return m.directory(ctx, in, name, depth+1)
	case st.Nlink > 1 && len(m.linked) < mostLinked:
		m.linked[st.Ino] = true
	}
	return nil
}
