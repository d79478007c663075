package kubelet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// troubles are the watches that fail, by what they follow. The zero value is ready to use, also from several goroutines.
type troubles struct {
	mu  sync.Mutex
	now map[string]trouble
}

type trouble struct {
	err   error
	since time.Time
}

// troubleLasts is how long a watch must have failed to be a fault: a moment without the API server is the API server's.
const troubleLasts = 10 * time.Second

// note takes how asking the API server went; nil ends the trouble.
func (t *troubles) note(what string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, failed := t.now[what]
	switch {
	case err == nil:
		delete(t.now, what)
		return
	case !failed:
		before.since = time.Now()
	}
	if t.now == nil {
		t.now = map[string]trouble{}
	}
	t.now[what] = trouble{fmt.Errorf("watch %s: %w", what, err), before.since}
}

func (t *troubles) lasting() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, what := range slices.Sorted(maps.Keys(t.now)) {
		if one := t.now[what]; time.Since(one.since) >= troubleLasts {
			errs = append(errs, one.err)
		}
	}
	return errors.Join(errs...)
}

// follow makes the factory's informer of a kind, which tells how it gets on with the API server.
func follow[L runtime.Object](f informers.SharedInformerFactory, object runtime.Object, tell func(what string, err error),
	list func(context.Context, metav1.ListOptions) (L, error), watching func(context.Context, metav1.ListOptions) (watch.Interface, error),
) cache.SharedIndexInformer {
	what := fmt.Sprintf("%T", object)[len("*v1."):] + "s"
	tried := func(ctx context.Context, err error) {
		if ctx.Err() == nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			tell(what, err)
		}
	}
	return f.InformerFor(object, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		lw := &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				objects, err := list(ctx, o)
				tried(ctx, err)
				return objects, err
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				events, err := watching(ctx, o)
				tried(ctx, err)
				return events, err
			},
		}
		return cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lw, client), object, resync,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	})
}
