package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
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

// Calico is one of Calico's cluster-scoped objects. Its spec stays JSON: what reads it is internal/node/ippool, and one object with a field
// of the wrong type must not hide the others.
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

// calicoList is a list of them.
type calicoList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Calico `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *calicoList) DeepCopyObject() runtime.Object {
	out := &calicoList{TypeMeta: l.TypeMeta}
	l.DeepCopyInto(&out.ListMeta)
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*Calico))
	}
	return out
}

// Pools follows Calico's IPPools and FelixConfigurations. On a cluster that does not have those resources it goes on asking.
type Pools struct {
	*Watches
	core *rest.RESTClient
}

// NewPools prepares to watch; Run does it. trouble may be nil.
func NewPools(config *rest.Config, trouble Trouble) (*Pools, error) {
	core, err := RESTClient(config, corev1.SchemeGroupVersion, scheme)
	if err != nil {
		return nil, err
	}
	client, err := calicoClient(config)
	if err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	p := &Pools{Watches: NewWatches(trouble), core: core}
	for _, r := range calicoKinds {
		p.Add(List{Client: client, Resource: r.resource, Object: &Calico{}, Transform: slimCalico(r.kind)})
	}
	return p, nil
}

func calicoClient(config *rest.Config) (*rest.RESTClient, error) {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	metav1.AddToGroupVersion(s, calico)
	for _, r := range calicoKinds {
		s.AddKnownTypeWithName(calico.WithKind(r.kind), &Calico{})
		s.AddKnownTypeWithName(calico.WithKind(r.kind+"List"), &calicoList{})
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

// Snapshot gives the pools and the configurations there are, by name, and whether the first lists are complete. The objects are shared:
// read only.
func (p *Pools) Snapshot() (pools, configurations []*Calico, complete bool) {
	if !p.complete() {
		return nil, nil, false
	}
	var lists [2][]*Calico
	for i, store := range p.stores {
		lists[i] = Objects[*Calico](store)
		slices.SortFunc(lists[i], func(a, b *Calico) int { return strings.Compare(a.Name, b.Name) })
	}
	return lists[0], lists[1], true
}

// Warn reports a warning about an object as it is; several that say the same are one.
func (p *Pools) Warn(ctx context.Context, about *Calico, component, host, reason, message string) error {
	return warn(ctx, p.core, corev1.ObjectReference{
		APIVersion: about.APIVersion, Kind: about.Kind, Name: about.Name, UID: about.UID, ResourceVersion: about.ResourceVersion,
	}, corev1.EventSource{Component: component, Host: host}, reason, message)
}
