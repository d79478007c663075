package oracle

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// addSlices adds slices of both families for a service, its endpoints split at random.
func (s *source) addSlices(w *World, service string) {
	v := w.Services[service]
	for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		if s.chance(10) {
			continue
		}
		var endpoints []discoveryv1.Endpoint
		for range pick(s, 0, 1, 1, 2, 3, 5) {
			endpoints = append(endpoints, s.newEndpoint(family))
		}
		s.hints(endpoints)
		for len(endpoints) > 0 {
			n := 1 + s.IntN(len(endpoints))
			s.addSlice(w, v, family, endpoints[:n])
			endpoints = endpoints[n:]
		}
		if s.chance(8) {
			s.addSlice(w, v, family, nil)
		}
	}
	if s.chance(12) {
		s.addSlice(w, v, discoveryv1.AddressTypeFQDN, []discoveryv1.Endpoint{{Addresses: []string{"www.example.org"}}})
	}
}

func (s *source) addSlice(w *World, v *corev1.Service, family discoveryv1.AddressType, endpoints []discoveryv1.Endpoint) {
	s.serial++
	name := fmt.Sprintf("slice-%d", s.serial)
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Namespace: v.Namespace, Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: v.Name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}},
		AddressType: family, Endpoints: slices.Clone(endpoints),
	}
	if x, ok := v.Labels[labelProxyName]; ok { // the controller copies the service's labels
		slice.Labels[labelProxyName] = x
	}
	if v.Spec.ClusterIP == corev1.ClusterIPNone {
		slice.Labels[corev1.IsHeadlessService] = ""
	}
	for _, p := range v.Spec.Ports {
		if s.chance(20) {
			continue
		}
		name, protocol := p.Name, cmp.Or(p.Protocol, corev1.ProtocolTCP)
		if s.chance(30) {
			protocol = corev1.ProtocolUDP
		}
		port := discoveryv1.EndpointPort{Name: &name, Protocol: &protocol}
		if !s.chance(30) {
			number := pick[int32](s, p.Port, 8080, 8080, 9090)
			port.Port = &number
		}
		slice.Ports = append(slice.Ports, port)
	}
	if len(slice.Ports) > 1 && s.chance(30) {
		slice.Ports = slice.Ports[:1]
	}
	w.Slices[v.Namespace+"/"+name] = slice
}

func (s *source) newEndpoint(family discoveryv1.AddressType) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{}
	ip := fmt.Sprintf("10.244.%d.%d", s.IntN(12), 1+s.IntN(30))
	switch {
	case family == discoveryv1.AddressTypeIPv6:
		ip = fmt.Sprintf("fd00:244:1:%x::%x", 1+s.IntN(12), 1+s.IntN(30)) // no other form is valid here
	case s.chance(20):
		ip = fmt.Sprintf("010.244.%03d.%03d", s.IntN(12), 1+s.IntN(30))
	case s.chance(30):
		ip = fmt.Sprintf("::ffff:10.244.%d.%d", s.IntN(12), 1+s.IntN(30))
	}
	e.Addresses = []string{ip}
	if s.chance(10) {
		more := "10.244.99.99"
		if family == discoveryv1.AddressTypeIPv6 {
			more = "fd00:244:1:99::99"
		}
		e.Addresses = append(e.Addresses, more)
	}
	if node := pick(s, "", NodeName, NodeName, "node-1", "node-2"); node != "" {
		e.NodeName = &node
	}
	e.Conditions = s.conditions()
	return e
}

// conditions returns mostly the conditions of a pod's life, and sometimes any.
func (s *source) conditions() discoveryv1.EndpointConditions {
	make := func(ready, serving, terminating bool) discoveryv1.EndpointConditions {
		return discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
	}
	switch s.IntN(8) {
	case 0, 1, 2:
		return make(true, true, false)
	case 3:
		return make(false, false, false)
	case 4:
		return make(false, true, true)
	case 5:
		return make(false, false, true)
	case 6:
		return discoveryv1.EndpointConditions{}
	}
	c := make(s.chance(2), s.chance(2), s.chance(2))
	if s.chance(2) {
		c.Serving = nil
	}
	if s.chance(2) {
		c.Terminating = nil
	}
	return c
}

// hints adds the hints of a traffic distribution: mostly all endpoints have some.
func (s *source) hints(endpoints []discoveryv1.Endpoint) {
	kind := s.IntN(6)
	for i := range endpoints {
		e := &endpoints[i]
		e.Hints = nil
		if kind > 2 || s.chance(12) {
			continue
		}
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: pick(s, "zone-a", "zone-b", "zone-c")}}}
		if s.chance(4) {
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: "zone-d"})
		}
		if kind == 0 {
			e.Hints.ForNodes = []discoveryv1.ForNode{{Name: pick(s, NodeName, "node-1")}}
		}
		if kind == 0 && s.chance(4) {
			e.Hints.ForZones = nil
		}
	}
}
