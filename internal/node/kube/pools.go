package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// calico is the group of Calico's custom resources as Kubernetes stores them.
var calico = schema.GroupVersion{Group: "crd.projectcalico.org", Version: "v1"}

var calicoKinds = []struct{ resource, kind string }{{"ippools", "IPPool"}, {"felixconfigurations", "FelixConfiguration"}}

// Calico is one of Calico's cluster-scoped objects. Its spec stays JSON: what reads it is internal/node/ippool, and one object with a field of the
// wrong type must not hide the others.
type Calico struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              json.RawMessage `json:"spec,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (c *Calico) DeepCopyObject() runtime.Object {
	out := &Calico{TypeMeta: c.TypeMeta, Spec: slices.Clone(c.Spec)}
	c.DeepCopyInto(&out.ObjectMeta)
	return out
}

// CalicoList is a list of them.
type CalicoList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Calico `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *CalicoList) DeepCopyObject() runtime.Object {
	out := &CalicoList{TypeMeta: l.TypeMeta}
	l.DeepCopyInto(&out.ListMeta)
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*Calico))
	}
	return out
}

// Pools follows Calico's IPPools and FelixConfigurations. On a cluster that does not have those resources it goes on asking.
type Pools struct {
	core    *rest.RESTClient
	stores  []cache.Store // of pools, of configurations
	synced  []cache.InformerSynced
	run     []func(<-chan struct{})
	changed chan struct{}
}

// NewPools prepares to watch; Run does it.
func NewPools(config *rest.Config) (*Pools, error) {
	core, err := RESTClient(config, corev1.SchemeGroupVersion, scheme)
	if err != nil {
		return nil, err
	}
	client, err := calicoClient(config)
	if err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	p := &Pools{core: core, changed: make(chan struct{}, 1)}
	for _, r := range calicoKinds {
		store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: cache.NewFilteredListWatchFromClient(client, r.resource, metav1.NamespaceAll, func(*metav1.ListOptions) {}),
			ObjectType:    &Calico{},
			Transform:     slimCalico(r.kind),
			Handler: cache.ResourceEventHandlerFuncs{
				AddFunc:    func(any) { p.notify() },
				UpdateFunc: func(any, any) { p.notify() },
				DeleteFunc: func(any) { p.notify() },
			},
		})
		p.stores, p.synced, p.run = append(p.stores, store), append(p.synced, controller.HasSynced), append(p.run, controller.Run)
	}
	return p, nil
}

func calicoClient(config *rest.Config) (*rest.RESTClient, error) {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	metav1.AddToGroupVersion(s, calico)
	for _, r := range calicoKinds {
		s.AddKnownTypeWithName(calico.WithKind(r.kind), &Calico{})
		s.AddKnownTypeWithName(calico.WithKind(r.kind+"List"), &CalicoList{})
	}
	c := rest.CopyConfig(config)
	c.GroupVersion, c.APIPath = &calico, "/apis"
	c.NegotiatedSerializer = serializer.NewCodecFactory(s).WithoutConversion()
	c.ContentType = runtime.ContentTypeJSON // custom resources have no protobuf
	return rest.RESTClientFor(c)
}

// slimCalico leaves of an object what is read of it, and gives it its kind, which decoding takes away.
func slimCalico(kind string) cache.TransformFunc {
	return func(o any) (any, error) {
		c, ok := o.(*Calico)
		if !ok {
			return o, nil
		}
		slim := &Calico{TypeMeta: metav1.TypeMeta{APIVersion: calico.String(), Kind: kind}, ObjectMeta: slimMeta(&c.ObjectMeta, ""), Spec: c.Spec}
		slim.CreationTimestamp = c.CreationTimestamp
		return slim, nil
	}
}

func (p *Pools) notify() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Run watches until the context ends.
func (p *Pools) Run(ctx context.Context) {
	var watches sync.WaitGroup
	for _, run := range p.run {
		watches.Go(func() { run(ctx.Done()) })
	}
	if cache.WaitForCacheSync(ctx.Done(), p.synced...) {
		p.notify() // without any object, nothing else does
	}
	watches.Wait()
}

// Changed receives when the first lists are complete and after changes; several make one.
func (p *Pools) Changed() <-chan struct{} { return p.changed }

// Snapshot gives the pools and the configurations there are, by name, and whether the first lists are complete. The objects are shared:
// read only.
func (p *Pools) Snapshot() (pools, configurations []*Calico, complete bool) {
	var lists [2][]*Calico
	for i, store := range p.stores {
		if !p.synced[i]() {
			return nil, nil, false
		}
		for _, o := range store.List() {
			lists[i] = append(lists[i], o.(*Calico))
		}
		slices.SortFunc(lists[i], func(a, b *Calico) int { return strings.Compare(a.Name, b.Name) })
	}
	return lists[0], lists[1], true
}

// Warn reports a warning about an object as it is. The event's name follows from all that it says: many agents that find the same make one
// event, and so does one that finds it again. Events of objects without a namespace are in the namespace default.
func (p *Pools) Warn(ctx context.Context, about *Calico, component, host, reason, message string) error {
	hash := fnv.New64a()
	_, _ = fmt.Fprint(hash, about.UID, about.ResourceVersion, reason, message) // a hash takes all
	now := metav1.Now()
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s.%016x", about.Name, hash.Sum64())},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: about.APIVersion, Kind: about.Kind, Name: about.Name, UID: about.UID, ResourceVersion: about.ResourceVersion,
		},
		Type: corev1.EventTypeWarning, Reason: reason, Message: message, Action: "Apply",
		Source:         corev1.EventSource{Component: component, Host: host},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	err := p.core.Post().Namespace(metav1.NamespaceDefault).Resource("events").Body(e).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create event %s for %s %s: %w", reason, about.Kind, about.Name, err)
	}
	return nil
}
