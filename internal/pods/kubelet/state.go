package kubelet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/tree"
	"packetwalk.dev/internal/pods/container"
)

// A podState is a pod's state file, state.json in its directory: what the next kubelet needs to take the pod over.
type podState struct {
	SandboxID  string            `json:"sandboxID,omitempty"`
	Sandbox    bool              `json:"sandbox"` // the sandbox is set up
	Down       bool              `json:"down"`    // and was taken down for good
	IPs        []string          `json:"ips,omitempty"`
	StartTime  time.Time         `json:"startTime"`
	Deadline   time.Time         `json:"deadline,omitzero"` // of a pod that is being deleted
	Failure    *failureState     `json:"failure,omitempty"`
	Containers []*containerState `json:"containers"`
}

type failureState struct{ Reason, Message string }

const (
	stateName = "state.json"
	podName   = "pod.json"
)

// save writes the state file if it has changed. w.mu is held.
func (w *worker) save() {
	if w.gone {
		return
	}
	m := w.m
	s := podState{SandboxID: w.sandboxID, Sandbox: m.sandbox.ready, Down: m.teardown.ready, IPs: m.ips, StartTime: m.startTime,
		Containers: m.containers}
	if m.deleting {
		s.Deadline = m.deadline
	}
	if m.failure != nil {
		s.Failure = &failureState{m.failure.reason, m.failure.message}
	}
	b, err := json.Marshal(s)
	if err != nil || bytes.Equal(b, w.saved) {
		return
	}
	if w.saved == nil || w.savedPod != m.pod {
		if err = w.writePod(m.pod); err != nil {
			w.k.cfg.Log("pod %s: write %s: %v", podRef(m.pod), podName, err)
		}
		w.savedPod = m.pod
	}
	if err := atomicfile.Write(filepath.Join(w.dir, stateName), b, 0o600); err != nil {
		w.k.cfg.Log("pod %s: write %s: %v", podRef(m.pod), stateName, err)
		return
	}
	w.saved = b
}

func (w *worker) writePod(pod *corev1.Pod) error {
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return err
	}
	b, err := json.Marshal(pod)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(w.dir, podName), b, 0o600)
}

// restore finds the pods that a kubelet before this one left, with their containers.
func (k *Kubelet) restore(ctx context.Context) error {
	entries, err := os.ReadDir(filepath.Join(k.cfg.Dir, "pods"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the pods that ran before: %w", err)
	}
	var list []*worker
	for _, e := range entries {
		w, err := k.restorePod(ctx, types.UID(e.Name()))
		if errors.Is(err, fs.ErrNotExist) { // cut off before anything of it was made
			_ = errors.Join(tree.Remove(k.podDisk(e.Name())), os.RemoveAll(k.podDir(e.Name())))
			continue
		}
		if err != nil {
			k.cfg.Log("pod %s: cannot be taken over: %v", e.Name(), err)
			continue
		}
		list = append(list, w)
	}
	// Of two pods of one name the newer is the one that the name stands for.
	slices.SortFunc(list, func(a, b *worker) int { return a.pod().CreationTimestamp.Compare(b.pod().CreationTimestamp.Time) })
	for _, w := range list {
		k.insert(w)
	}
	return nil
}

func (k *Kubelet) restorePod(ctx context.Context, uid types.UID) (*worker, error) {
	dir := k.podDir(string(uid))
	var pod corev1.Pod
	var s podState
	for name, into := range map[string]any{podName: &pod, stateName: &s} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = json.Unmarshal(b, into)
		}
		if err != nil {
			return nil, err
		}
	}
	w := newWorker(k, &pod, nil)
	w.sandboxID, w.restored = s.SandboxID, true
	m := w.m
	m.startTime, m.ips = s.StartTime, s.IPs
	m.sandbox.ready, m.teardown.ready = s.Sandbox, s.Down
	if s.Failure != nil {
		m.failure = &event{reason: s.Failure.Reason, message: s.Failure.Message}
	}
	if !s.Deadline.IsZero() {
		m.delete(s.Deadline)
	}
	m.containers = s.Containers
	m.bind(&pod)
	if err := w.dropHalfSandbox(ctx); err != nil {
		k.cfg.Log("pod %s: clean up a sandbox that was not ready: %v", podRef(&pod), err)
	}
	for _, c := range m.containers {
		w.adopt(ctx, c)
	}
	return w, nil
}

// dropHalfSandbox takes away what is left of a CNI ADD that nobody saw the end of.
func (w *worker) dropHalfSandbox(ctx context.Context) error {
	if w.m.sandbox.ready || w.m.terminal() {
		return nil
	}
	return w.removeSandbox(ctx)
}

// adopt finds a container that was starting or running.
func (w *worker) adopt(ctx context.Context, c *containerState) {
	if !c.live() {
		return
	}
	found, err := w.k.cfg.Runtime.Adopt(w.containerDir(c, c.Attempt))
	switch {
	case err == nil:
		r := &run{c: found}
		w.runs[c.Name] = r
		if c.Phase == phaseStarting {
			w.m.started(c, found.Spec(), found.StartedAt())
			w.m.takeEvents()
		}
		s := w.snapshot(c)
		w.watch(ctx, c, s, r, c.ID)
		w.probe(ctx, c, s, r)
	case c.Phase == phaseStarting:
		c.Phase, c.Attempt = phaseWaiting, c.Attempt-1
		if !errors.Is(err, container.ErrNoContainer) {
			w.k.cfg.Log("pod %s: adopt container %s: %v", podRef(w.m.pod), c.Name, err)
		}
	default:
		now := w.k.cfg.Clock.Now()
		w.m.exited(c, termination{ID: c.ID, Code: 137, Reason: container.ReasonUnknown, StartedAt: c.StartedAt, Finished: now,
			Message: "The container could not be located when the pod was taken over: " + err.Error()})
	}
}
