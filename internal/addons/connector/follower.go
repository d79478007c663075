package connector

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/azure/aci"
)

// Azure tells nothing by itself: it is asked, often while something is about to change, and else at leisure.
const (
	eager     = 50 * time.Millisecond
	eagerness = 30 * time.Second
	leisure   = time.Second
)

// A follower makes one pod's group, brings the group's state to the pod's status, and deletes the group in the end.
type follower struct {
	c     *connector
	after *follower     // of the pod that had the name before; nil: none
	done  chan struct{} // closes when nothing of the group is left
	wake  chan struct{}

	mu       sync.Mutex
	pod      *corev1.Pod // never changed in place
	made     bool        // the group is there
	refused  string      // why no group is made
	told     []aci.Event // the group's warnings that the pod has as events
	deleting bool
	grace    time.Duration
}

// startNew starts a follower for a pod whose group does not exist yet.
func (c *connector) startNew(pod *corev1.Pod, after *follower) { c.start(pod, after, false) }

func (c *connector) start(pod *corev1.Pod, after *follower, made bool) {
	f := &follower{c: c, after: after, pod: pod, made: made, done: make(chan struct{}), wake: make(chan struct{}, 1)}
	c.mu.Lock()
	c.known[key(pod.Namespace, pod.Name)] = f
	c.mu.Unlock()
	c.wait.Go(func() { f.run(c.ctx) })
}

func (f *follower) currentPod() *corev1.Pod {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pod
}

func (f *follower) wakeUp() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// update takes a new version of the pod. Nothing of a group can be changed.
func (f *follower) update(pod *corev1.Pod) {
	f.mu.Lock()
	old := f.pod
	f.pod = pod
	f.mu.Unlock()
	for i, c := range pod.Spec.Containers {
		if i < len(old.Spec.Containers) && old.Spec.Containers[i].Image != c.Image {
			f.event(corev1.EventTypeWarning, "NotSupported",
				"image of container "+c.Name+": a container group cannot be changed; delete the pod to have it made anew")
		}
	}
	if len(pod.Spec.EphemeralContainers) > len(old.Spec.EphemeralContainers) {
		f.event(corev1.EventTypeWarning, "NotSupported", "ephemeral containers: nothing can be added to a container group; use kubectl exec")
	}
}

func (f *follower) delete(grace int64) {
	f.mu.Lock()
	f.deleting, f.grace = true, time.Duration(grace)*time.Second
	f.mu.Unlock()
	f.wakeUp()
}

func (f *follower) event(kind, reason, message string) {
	f.c.recorder.Event(f.currentPod(), kind, reason, message)
}

// run follows the pod until nothing of it is left, or ctx ends.
func (f *follower) run(ctx context.Context) {
	if f.after != nil {
		select {
		case <-f.after.done:
		case <-ctx.Done():
			return
		}
	}
	begin := time.Now()
	for {
		f.mu.Lock()
		deleting := f.deleting
		f.mu.Unlock()
		pause := leisure
		switch {
		case deleting:
			if f.end(ctx) {
				close(f.done)
				return
			}
		case f.refusal() != "":
			pause = time.Hour // until a client deletes the pod
		default:
			if settled := f.reconcile(ctx); !settled && time.Since(begin) < eagerness {
				pause = eager
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case <-time.After(pause):
		}
	}
}

func (f *follower) refusal() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refused
}

// reconcile creates the group or reads its state, and writes that to the pod's status. settled reports that no change is expected.
func (f *follower) reconcile(ctx context.Context) (settled bool) {
	f.mu.Lock()
	made := f.made
	f.mu.Unlock()
	var g aci.ContainerGroup
	var err error
	if made {
		g, err = f.get(ctx)
	} else {
		g, err = f.make(ctx)
	}
	switch {
	case ctx.Err() != nil:
		return true
	case made && aci.IsNotFound(err): // another client deleted it: create it again
		f.mu.Lock()
		f.made = false
		f.mu.Unlock()
		f.event(corev1.EventTypeWarning, "ContainerGroupLost", "the container group no longer exists; recreating it")
		return false
	case err != nil:
		f.c.cfg.Log.Error("container group", "group", f.name(), "err", err)
		return true // Azure is not to be pressed when it does not answer
	case f.refusal() != "":
		return true
	}
	f.relay(&g)
	f.publish(ctx, func(pod *corev1.Pod, base corev1.PodStatus) corev1.PodStatus {
		return podStatus(base, pod, &g, f.c.cfg.Address.String(), metav1.Now().Rfc3339Copy())
	})
	return phase(&g) != corev1.PodPending && allReady(&g)
}

// get asks for the pod's group. One of its name that is another pod's is not it.
func (f *follower) get(ctx context.Context) (aci.ContainerGroup, error) {
	g, err := f.c.cfg.ACI.Get(ctx, f.name())
	if err == nil && g.Tags[tagUID] != string(f.currentPod().UID) {
		return g, aci.NotFound(f.name())
	}
	return g, err
}

