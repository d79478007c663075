package ingress

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// backends finds Services' ready endpoints, each backend once.
type backends struct {
	services map[types.NamespacedName]*corev1.Service
	slices   map[types.NamespacedName][]*discoveryv1.EndpointSlice
	found    map[backendKey]Backend
}

type backendKey struct {
	service types.NamespacedName
	port    string
}

func newBackends(o Objects) *backends {
	b := &backends{map[types.NamespacedName]*corev1.Service{}, map[types.NamespacedName][]*discoveryv1.EndpointSlice{},
		map[backendKey]Backend{}}
	for _, s := range o.Services {
		b.services[nameOf(s)] = s
	}
	for _, s := range o.Slices {
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
		b.slices[name] = append(b.slices[name], s)
	}
	return b
}

// first returns the backend of a Service's first port.
func (b *backends) first(name types.NamespacedName) Backend {
	s := b.services[name]
	if s == nil || len(s.Spec.Ports) == 0 {
		return Backend{Service: name, Missing: fmt.Sprintf("there is no Service %s", name)}
	}
	return b.find(name, strconv.Itoa(int(s.Spec.Ports[0].Port)))
}

func (b *backends) find(name types.NamespacedName, port string) Backend {
	key := backendKey{name, port}
	found, ok := b.found[key]
	if !ok {
		found = b.resolve(name, port)
		b.found[key] = found
	}
	return found
}

func (b *backends) resolve(name types.NamespacedName, port string) Backend {
	backend := Backend{Service: name, Port: port}
	s := b.services[name]
	if s == nil {
		backend.Missing = fmt.Sprintf("there is no Service %s", name)
		return backend
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		backend.Missing = fmt.Sprintf("Service %s is of type ExternalName, which is not supported here", name)
		return backend
	}
	i := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == port || strconv.Itoa(int(p.Port)) == port })
	if i < 0 {
		backend.Missing = fmt.Sprintf("Service %s has no port %s", name, port)
		return backend
	}
	backend.Known = true
	for _, slice := range b.slices[name] {
		backend.Endpoints = append(backend.Endpoints, ready(slice, s.Spec.Ports[i].Name)...)
	}
	slices.SortFunc(backend.Endpoints, netip.AddrPort.Compare)
	backend.Endpoints = slices.Compact(backend.Endpoints)
	if len(backend.Endpoints) == 0 {
		backend.Missing = fmt.Sprintf("Service %s has no ready endpoint at port %s", name, port)
	}
	return backend
}

// ready returns a slice's endpoints that take requests, at the port of that name. An unknown readiness means ready
// (k8s.io/api/discovery/v1).
func ready(s *discoveryv1.EndpointSlice, port string) (all []netip.AddrPort) {
	for _, p := range s.Ports {
		if p.Port == nil || *p.Port < 1 || *p.Port > 65535 || deref(p.Name) != port {
			continue
		}
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready || len(e.Addresses) == 0 {
				continue
			}
			// All addresses of an endpoint are the same; consumers take the first (k8s.io/api/discovery/v1).
			if a, err := netip.ParseAddr(e.Addresses[0]); err == nil {
				all = append(all, netip.AddrPortFrom(a.Unmap(), uint16(*p.Port)))
			}
		}
	}
	return all
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
