package kube

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Trouble is told why something of the API cannot be followed ("watch services"), and with a nil error that it can be again.
type Trouble func(what string, err error)

// watches follow some lists together.
type watches struct {
	trouble     Trouble
	stores      []cache.Store
	controllers []cache.Controller
	changed     chan struct{}
}

// list is what one watch follows.
type list struct {
	client              *rest.RESTClient
	resource, namespace string
	fields, labels      string // selectors
	object              runtime.Object
	transform           cache.TransformFunc
	seen                func() // may be nil
}

func newWatches(trouble Trouble) *watches {
	return &watches{trouble: trouble, changed: make(chan struct{}, 1)}
}

// add prepares to follow a list; Run does it.
func (w *watches) add(l list) cache.Store {
	notify := func() {
		if l.seen != nil {
			l.seen()
		}
		w.notify()
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: w.reporting(l),
		ObjectType:    l.object,
		Transform:     l.transform,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { notify() },
			UpdateFunc: func(before, after any) {
				if !same(before, after) {
					notify()
				}
			},
			DeleteFunc: func(any) { notify() },
		},
	})
	w.stores, w.controllers = append(w.stores, store), append(w.controllers, controller)
	return store
}

// reporting asks the API server, and tells how that went.
func (w *watches) reporting(l list) cache.ListerWatcher {
	lw := cache.NewFilteredListWatchFromClient(l.client, l.resource, l.namespace, func(o *metav1.ListOptions) {
		o.FieldSelector, o.LabelSelector = l.fields, l.labels
	})
	what := "watch " + l.resource
	if l.fields != "" {
		what += " with " + l.fields
	}
	tell := func(ctx context.Context, err error) {
		if w.trouble != nil && ctx.Err() == nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			w.trouble(what, err)
		}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			objects, err := lw.ListWithContext(ctx, o)
			tell(ctx, err)
			return objects, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			events, err := lw.WatchWithContext(ctx, o)
			tell(ctx, err)
			return events, err
		},
	}
}

func (w *watches) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Run watches until the context ends.
func (w *watches) Run(ctx context.Context) {
	var running sync.WaitGroup
	var synced []cache.InformerSynced
	for _, c := range w.controllers {
		running.Go(func() { c.RunWithContext(ctx) })
		synced = append(synced, c.HasSynced)
	}
	if cache.WaitForCacheSync(ctx.Done(), synced...) {
		w.notify() // without any object, nothing else does
	}
	running.Wait()
}

// Changed receives when the first lists are complete and after changes; several make one.
func (w *watches) Changed() <-chan struct{} { return w.changed }

// complete tells whether the first lists are.
func (w *watches) complete() bool {
	for _, c := range w.controllers {
		if !c.HasSynced() {
			return false
		}
	}
	return true
}

func equal(field, value string) string { return fields.OneTermEqualSelector(field, value).String() }

// warn reports a warning about an object as it is. The event's name follows from all that it says: many agents that find the same make
// one event,
// and so does one that finds it again. Events of objects without a namespace are in the namespace default.
func warn(ctx context.Context, core *rest.RESTClient, about corev1.ObjectReference, by corev1.EventSource, reason, message string) error {
	hash := fnv.New64a()
	_, _ = fmt.Fprint(hash, about.UID, about.ResourceVersion, reason, message) // a hash takes all
	namespace := cmp.Or(about.Namespace, metav1.NamespaceDefault)
	now := metav1.Now()
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%016x", about.Name, hash.Sum64())},
		InvolvedObject: about,
		Type:           corev1.EventTypeWarning, Reason: reason, Message: message, Action: "Apply",
		Source:         by,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	err := core.Post().Namespace(namespace).Resource("events").Body(e).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create event %s for %s %s: %w", reason, about.Kind, about.Name, err)
	}
	return nil
}
