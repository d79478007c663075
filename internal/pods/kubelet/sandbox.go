package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/pods/container"
)

// A sandbox is a container that does nothing but be the process number 1 of a process namespace: of the node, in which its pods' processes
// are and below which their namespaces are, or of a pod whose containers share one.
type sandbox struct {
	k   *Kubelet
	dir string

	mu sync.Mutex
	c  Container // the one that runs or ran; nil: not known yet, or none
}

// running has the sandbox run, started by a spec where it does not, and gives its directory.
func (s *sandbox) running(ctx context.Context, spec container.Spec) (dir string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err = s.find(); err == nil {
		select {
		case <-s.c.Done():
			err = s.c.Remove()
		default:
			return s.dir, nil
		}
	}
	if err == nil || errors.Is(err, container.ErrNoContainer) {
		_ = os.RemoveAll(s.dir) // of a start that a crash cut off
		s.c, err = s.start(ctx, spec)
	}
	if err != nil {
		return "", fmt.Errorf("sandbox of processes: %w", err)
	}
	return s.dir, nil
}

// find has the sandbox in s.c, the one of a kubelet before this one where this one has made none. s.mu is held.
func (s *sandbox) find() (err error) {
	if s.c == nil {
		s.c, err = s.k.cfg.Runtime.Adopt(s.dir)
	}
	return err
}

func (s *sandbox) start(ctx context.Context, spec container.Spec) (Container, error) {
	image, err := s.k.cfg.Sandbox(ctx)
	if err != nil {
		return nil, err
	}
	spec.ID, spec.Dir = newID(), s.dir
	if err := image.Apply(&spec); err != nil {
		return nil, err
	}
	return s.k.cfg.Runtime.Start(ctx, spec)
}

// end takes the sandbox away, if there is one.
func (s *sandbox) end() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.find()
	if errors.Is(err, container.ErrNoContainer) {
		return nil
	}
	if err == nil {
		err = s.c.Remove()
	}
	if err != nil {
		return fmt.Errorf("sandbox of processes: %w", err)
	}
	return nil
}

// holdProcesses has the node's process namespace be there, and gives the directory of what holds it.
func (k *Kubelet) holdProcesses(ctx context.Context) (dir string, err error) {
	return k.processes.running(ctx, container.Spec{Name: "node", NetNS: k.cfg.NodeNS.Path(), Hostname: k.name})
}

// placeProcesses says in whose process namespace a container's processes are: in the node's with hostPID, in the pod's where its containers
// share one, in that of an ephemeral container's target, and else in one of its own. All but the first are below the node's.
func (w *worker) placeProcesses(ctx context.Context, c *containerState, s *container.Spec) error {
	node, err := w.k.holdProcesses(ctx)
	if err != nil {
		return err
	}
	pod := w.pod()
	switch {
	case pod.Spec.HostPID:
		s.ProcessesOf = node
	case isTrue(pod.Spec.ShareProcessNamespace):
		s.ProcessesOf, err = w.processes.running(ctx,
			container.Spec{Name: "sandbox", NetNS: w.netns(), Hostname: s.Hostname, ProcessesBelow: node})
	default:
		s.ProcessesBelow = node
		s.ProcessesOf, err = w.targeted(pod, c)
	}
	return err
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
