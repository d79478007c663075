package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// Owner is the DaemonSet that a pod is of: whether it is still there tells the end of a pod that is replaced by another from that of all of
// them. Who deletes a DaemonSet deletes the rights of its pods with it, often before these have ended, so it is followed all the time.
type Owner struct {
	*Watches
	client          *rest.RESTClient
	namespace, name string
	seen            atomic.Bool
	deleted         func() bool
}

// NewOwner prepares to follow a DaemonSet; Run does it.
func NewOwner(config *rest.Config, trouble Trouble, namespace, name string) (*Owner, error) {
	kinds := runtime.NewScheme()
	if err := appsv1.AddToScheme(kinds); err != nil {
		return nil, err
	}
	client, err := RESTClient(config, appsv1.SchemeGroupVersion, kinds)
	if err != nil {
		return nil, err
	}
	o := &Owner{Watches: NewWatches(trouble), client: client, namespace: namespace, name: name}
	store := o.Add(List{Client: client, Resource: "daemonsets", Namespace: namespace, Fields: equal("metadata.name", name),
		Object: &appsv1.DaemonSet{}, Seen: func(...any) { o.seen.Store(true) }})
	o.deleted = func() bool { // in the foreground it stays, marked, until its pods are gone
		there := func(d *appsv1.DaemonSet) bool { return d.DeletionTimestamp == nil }
		return o.seen.Load() && !slices.ContainsFunc(Objects[*appsv1.DaemonSet](store), there)
	}
	return o, nil
}

// errNotSeen is that the API server does not say, and nothing was seen.
var errNotSeen = errors.New("its deletion was not seen either")

// Deleted reports whether the DaemonSet has been deleted, or is about to be. Where the API server does not say it is known from what was
// seen before; if not, it is an error.
func (o *Owner) Deleted(ctx context.Context) (bool, error) {
	d := &appsv1.DaemonSet{}
	err := o.client.Get().Namespace(o.namespace).Resource("daemonsets").Name(o.name).Do(ctx).Into(d)
	switch {
	case err == nil:
		return d.DeletionTimestamp != nil, nil
	case apierrors.IsNotFound(err), o.deleted():
		return true, nil
	}
	return false, fmt.Errorf("is DaemonSet %s/%s still there: %w; %w", o.namespace, o.name, err, errNotSeen)
}