// relay tells each of the group's warnings on the pod, once.
func (f *follower) relay(g *aci.ContainerGroup) {
	var now []aci.Event
	if v := g.Properties.InstanceView; v != nil {
		now = v.Events
	}
	var warnings []aci.Event
	for _, e := range now {
		if e.Type != corev1.EventTypeWarning {
			continue
		}
		warnings = append(warnings, e)
		if !slices.ContainsFunc(f.told, func(o aci.Event) bool { return o.Name == e.Name && o.Message == e.Message }) {
			f.event(corev1.EventTypeWarning, e.Name, e.Message)
		}
	}
	f.told = warnings
}

func allReady(g *aci.ContainerGroup) bool {
	for _, c := range g.Properties.Containers {
		if v := c.Properties.InstanceView; v == nil || !v.Ready {
			return false
		}
	}
	return true
}

func (f *follower) name() string {
	pod := f.currentPod()
	return groupName(pod.Namespace, pod.Name)
}

// make asks for the group. What will never be granted is refused on the pod.
func (f *follower) make(ctx context.Context) (aci.ContainerGroup, error) {
	pod := f.currentPod()
	if why := refusals(pod); len(why) > 0 {
		f.reportRefusal(ctx, "a container group cannot have "+strings.Join(why, "; nor "))
		return aci.ContainerGroup{}, nil
	}
	volumes, err := f.c.volumes(ctx, pod)
	if err != nil {
		f.event(corev1.EventTypeWarning, "FailedMount", err.Error())
		return aci.ContainerGroup{}, err
	}
	group := f.c.cfg.newGroup(pod, volumes)
	f.c.secure(pod, &group)
	g, err := f.c.cfg.ACI.Put(ctx, group)
	var of *aci.Error
	if errors.As(err, &of) && of.Status == http.StatusBadRequest {
		f.reportRefusal(ctx, of.Error())
		return g, nil
	}
	if err != nil {
		f.event(corev1.EventTypeWarning, "ProviderCreateFailed", err.Error())
		return g, err
	}
	f.mu.Lock()
	f.made = true
	f.mu.Unlock()
	f.event(corev1.EventTypeNormal, "ProviderCreateSuccess", "Create pod in provider successfully")
	if what := ignored(pod); len(what) > 0 {
		f.event(corev1.EventTypeWarning, "NotSupported", ignoredMessage(what))
	}
	f.c.cfg.Log.Info("made container group", "group", group.Name)
	return g, nil
}

// reportRefusal records on the pod why it has no group. The pod stays Pending, as an unschedulable pod does. A pod that never restarts
// fails.
func (f *follower) reportRefusal(ctx context.Context, why string) {
	f.mu.Lock()
	f.refused = why
	f.mu.Unlock()
	f.event(corev1.EventTypeWarning, "ProviderCreateFailed", why)
	f.c.cfg.Log.Warn("pod refused", "pod", key(f.currentPod().Namespace, f.currentPod().Name), "why", why)
	f.publish(ctx, func(pod *corev1.Pod, base corev1.PodStatus) corev1.PodStatus {
		base.Phase, base.Reason, base.Message = corev1.PodPending, "ProviderFailed", why
		if pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
			base.Phase = corev1.PodFailed
		}
		return base
	})
}

// publish writes the pod's status unless the API server has it.
func (f *follower) publish(ctx context.Context, status func(pod *corev1.Pod, base corev1.PodStatus) corev1.PodStatus) {
	now := f.c.fromAPI(f.currentPod())
	if now == nil {
		return
	}
	next := now.DeepCopy()
	next.Status = status(now, *now.Status.DeepCopy())
	if equality.Semantic.DeepEqual(now.Status, next.Status) {
		return
	}
	// With the version that it is made from: the cache may be old, and then the next look is better.
	_, err := f.c.cfg.Client.CoreV1().Pods(next.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		f.c.cfg.Log.Error("write status", "pod", key(next.Namespace, next.Name), "err", err)
	}
}

// end deletes the group and then the pod; false to try again. Another pod's group can have the name: ns-pod can be read in more than one
// way. It stays.
func (f *follower) end(ctx context.Context) bool {
	f.mu.Lock()
	pod, grace := f.pod, f.grace
	f.mu.Unlock()
	if err := f.c.cfg.ACI.Delete(ctx, f.name(), string(pod.UID), grace); err != nil && !aci.IsNotFound(err) && !aci.IsConflict(err) {
		if ctx.Err() == nil {
			f.c.cfg.Log.Error("delete container group", "group", f.name(), "err", err)
		}
		return false
	}
	if err := f.c.deleteObject(ctx, pod); err != nil {
		if ctx.Err() == nil {
			f.c.cfg.Log.Error("delete pod", "pod", key(pod.Namespace, pod.Name), "err", err)
		}
		return false
	}
	f.c.cfg.Log.Info("deleted container group", "group", f.name())
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if k := key(pod.Namespace, pod.Name); f.c.known[k] == f {
		delete(f.c.known, k)
	}
	return true
}
