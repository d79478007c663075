// Package kube watches the Kubernetes API and hands out snapshots of what the desired-state packages read: Services, EndpointSlices and the
// agent's own Node ([Watcher]), and ConfigMaps by name ([ConfigMaps]). It speaks protobuf through REST clients that know no kinds but
// these, and keeps of each object no more than is read, because an agent runs on every node.
package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"packetwalk.dev/internal/node/service"
)

// Config reads the way to the API server from a kubeconfig file, or with an empty path from the service account of the pod that the
// process runs in. A server that is not empty is the API server's URL, whatever the file says.
func Config(server, kubeconfig, agent string) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if server == "" && kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags(server, kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w; give --kubeconfig FILE", err)
	}
	config.UserAgent = agent
	config.QPS, config.Burst = 5, 10
	noticeSilence()
	return config, nil
}

// noticeSilence has connections end 15 seconds after the API server has stopped to answer, instead of 45. These variables of Kubernetes'
// own (k8s.io/apimachinery pkg/util/net/http.go) are the only way but for a transport without client-go's.
func noticeSilence() {
	for name, seconds := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "10", "HTTP2_PING_TIMEOUT_SECONDS": "5"} {
		if os.Getenv(name) == "" {
			_ = os.Setenv(name, seconds) // fails for malformed names only
		}
	}
}

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	s.AddKnownTypes(corev1.SchemeGroupVersion,
		&corev1.Service{}, &corev1.ServiceList{}, &corev1.Node{}, &corev1.NodeList{}, &corev1.ConfigMap{}, &corev1.ConfigMapList{},
		&corev1.Event{})
	metav1.AddToGroupVersion(s, corev1.SchemeGroupVersion)
	s.AddKnownTypes(discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{})
	metav1.AddToGroupVersion(s, discoveryv1.SchemeGroupVersion)
	s.AddKnownTypes(networkingv1.SchemeGroupVersion, &networkingv1.ServiceCIDR{}, &networkingv1.ServiceCIDRList{})
	metav1.AddToGroupVersion(s, networkingv1.SchemeGroupVersion)
	return s
}()

// RESTClient makes a client of one API group's version that reads the kinds of a scheme, as protobuf.
func RESTClient(config *rest.Config, gv schema.GroupVersion, kinds *runtime.Scheme) (*rest.RESTClient, error) {
	c := rest.CopyConfig(config)
	c.GroupVersion = &gv
	c.APIPath = "/apis"
	if gv.Group == "" {
		c.APIPath = "/api"
	}
	c.NegotiatedSerializer = serializer.NewCodecFactory(kinds).WithoutConversion()
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("make API client for %s: %w", gv, err)
	}
	return client, nil
}

// Snapshot is what the API held at one moment. Its objects are shared: read only.
type Snapshot struct {
	Services       []*corev1.Service
	EndpointSlices []*discoveryv1.EndpointSlice
	Node           *corev1.Node // nil: there is none of that name (yet)
	ServiceCIDRs   []*networkingv1.ServiceCIDR
}

// Watcher follows the API.
type Watcher struct {
	*Watches
	core                    *rest.RESTClient
	services, slices, nodes cache.Store
	ranges                  cache.Store

	mu      sync.Mutex
	changed map[service.Key]bool
	of      map[service.Key][]string // the names of each service's slices
}

// Counter is told of each change of an object: kind is "service", "endpoints" or "node".
type Counter func(kind string)

// NewWatcher makes a watcher that watches nothing yet, and sends events. trouble may be nil.
func NewWatcher(config *rest.Config, trouble Trouble) (*Watcher, error) {
	core, err := RESTClient(config, corev1.SchemeGroupVersion, scheme)
	if err != nil {
		return nil, err
	}
	none := cache.NewStore(cache.MetaNamespaceKeyFunc)
	return &Watcher{Watches: NewWatches(trouble), core: core, services: none, slices: none, nodes: none, ranges: none,
		changed: map[service.Key]bool{}, of: map[service.Key][]string{}}, nil
}

// WatchServices prepares to watch services and what goes with them; Run does it. seen may be nil.
func (w *Watcher) WatchServices(config *rest.Config, nodeName string, seen Counter) error {
	discovery, err := RESTClient(config, discoveryv1.SchemeGroupVersion, scheme)
	if err != nil {
		return err
	}
	if seen == nil {
		seen = func(string) {}
	}
	// Headless services and those of another proxy are never asked for (k8s.io/kubernetes cmd/kube-proxy/app/server.go).
	ours := "!" + service.LabelProxyName + ",!" + corev1.IsHeadlessService
	w.services = w.Add(List{Client: w.core, Resource: "services", Object: &corev1.Service{}, Labels: ours, Transform: pack,
		Seen: func(objects ...any) { seen("service"); w.note(objects) }})
	w.slices = w.Add(List{Client: discovery, Resource: "endpointslices", Object: &discoveryv1.EndpointSlice{}, Labels: ours, Transform: pack,
		Seen: func(objects ...any) { seen("endpoints"); w.note(objects) }})
	w.nodes = w.Add(List{Client: w.core, Resource: "nodes", Object: &corev1.Node{}, Fields: equal("metadata.name", nodeName), Transform: slim,
		Seen: func(...any) { seen("node") }})
	return nil
}

// WatchServiceCIDRs has the watcher follow the ranges of cluster IPs, too. API servers before 1.33 have no such objects.
func (w *Watcher) WatchServiceCIDRs(config *rest.Config) error {
	client, err := RESTClient(config, networkingv1.SchemeGroupVersion, scheme)
	if err != nil {
		return err
	}
	w.ranges = w.Add(List{Client: client, Resource: "servicecidrs", Object: &networkingv1.ServiceCIDR{}, Transform: slim, Optional: true})
	return nil
}

