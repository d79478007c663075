package kubelet

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// A kubelet's status of a pod can be overwritten: the node lifecycle controller sets Ready to False on each pod of a node whose lease has
// run out, and leaves it to the kubelet to take that back. The library writes a status only when the kubelet has a new one, so that the
// mark would stay for good. What is here looks at each version of a pod that the API server has, and puts right what is the kubelet's.

// A repairQueue holds the pods whose status in the API server is not the kubelet's.
type repairQueue = workqueue.TypedRateLimitingInterface[types.UID]

// watchStatus hears of pods that change in the API server until the function that it returns is called.
func (k *Kubelet) watchStatus(q repairQueue) (stop func(), err error) {
	look := func(pod *corev1.Pod) {
		if w := k.byUID(pod.UID); w != nil && w.correction(pod) != nil {
			q.AddAfter(pod.UID, w.underway())
		}
	}
	informer := k.pods.Informer()
	reg, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { look(o.(*corev1.Pod)) },
		UpdateFunc: func(old, o any) {
			was, is := old.(*corev1.Pod), o.(*corev1.Pod)
			if w := k.byUID(is.UID); w != nil && !slices.Equal(missingGates(is, was.Status.Conditions), missingGates(is, is.Status.Conditions)) {
				w.kick() // whether the pod is ready hangs on it
			}
			look(is)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	return func() { _ = informer.RemoveEventHandler(reg) }, nil
}

// repair puts right the statuses in the queue until ctx ends.
func (k *Kubelet) repair(ctx context.Context) error {
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.UID]())
	stop, err := k.watchStatus(q)
	if err != nil {
		return err
	}
	defer stop()
	defer context.AfterFunc(ctx, q.ShutDown)()
	for {
		uid, shut := q.Get()
		if shut {
			return ctx.Err()
		}
		err := k.repairOne(ctx, uid)
		if !apierrors.IsConflict(err) && ctx.Err() == nil {
			k.tried("put right the status of pod "+string(uid), err)
		}
		switch {
		case err == nil:
			q.Forget(uid)
		case ctx.Err() == nil:
			q.AddRateLimited(uid)
		}
		q.Done(uid)
	}
}

// repairOne writes the kubelet's status of a pod over what the API server has, if that has not changed since the cache saw it. A conflict
// is no fault: the version that won is looked at in its turn.
func (k *Kubelet) repairOne(ctx context.Context, uid types.UID) error {
	w := k.byUID(uid)
	if w == nil {
		return nil
	}
	pod := k.fromAPI(w.pod())
	if pod == nil {
		return nil
	}
	if pod = w.correction(pod); pod == nil {
		return nil
	}
	_, err := k.cfg.Client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%s: %w", podRef(pod), err)
}

// correction is the pod with the status that the kubelet published last and what others set; nil if api shows that already, if nothing was
// published yet, or if the pod has ended by the API server's word, which is final.
func (w *worker) correction(api *corev1.Pod) *corev1.Pod {
	w.mu.Lock()
	published, gone := w.published, w.gone
	shown := published != nil && shows(&api.Status, published)
	w.shown = w.shown || shown
	w.mu.Unlock()
	if published == nil || gone || api.Status.Phase == corev1.PodSucceeded || api.Status.Phase == corev1.PodFailed || shown {
		return nil
	}
	pod := api.DeepCopy()
	s, o := &pod.Status, published.DeepCopy()
	s.Phase, s.Reason, s.Message = o.Phase, o.Reason, o.Message
	s.StartTime, s.HostIP, s.HostIPs, s.PodIP, s.PodIPs = o.StartTime, o.HostIP, o.HostIPs, o.PodIP, o.PodIPs
	s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses = o.InitContainerStatuses, o.ContainerStatuses,
		o.EphemeralContainerStatuses
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c corev1.PodCondition) bool { return ours(c.Type) })
	for _, c := range o.Conditions {
		if ours(c.Type) {
			s.Conditions = append(s.Conditions, c)
		}
	}
	slices.SortStableFunc(s.Conditions, func(a, b corev1.PodCondition) int { return conditionRank(a.Type) - conditionRank(b.Type) })
	return pod
}

// writeTime is how long the writing of a status may take that was published: until then what the API server has may be older than that.
const writeTime = 5 * time.Second

// underway is how long the API server may still tell of a status before the one that was published last, which it has not shown yet.
func (w *worker) underway() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shown {
		return 0
	}
	return w.told.Add(writeTime).Sub(w.k.cfg.Clock.Now())
}

// shows tells whether a status of the API server says of what is the kubelet's the same as the kubelet did.
func shows(api, published *corev1.PodStatus) bool {
	return equality.Semantic.DeepEqual(essence(api), essence(published))
}

// essence is what the kubelet alone sets of a status, without what the API server may store otherwise than it was written: it cuts times to
// whole seconds, and leaves out fields whose feature is off.
func essence(s *corev1.PodStatus) corev1.PodStatus {
	e := corev1.PodStatus{Phase: s.Phase, Reason: s.Reason, Message: s.Message, PodIP: s.PodIP, PodIPs: s.PodIPs,
		InitContainerStatuses: containerEssence(s.InitContainerStatuses), ContainerStatuses: containerEssence(s.ContainerStatuses),
		EphemeralContainerStatuses: containerEssence(s.EphemeralContainerStatuses)}
	for _, t := range conditionOrder {
		if i := conditionIndex(s.Conditions, t); i >= 0 && ours(t) {
			c := s.Conditions[i]
			e.Conditions = append(e.Conditions, corev1.PodCondition{Type: t, Status: c.Status, Reason: c.Reason, Message: c.Message})
		}
	}
	return e
}

func containerEssence(list []corev1.ContainerStatus) (out []corev1.ContainerStatus) {
	for _, c := range list {
		out = append(out, corev1.ContainerStatus{Name: c.Name, State: stateEssence(c.State),
			LastTerminationState: stateEssence(c.LastTerminationState),
			Ready:                c.Ready, RestartCount: c.RestartCount, Image: c.Image, ImageID: c.ImageID, ContainerID: c.ContainerID,
			Started: c.Started})
	}
	return out
}

// stateEssence is a container's state with its times in whole seconds.
func stateEssence(s corev1.ContainerState) corev1.ContainerState {
	s = *s.DeepCopy()
	if s.Running != nil {
		s.Running.StartedAt = s.Running.StartedAt.Rfc3339Copy()
	}
	if t := s.Terminated; t != nil {
		t.StartedAt, t.FinishedAt = t.StartedAt.Rfc3339Copy(), t.FinishedAt.Rfc3339Copy()
	}
	return s
}

func isReady(c corev1.PodCondition) bool {
	return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
