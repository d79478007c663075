package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/realnode"
	"packetwalk.dev/internal/pods/source"
)

// sandboxDir is where the sandbox of a pod whose containers share a process namespace is: a container that does nothing but be its process
// number 1. Other pods have none.
func (w *worker) sandboxDir() string { return filepath.Join(w.dir, "sandbox") }

// shareProcesses is the directory of the container whose process namespace the pod's containers share, which is started where it does not
// run; "" where each has one of its own.
func (w *worker) shareProcesses(ctx context.Context) (string, error) {
	pod := w.pod()
	if !isTrue(pod.Spec.ShareProcessNamespace) {
		return "", nil
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
