package simulated

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"packetwalk.dev/internal/kernel/netns"
)

// node runs pods. What should be is what the API server says; what is, is in pods and in the network's own records.
type node struct {
	Config
	client   kubernetes.Interface
	informer coreinformers.PodInformer
	recorder record.EventRecorder
	network  network
	space    *netns.Namespace
	log      *slog.Logger
	queue    workqueue.TypedRateLimitingInterface[string]

	mu   sync.Mutex
	pods map[string]*pod // by NAMESPACE/NAME
}

// A pod is one that is attached, or being attached.
type pod struct {
	uid     types.UID
	space   *netns.Namespace // nil on the host's network
	ips     []string
	since   time.Time
	servers *servers
}

func newNode(c Config, client kubernetes.Interface, informer coreinformers.PodInformer, log *slog.Logger) *node {
	n := &node{Config: c, client: client, informer: informer, log: log, pods: map[string]*pod{}, network: newNetwork(c),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](200*time.Millisecond, 30*time.Second))}
	changed := func(o any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
			n.queue.Add(key)
		}
	}
	_, _ = informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{ // an informer that has not been started takes any
		AddFunc: changed, UpdateFunc: func(_, o any) { changed(o) }, DeleteFunc: changed,
	})
	return n
}

// workers is how many pods are attached at once: each runs programs.
const workers = 4

// run keeps the pods what the API says until ctx ends.
func (n *node) run(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), n.informer.Informer().HasSynced) {
		return ctx.Err()
	}
	n.removeOthers(ctx)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for n.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	n.queue.ShutDown()
	all.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.pods {
		p.close()
	}
	return ctx.Err()
}

// removeOthers detaches the pods of an earlier run that the API has no more.
func (n *node) removeOthers(ctx context.Context) {
	for _, a := range n.network.attached() {
		o, err := n.informer.Lister().Pods(a.namespace).Get(a.name)
		if err == nil && o.UID == a.uid {
			continue
		}
		if err := n.network.detach(ctx, a); err != nil {
			n.log.Warn("a pod that is gone is still attached", "pod", a.namespace+"/"+a.name, "err", err)
		}
	}
}

func (n *node) next(ctx context.Context) bool {
	key, stop := n.queue.Get()
	if stop {
		return false
	}
	defer n.queue.Done(key)
	if err := n.sync(ctx, key); err != nil && ctx.Err() == nil {
		n.log.Warn("pod", "pod", key, "err", err)
		n.queue.AddRateLimited(key)
		return true
	}
	n.queue.Forget(key)
	return true
}

// sync brings one pod from what it is to what the API says. Only one runs for a key at a time (workqueue).
func (n *node) sync(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil //nolint:nilerr // it is no key of ours
	}
	object, err := n.informer.Lister().Pods(namespace).Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	there := err == nil
	n.mu.Lock()
	p := n.pods[key]
	n.mu.Unlock()
	leaves := there && (object.DeletionTimestamp != nil || ended(object))
	if p != nil && (!there || p.uid != object.UID || leaves) {
		if err := n.remove(ctx, key, p, attachment{namespace: namespace, name: name, uid: p.uid}); err != nil {
			return err
		}
		p = nil
	}
	switch {
	case !there || ended(object) && object.DeletionTimestamp == nil:
		return nil
	case object.DeletionTimestamp != nil:
		return n.finish(ctx, object)
	case p == nil:
		if p, err = n.start(ctx, object); err != nil {
			n.recorder.Event(object, corev1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error())
			return errors.Join(err, n.report(ctx, object, waiting(object, address(n.Node))))
		}
		n.mu.Lock()
		n.pods[key] = p
		n.mu.Unlock()
	}
	return n.report(ctx, object, running(object, address(n.Node), p))
}

// ended reports whether a pod has ended: the node ends none itself, but a controller may say so (a node that was lost).
func ended(o *corev1.Pod) bool {
	return o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed
}

// start attaches a pod and opens its ports.
func (n *node) start(ctx context.Context, object *corev1.Pod) (p *pod, err error) {
	if lacks := Unsupported(object); lacks != "" && object.Status.StartTime == nil {
		n.recorder.Event(object, corev1.EventTypeWarning, "Simulated", lacks)
	}
	p = &pod{uid: object.UID, since: time.Now(), ips: []string{address(n.Node).String()}}
	if t := object.Status.StartTime; t != nil { // taken over
		p.since = t.Time
	}
	at := n.space
	if !object.Spec.HostNetwork {
		if p.space, p.ips, err = n.network.attach(ctx, object); err != nil {
			return nil, err
		}
		at = p.space
	}
	if p.servers, err = listenFor(ctx, at, object); err != nil {
		p.close()
		return nil, fmt.Errorf("listen: %w", err)
	}
	return p, nil
}

// close ends what this process does for a pod; its network stays.
func (p *pod) close() {
	if p.servers != nil {
		p.servers.close()
	}
	if p.space != nil {
		p.space.Close()
	}
}

// remove closes a pod's ports and detaches it.
func (n *node) remove(ctx context.Context, key string, p *pod, a attachment) error {
	p.close()
	if p.space != nil {
		if err := n.network.detach(ctx, a); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.pods, key)
	return nil
}

// finish tells the API that nothing is left of a pod that is deleted: it waits for its node to say so.
func (n *node) finish(ctx context.Context, object *corev1.Pod) error {
	if err := n.network.detach(ctx, attachment{object.Namespace, object.Name, object.UID}); err != nil { // of an earlier run
		return err
	}
	if err := n.report(ctx, object, over(object, time.Now())); err != nil {
		return err
	}
	err := n.client.CoreV1().Pods(object.Namespace).Delete(ctx, object.Name,
		metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(object.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// report writes a pod's status where the API has another.
func (n *node) report(ctx context.Context, object *corev1.Pod, status corev1.PodStatus) error {
	if equality.Semantic.DeepEqual(object.Status, status) {
		return nil
	}
	next := object.DeepCopy()
	next.Status = status
	_, err := n.client.CoreV1().Pods(object.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // a newer one is on its way to the cache
		return nil
	}
	return err
}

// file returns the name of a pod in directories of the node's.
func (a attachment) file() string { return a.namespace + "_" + a.name }
