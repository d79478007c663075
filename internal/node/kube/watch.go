package kube

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Trouble is told why something of the API cannot be followed ("watch services"), and with a nil error that it can be again.
type Trouble func(what string, err error)

// Watches follow some lists together.
type Watches struct {
	trouble     Trouble
	stores      []cache.Store
	controllers []cache.Controller
	synced      []cache.InformerSynced
	complete    chan struct{} // closed when the first lists are complete
	changed     chan struct{}
}

// List is what one watch follows.
type List struct {
	Client              *rest.RESTClient
	Resource, Namespace string
	Fields, Labels      string // selectors
	Object              runtime.Object
	Transform           cache.TransformFunc
	Seen                func(objects ...any) // the object of each change, before and after it; may be nil
	Optional            bool                 // no caller waits for it if the API server does not have such objects, or does not show them
}

// NewWatches follow nothing yet. trouble may be nil.
func NewWatches(trouble Trouble) *Watches {
	return &Watches{trouble: trouble, complete: make(chan struct{}), changed: make(chan struct{}, 1)}
}

// Add prepares to follow a list; Run does it.
func (w *Watches) Add(l List) cache.Store {
	notify := func(objects ...any) {
		if l.Seen != nil {
			l.Seen(objects...)
		}
		w.notify()
	}
	var refused atomic.Bool
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: w.reporting(l, &refused),
		ObjectType:    l.Object,
		Transform:     l.Transform,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { notify(o) },
			UpdateFunc: func(before, after any) {
				if !same(before, after) {
					notify(before, after)
				}
			},
			DeleteFunc: func(o any) {
				if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = last.Obj
				}
				notify(o)
			},
		},
	})
	w.stores, w.controllers = append(w.stores, store), append(w.controllers, controller)
	w.synced = append(w.synced, func() bool { return controller.HasSynced() || l.Optional && refused.Load() })
	return store
}

// reporting asks the API server, and tells how that went, and whether it was refused.
func (w *Watches) reporting(l List, refused *atomic.Bool) cache.ListerWatcher {
	lw := cache.NewFilteredListWatchFromClient(l.Client, l.Resource, l.Namespace, func(o *metav1.ListOptions) {
		o.FieldSelector, o.LabelSelector = l.Fields, l.Labels
	})
	what := "watch " + l.Resource
	if l.Fields != "" {
		what += " with " + l.Fields
	}
	tell := func(ctx context.Context, err error) {
		refused.Store(apierrors.IsNotFound(err) || apierrors.IsForbidden(err))
		if l.Optional && apierrors.IsNotFound(err) {
			err = nil
		}
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

func (w *Watches) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Run watches until the context ends. It is called once.
func (w *Watches) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, c := range w.controllers {
		running.Go(func() { c.RunWithContext(ctx) })
	}
	if w.waitForLists(ctx) {
		close(w.complete)
		w.notify() // without any object, nothing else does
	}
	running.Wait()
}

// firstLists are the pauses between checks for complete first lists. A list takes milliseconds; an API server that is down takes much longer.
// All agents of a lab check at the same time: 100 of them with a pause of 5 ms filled two processors.
var firstLists = wait.Backoff{Duration: 5 * time.Millisecond, Factor: 1.25, Steps: 20, Cap: 200 * time.Millisecond}

// waitForLists returns when the first lists are complete, or false when ctx ends.
func (w *Watches) waitForLists(ctx context.Context) bool {
	missing := func(synced cache.InformerSynced) bool { return !synced() }
	return firstLists.DelayFunc().Until(ctx, true, true, func(context.Context) (bool, error) {
		return !slices.ContainsFunc(w.synced, missing), nil
	}) == nil
}

// Changed receives when the first lists are complete and after changes; several make one.
func (w *Watches) Changed() <-chan struct{} { return w.changed }

// WaitForSync returns when the first lists are complete, or false when ctx ends. Run must have been called.
func (w *Watches) WaitForSync(ctx context.Context) bool {
	select {
	case <-w.complete:
		return true
	case <-ctx.Done():
		return false
	}
}

// Objects returns those of stores. They are shared: read only.
func Objects[T any](stores ...cache.Store) (all []T) {
	for _, store := range stores {
		for _, o := range store.List() {
			all = append(all, o.(T))
		}
	}
	return all
}

func equal(field, value string) string { return fields.OneTermEqualSelector(field, value).String() }

// warn reports a warning about an object as it is. The event's name follows from all that it says: many agents that find the same make
// one event, and so does one that finds it again.
func warn(ctx context.Context, core *rest.RESTClient, about corev1.ObjectReference, by corev1.EventSource, reason, message string) error {
	hash := fnv.New64a()
	_, _ = fmt.Fprint(hash, about.UID, about.ResourceVersion, reason, message) // a hash takes all
	err := PostEvent(ctx, core, corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.%016x", about.Name, hash.Sum64())},
		InvolvedObject: about, Type: corev1.EventTypeWarning, Reason: reason, Message: message, Action: "Apply", Source: by,
	})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// PostEvent makes an event of now, under a new name where it has none. Those of objects without a namespace are in the namespace default.
func PostEvent(ctx context.Context, core *rest.RESTClient, e corev1.Event) error {
	about := &e.InvolvedObject
	e.Namespace = cmp.Or(about.Namespace, metav1.NamespaceDefault)
	if e.Name == "" {
		e.GenerateName = about.Name + "."
	}
	now := metav1.Now()
	e.FirstTimestamp, e.LastTimestamp, e.Count = now, now, 1
	if err := core.Post().Namespace(e.Namespace).Resource("events").Body(&e).Do(ctx).Error(); err != nil {
		return fmt.Errorf("create event %s for %s %s: %w", e.Reason, about.Kind, path.Join(about.Namespace, about.Name), err)
	}
	return nil
}