// Snapshot gives what is known now.
func (w *Watcher) Snapshot() Snapshot {
	s := w.otherObjects()
	s.Services, s.EndpointSlices = allUnpacked[corev1.Service](w.services), allUnpacked[discoveryv1.EndpointSlice](w.slices)
	return s
}

// otherObjects returns a snapshot of all objects except services and their slices.
func (w *Watcher) otherObjects() (s Snapshot) {
	for _, node := range Objects[*corev1.Node](w.nodes) {
		s.Node = node
	}
	s.ServiceCIDRs = Objects[*networkingv1.ServiceCIDR](w.ranges)
	return s
}

// note notes whose objects have changed, and which slices services have.
func (w *Watcher) note(objects []any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range objects {
		p, ok := o.(*packedObject)
		if !ok {
			continue
		}
		key := p.key()
		w.changed[key] = true
		if !p.slice {
			continue
		}
		w.of[key] = slices.DeleteFunc(w.of[key], func(name string) bool { return name == p.name })
		if now, _, _ := w.slices.GetByKey(p.namespace + "/" + p.name); now != nil && now.(*packedObject).key() == key {
			w.of[key] = append(w.of[key], p.name)
		}
		if len(w.of[key]) == 0 {
			delete(w.of, key)
		}
	}
}

// ServiceObjects are a service, nil where there is none (any more), and its EndpointSlices. They are shared: read only.
type ServiceObjects struct {
	Service        *corev1.Service
	EndpointSlices []*discoveryv1.EndpointSlice
}

// Delta is what has changed.
type Delta struct {
	Node         *corev1.Node
	ServiceCIDRs []*networkingv1.ServiceCIDR
	Services     map[service.Key]ServiceObjects
	Whole        bool // Services are all there are
}

// Whole returns a snapshot as if all of it were new.
func (s Snapshot) Whole() Delta {
	d := Delta{Node: s.Node, ServiceCIDRs: s.ServiceCIDRs, Services: make(map[service.Key]ServiceObjects, len(s.Services)), Whole: true}
	for _, o := range s.Services {
		d.Services[service.Key{Namespace: o.Namespace, Service: o.Name}] = ServiceObjects{Service: o}
	}
	for _, slice := range s.EndpointSlices {
		key := service.OfSlice(slice)
		if of, ok := d.Services[key]; ok {
			of.EndpointSlices = append(of.EndpointSlices, slice)
			d.Services[key] = of
		}
	}
	return d
}

// Delta returns what has changed since it was asked for the last time, or all there is.
func (w *Watcher) Delta(whole bool) Delta {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := w.changed
	w.changed = map[service.Key]bool{}
	if whole {
		return w.Snapshot().Whole()
	}
	d := w.otherObjects().Whole()
	d.Whole = false
	for key := range changed {
		var of ServiceObjects
		if s := get(w.services, key.Namespace, key.Service); s != nil {
			of.Service = unpacked[corev1.Service](s)
		}
		for _, name := range w.of[key] {
			if slice := get(w.slices, key.Namespace, name); slice != nil && slice.key() == key {
				of.EndpointSlices = append(of.EndpointSlices, slice.endpointSlice(len(w.of[key]) >= manySlices))
			}
		}
		d.Services[key] = of
	}
	return d
}

// Event reports a warning. The API's own limits apply; the caller sees to it that one fault makes one event.
func (w *Watcher) Event(ctx context.Context, e corev1.Event) error {
	e.Type = corev1.EventTypeWarning
	return PostEvent(ctx, w.core, e)
}

// SetPodCondition sets one condition of a pod.
func (w *Watcher) SetPodCondition(ctx context.Context, namespace, name string, c corev1.PodCondition) error {
	c.LastTransitionTime = metav1.Now()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.PodCondition{c}}})
	if err != nil {
		return err
	}
	return w.core.Patch(types.StrategicMergePatchType).Namespace(namespace).Resource("pods").Name(name).SubResource("status").
		Body(patch).Do(ctx).Error()
}

// same reports whether two versions of an object differ in nothing that is read. A node's status changes every few seconds.
func same(before, after any) bool {
	if a, ok := before.(*packedObject); ok {
		b, ok := after.(*packedObject)
		return ok && bytes.Equal(a.data, b.data)
	}
	a, b := before.(runtime.Object).DeepCopyObject(), after.(runtime.Object).DeepCopyObject()
	for _, o := range []runtime.Object{a, b} {
		o.(metav1.Object).SetResourceVersion("")
	}
	return equality.Semantic.DeepEqual(a, b)
}

// slim leaves of an object what is read of it.
func slim(o any) (any, error) {
	switch o := o.(type) {
	case *networkingv1.ServiceCIDR:
		return &networkingv1.ServiceCIDR{ObjectMeta: slimMeta(&o.ObjectMeta, ""), Spec: o.Spec}, nil
	case *corev1.Node:
		return &corev1.Node{
			ObjectMeta: slimMeta(&o.ObjectMeta, corev1.LabelTopologyZone),
			Spec:       corev1.NodeSpec{PodCIDR: o.Spec.PodCIDR, PodCIDRs: o.Spec.PodCIDRs, Taints: o.Spec.Taints},
			Status:     corev1.NodeStatus{Addresses: o.Status.Addresses},
		}, nil
	}
	return o, nil
}

func slimMeta(m *metav1.ObjectMeta, label string) metav1.ObjectMeta {
	out := metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, ResourceVersion: m.ResourceVersion, UID: m.UID,
		Generation: m.Generation, DeletionTimestamp: m.DeletionTimestamp}
	if value, ok := m.Labels[label]; ok {
		out.Labels = map[string]string{label: value}
	}
	return out
}
