package kube

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// ConfigMaps follows the ConfigMaps of some names in one namespace. Each is watched by itself, so that a role may name them.
type ConfigMaps struct {
	core      *rest.RESTClient
	namespace string
	names     []string
	stores    []cache.Store
	synced    []cache.InformerSynced
	run       []func(<-chan struct{})
	changed   chan struct{}
}

// NewConfigMaps prepares to watch; Run does it.
func NewConfigMaps(config *rest.Config, namespace string, names ...string) (*ConfigMaps, error) {
	core, err := RESTClient(config, corev1.SchemeGroupVersion, scheme)
	if err != nil {
		return nil, err
	}
	c := &ConfigMaps{core: core, namespace: namespace, names: names, changed: make(chan struct{}, 1)}
	for _, name := range names {
		store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: cache.NewListWatchFromClient(core, "configmaps", namespace, fields.OneTermEqualSelector("metadata.name", name)),
			ObjectType:    &corev1.ConfigMap{},
			Handler: cache.ResourceEventHandlerFuncs{
				AddFunc:    func(any) { c.notify() },
				UpdateFunc: func(any, any) { c.notify() },
				DeleteFunc: func(any) { c.notify() },
			},
		})
		c.stores, c.synced, c.run = append(c.stores, store), append(c.synced, controller.HasSynced), append(c.run, controller.Run)
	}
	return c, nil
}

func (c *ConfigMaps) notify() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Run watches until the context ends.
func (c *ConfigMaps) Run(ctx context.Context) {
	var watches sync.WaitGroup
	for _, run := range c.run {
		watches.Go(func() { run(ctx.Done()) })
	}
	if cache.WaitForCacheSync(ctx.Done(), c.synced...) {
		c.notify() // with no ConfigMap there, nothing else does
	}
	watches.Wait()
}

// Changed receives when the first lists are complete and after changes; several make one.
func (c *ConfigMaps) Changed() <-chan struct{} { return c.changed }

// Snapshot gives those there are, as the watches know them, and whether the first lists are complete. The objects are shared: read only.
func (c *ConfigMaps) Snapshot() ([]*corev1.ConfigMap, bool) {
	var maps []*corev1.ConfigMap
	for i, store := range c.stores {
		if !c.synced[i]() {
			return nil, false
		}
		for _, o := range store.List() {
			maps = append(maps, o.(*corev1.ConfigMap))
		}
	}
	return maps, true
}

// Read asks the API server for them: a watch may have died without a word.
func (c *ConfigMaps) Read(ctx context.Context) ([]*corev1.ConfigMap, error) {
	var maps []*corev1.ConfigMap
	for _, name := range c.names {
		m := &corev1.ConfigMap{}
		err := c.core.Get().Namespace(c.namespace).Resource("configmaps").Name(name).Do(ctx).Into(m)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read ConfigMap %s/%s: %w", c.namespace, name, err)
		}
		maps = append(maps, m)
	}
	return maps, nil
}

// Warn reports a warning about a ConfigMap as it is. The event's name follows from all that it says: many agents that find the same make one
// event, and so does one that finds it again.
func (c *ConfigMaps) Warn(ctx context.Context, about *corev1.ConfigMap, component, host, reason, message string) error {
	hash := fnv.New64a()
	_, _ = fmt.Fprint(hash, about.UID, about.ResourceVersion, reason, message) // a hash takes all
	now := metav1.Now()
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: about.Namespace, Name: fmt.Sprintf("%s.%016x", about.Name, hash.Sum64())},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "ConfigMap", Namespace: about.Namespace, Name: about.Name, UID: about.UID, ResourceVersion: about.ResourceVersion,
		},
		Type: corev1.EventTypeWarning, Reason: reason, Message: message, Action: "Apply",
		Source:         corev1.EventSource{Component: component, Host: host},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	err := c.core.Post().Namespace(about.Namespace).Resource("events").Body(e).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create event %s for ConfigMap %s/%s: %w", reason, about.Namespace, about.Name, err)
	}
	return nil
}
