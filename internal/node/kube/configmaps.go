package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
)

// ConfigMaps follows the ConfigMaps of some names in one namespace. Each is watched by itself, so that a role may name them.
type ConfigMaps struct {
	*Watches
	core      *rest.RESTClient
	namespace string
	names     []string
}

// NewConfigMaps prepares to watch; Run does it. trouble may be nil.
func NewConfigMaps(config *rest.Config, trouble Trouble, namespace string, names ...string) (*ConfigMaps, error) {
	core, err := RESTClient(config, corev1.SchemeGroupVersion, scheme)
	if err != nil {
		return nil, err
	}
	c := &ConfigMaps{Watches: NewWatches(trouble), core: core, namespace: namespace, names: names}
	for _, name := range names {
		c.Add(List{Client: core, Resource: "configmaps", Namespace: namespace, Fields: equal("metadata.name", name), Object: &corev1.ConfigMap{}})
	}
	return c, nil
}

// Snapshot gives those there are, as the watches know them, and whether the first lists are complete. The objects are shared: read only.
func (c *ConfigMaps) Snapshot() ([]*corev1.ConfigMap, bool) {
	select {
	case <-c.complete:
		return Objects[*corev1.ConfigMap](c.stores...), true
	default:
		return nil, false
	}
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

// Warn reports a warning about a ConfigMap as it is; several that say the same are one.
func (c *ConfigMaps) Warn(ctx context.Context, about *corev1.ConfigMap, component, host, reason, message string) error {
	return warn(ctx, c.core, corev1.ObjectReference{
		APIVersion: "v1", Kind: "ConfigMap", Namespace: about.Namespace, Name: about.Name, UID: about.UID, ResourceVersion: about.ResourceVersion,
	}, corev1.EventSource{Component: component, Host: host}, reason, message)
}
