package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/realnode"
	"packetwalk.dev/internal/pods/source"
)

// sandboxDir is where the sandbox of a pod whose containers share a process namespace is: a container that does nothing but be its process
// number 1. Other pods have none.
func (w *worker) sandboxDir() string { return filepath.Join(w.dir, "sandbox") }

// shareProcesses is the directory of the container whose process namespace a container shares: the pod's sandbox, which is started where it
// does not run, or an ephemeral container's target; "" where it has one of its own.
func (w *worker) shareProcesses(ctx context.Context, c *containerState) (string, error) {
	pod := w.pod()
	if !isTrue(pod.Spec.ShareProcessNamespace) {
		return w.targeted(pod, c)
	}
	w.sharing.Lock()
	defer w.sharing.Unlock()
	dir := w.sandboxDir()
	err := w.findSandbox()
	if err == nil {
		select {
		case <-w.processes.Done():
			err = w.processes.Remove()
		default:
			return dir, nil
		}
	}
	if err == nil || errors.Is(err, container.ErrNoContainer) {
		_ = os.RemoveAll(dir) // of a start that a crash cut off
		w.processes, err = w.startSandbox(ctx, dir)
	}
	if err != nil {
		return "", fmt.Errorf("sandbox of the pod's processes: %w", err)
	}
	return dir, nil
}

// targeted is the directory of the container whose processes an ephemeral container is to see (kubectl debug --target), "" for none.
func (w *worker) targeted(pod *corev1.Pod, c *containerState) (string, error) {
	i := slices.IndexFunc(pod.Spec.EphemeralContainers, func(e corev1.EphemeralContainer) bool { return e.Name == c.Name })
	if i < 0 || pod.Spec.EphemeralContainers[i].TargetContainerName == "" {
		return "", nil
	}
	name := pod.Spec.EphemeralContainers[i].TargetContainerName
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.runs[name]
	if r == nil {
		return "", fmt.Errorf("unable to find target container %s", name)
	}
	return r.c.Spec().Dir, nil
}

func (w *worker) startSandbox(ctx context.Context, dir string) (Container, error) {
	image, err := w.k.cfg.Resolve(ctx, source.Request{Ref: realnode.SandboxImage, Never: true})
	if err != nil {
		return nil, err
	}
	s := container.Spec{ID: newID(), Name: "sandbox", Dir: dir, NetNS: w.netns(), Hostname: hostname(w.pod(), w.k.name, w.k.cfg.ClusterDomain)}
	if err := image.Apply(&s); err != nil {
		return nil, err
	}
	return w.k.cfg.Runtime.Start(ctx, s)
}

// findSandbox has the sandbox in w.processes, the one of a kubelet before this one where this one has made none. w.sharing is held.
func (w *worker) findSandbox() (err error) {
	if w.processes == nil {
		w.processes, err = w.k.cfg.Runtime.Adopt(w.sandboxDir())
	}
	return err
}

// endSandbox takes the sandbox of the pod's processes away, if it has one.
func (w *worker) endSandbox() error {
	if !isTrue(w.pod().Spec.ShareProcessNamespace) {
		return nil
	}
	w.sharing.Lock()
	defer w.sharing.Unlock()
	err := w.findSandbox()
	if errors.Is(err, container.ErrNoContainer) {
		return nil
	}
	if err == nil {
		err = w.processes.Remove()
	}
	if err != nil {
		return fmt.Errorf("sandbox of the pod's processes: %w", err)
	}
	return nil
}
