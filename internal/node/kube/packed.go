package kube

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"packetwalk.dev/internal/node/service"
)

// packedObject is a Service or an EndpointSlice as the stores keep it: what is read of it, as protobuf. That is a quarter of what the object
// takes, and nothing that the garbage collector has to look through; of ten thousand services one or two are asked for at a time.
type packedObject struct {
	namespace, name string
	slice           bool
	service         string                     // of a slice
	data            []byte                     // without the version, so that what is the same has the same
	kept            *discoveryv1.EndpointSlice // the watcher's, see manySlices
}

// manySlices is how many EndpointSlices a service has that are kept as they were read, too: of hundreds of endpoints one changes, and then
// another, and all of them are asked for each time.
const manySlices = 4

// GetObjectMeta gives what the stores' key is made of.
func (p *packedObject) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: p.namespace, Name: p.name}
}

// key returns the service's that it is, or belongs to.
func (p *packedObject) key() service.Key {
	if p.slice {
		return service.Key{Namespace: p.namespace, Service: p.service}
	}
	return service.Key{Namespace: p.namespace, Service: p.name}
}

// pack leaves of an object what is read of it.
func pack(o any) (_ any, err error) {
	switch o := o.(type) {
	case *corev1.Service:
		s := corev1.Service{ObjectMeta: slimMeta(&o.ObjectMeta, service.LabelProxyName), Spec: o.Spec, Status: o.Status}
		s.ResourceVersion, s.Spec.Selector = "", nil
		p := &packedObject{namespace: o.Namespace, name: o.Name}
		p.data, err = s.Marshal()
		return p, err
	case *discoveryv1.EndpointSlice:
		s := *o
		s.ObjectMeta = slimMeta(&o.ObjectMeta, discoveryv1.LabelServiceName)
		s.ResourceVersion = ""
		if t, ok := o.Annotations[corev1.EndpointsLastChangeTriggerTime]; ok {
			s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: t}
		}
		s.Endpoints = make([]discoveryv1.Endpoint, len(o.Endpoints))
		for i, e := range o.Endpoints {
			s.Endpoints[i] = discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions, NodeName: e.NodeName, Hints: e.Hints}
		}
		p := &packedObject{namespace: o.Namespace, name: o.Name, slice: true, service: service.OfSlice(o).Service}
		p.data, err = s.Marshal()
		return p, err
	}
	return o, nil // packed before
}

// object is a kind of the API's types.
type object[T any] interface {
	*T
	Unmarshal([]byte) error
}

// unpacked returns an object of a store.
func unpacked[T any, P object[T]](p *packedObject) P {
	o := P(new(T))
	if err := o.Unmarshal(p.data); err != nil {
		panic(fmt.Sprintf("unpack %s/%s: %v", p.namespace, p.name, err)) // pack made it
	}
	return o
}

// allUnpacked returns all objects of a store.
func allUnpacked[T any, P object[T]](store cache.Store) (all []P) {
	for _, p := range Objects[*packedObject](store) {
		all = append(all, unpacked[T, P](p))
	}
	return all
}

// get returns an object of a store; nil where there is none.
func get(store cache.Store, namespace, name string) *packedObject {
	if o, there, err := store.GetByKey(namespace + "/" + name); err == nil && there {
		return o.(*packedObject)
	}
	return nil
}

// endpointSlice returns a slice, kept for the next time or not.
func (p *packedObject) endpointSlice(keep bool) (s *discoveryv1.EndpointSlice) {
	if s, p.kept = p.kept, nil; s == nil {
		s = unpacked[discoveryv1.EndpointSlice](p)
	}
	if keep {
		p.kept = s
	}
	return s
}
